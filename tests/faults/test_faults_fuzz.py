"""Readers of text that strangers wrote: mutants of a small corpus are read or refused, in time.

The corpus in `corpus/` has a seed file for every feature; what once broke a reader is added to it.
Headers are fuzzed in `test_faults_hostile`.
"""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import pytest

from ramerge._errors import MergeError
from ramerge.config import mergekit
from ramerge.methods.registry import METHODS
from ramerge.models.files import json_object
from ramerge.models.lora.config import parse_lora_config

CORPUS = Path(__file__).with_name("corpus")
PIECES = (
    b"0", b"-1", b"1e999", b".nan", b"9" * 400, b"null", b"true", b"[]", b"{}", b'""', b"[" * 60,
    b"{a: " * 30, b"&a ", b"*a", b"!!python/name:os.system ", b"<<: ", b"\0", b"\xff", b"\xe2\x80\xae",
    b"\t", b"\n", b"\r", b": ", b"- ", b"? ", b"|\n", b"#", b"'", b'"', b"\\ud800", b"(" * 40 + b"+" * 9,
)  # fmt: skip


def mutate(draw: random.Random, seeds: list[bytes]) -> bytes:
    """One to four changes to a seed: bits, pieces in and out, values swapped, two seeds spliced."""
    data = bytearray(draw.choice(seeds))
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data) + 1)
        kind = draw.randrange(5)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            data[at:at] = draw.choice(PIECES)
        elif kind == 2:
            del data[at : at + draw.randrange(1, 40)]
        elif kind == 3:
            values = list(re.finditer(rb"[\w.+-]+", bytes(data)))
            if values:
                value = draw.choice(values)
                data[value.start() : value.end()] = draw.choice(PIECES)
        else:
            other = draw.choice(seeds)
            data[at:] = other[draw.randrange(len(other)) :]
    return bytes(data)


def read_yaml(data: bytes) -> None:
    mergekit.loads(data, {name: method.info for name, method in METHODS.items()}, file="x.yml")


def read_adapter(data: bytes) -> None:
    config = parse_lora_config(json_object(data, "adapter_config.json"), "adapter_config.json")
    for name in ("model.layers.0.self_attn.q_proj", "model.layers.11.mlp.down_proj", "lm_head"):
        config.targets(name)
        config.scale_of(name)


READERS = {"yaml": read_yaml, "adapter": read_adapter}


@pytest.mark.parametrize("reader", READERS)
def test_mutants_are_read_or_refused(size, reader, record):
    seeds = [path.read_bytes() for path in sorted((CORPUS / reader).iterdir())]
    assert seeds
    draw = random.Random(f"{reader} 1")
    total = 20_000 if size == "full" else 500
    accepted, slowest = 0, 0.0
    for _ in range(total):
        mutant = mutate(draw, seeds)
        began = time.process_time()
        try:
            READERS[reader](mutant)
            accepted += 1
        except MergeError as error:
            lines = str(error).split("\n")
            assert all(line.isprintable() for line in lines), (mutant, error)
        except Exception as error:
            raise AssertionError(f"{reader} reader, on {mutant!r}") from error
        slowest = max(slowest, time.process_time() - began)
    assert slowest < 1
    if size == "full":
        text = f"0 crashes, slowest {1000 * slowest:.0f} ms CPU; {accepted:,} accepted"
        record("9 fuzzing", f"{reader} reader, mutants of {len(seeds)} seeds", f"{total:,}", text)
