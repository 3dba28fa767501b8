"""Where every output byte will lie: a pure function of specs and shard size.

Format: https://github.com/huggingface/safetensors (8 bytes header length, JSON header padded with
spaces to a multiple of 8, then the tensors without holes). Tensors go to files in sorted name
order, so equal inputs give equal files whatever the inputs' own sharding was. Inside a file wider
types come first, as the library has it, so that every tensor is aligned to its elements.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from ramerge._types import TensorSpec
from ramerge.models.base import Layout

METADATA = {"format": "pt"}
INDEX_NAME = "model.safetensors.index.json"


def plan_layout(specs: Sequence[TensorSpec], shard_size: int) -> Layout:
    """Distribute tensors over files of at most ``shard_size`` bytes (one tensor may exceed it)."""
    shards: list[list[TensorSpec]] = [[]]
    size = 0
    for spec in sorted(specs, key=lambda s: s.name):
        if shards[-1] and size + spec.nbytes > shard_size:
            shards.append([])
            size = 0
        shards[-1].append(spec)
        size += spec.nbytes
    total = len(shards)
    names = (
        ["model.safetensors"]
        if total == 1
        else [f"model-{i + 1:05d}-of-{total:05d}.safetensors" for i in range(total)]
    )
    aligned = (tuple(sorted(shard, key=lambda s: (-s.dtype.bits, s.name))) for shard in shards)
    return Layout(tuple(zip(names, aligned, strict=True)), METADATA)


def encode_header(specs: Sequence[TensorSpec], metadata: Mapping[str, str]) -> bytes:
    """Length prefix and padded JSON header of a file whose tensors follow in this order."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for spec in specs:
        header[spec.name] = {
            "dtype": spec.dtype.name,
            "shape": list(spec.shape),
            "data_offsets": [offset, offset + spec.nbytes],
        }
        offset += spec.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def index_bytes(layout: Layout) -> bytes | None:
    """``model.safetensors.index.json``, or None for a single file."""
    if len(layout.shards) == 1:
        return None
    weight_map = {spec.name: name for name, specs in layout.shards for spec in specs}
    total = sum(spec.nbytes for spec in layout.specs())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    return json.dumps(index, indent=2, ensure_ascii=False).encode() + b"\n"


def layout_bytes(layout: Layout) -> int:
    """Size of all weights files, headers included."""
    return sum(
        len(encode_header(specs, layout.metadata)) + sum(s.nbytes for s in specs)
        for _, specs in layout.shards
    )
