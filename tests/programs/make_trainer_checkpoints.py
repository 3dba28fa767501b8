"""Writes checkpoints with real torch on two CPU ranks (gloo): FSDP 1 and 2, ShardedTensor, DCP.

Run as ``python make_trainer_checkpoints.py DIR``; `models/test_trainers.py` does. Every checkpoint
holds the weights of DIR/hf, which transformers saved.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def build():
    """A tiny Qwen2 whose sizes do not divide by two."""
    import torch
    import transformers

    torch.manual_seed(11)
    config = transformers.Qwen2Config(
        vocab_size=67,
        hidden_size=24,
        intermediate_size=37,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        tie_word_embeddings=False,
    )
    return transformers.AutoModelForCausalLM.from_config(config).float()


def save_rank(directory: Path, state, rank: int, world: int) -> None:
    import torch

    directory.mkdir(parents=True, exist_ok=True)
    torch.save(state, directory / f"model_world_size_{world}_rank_{rank}.pt")


def fsdp1(out: Path, rank: int, world: int, *, mesh) -> None:
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel as Fsdp
    from torch.distributed.fsdp import ShardedStateDictConfig, StateDictType

    extra = {} if mesh is None else {"device_mesh": mesh}
    wrapped = Fsdp(build(), use_orig_params=True, device_id=torch.device("cpu"), **extra)
    options = ShardedStateDictConfig(offload_to_cpu=True)
    with Fsdp.state_dict_type(wrapped, StateDictType.SHARDED_STATE_DICT, options):
        state = wrapped.state_dict()
    save_rank(out / ("fsdp1" if mesh is not None else "sharded_tensor"), state, rank, world)


def fsdp2(out: Path, rank: int, world: int, *, mesh, name: str):
    from torch.distributed.fsdp import fully_shard

    model = build()
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    state = model.state_dict()
    save_rank(out / name, state, rank, world)
    return state


def placed(out: Path, rank: int, world: int, *, mesh) -> None:
    """As tensor parallelism leaves them: columns split, replicas, and a buffer on every rank."""
    import torch
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    state = {}
    for i, (name, value) in enumerate(build().state_dict().items()):
        last = value.ndim - 1
        placement = Replicate() if i % 3 == 0 else Shard(last if i % 3 == 1 else 0)
        state[name] = distribute_tensor(value, mesh, [placement])
    state["rotary_emb.inv_freq"] = torch.arange(4.0)
    save_rank(out / "placed", state, rank, world)


def work(rank: int, world: int, out: Path) -> None:
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = f"file://{out.absolute() / 'rendezvous'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    flat = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
    grid = init_device_mesh("cpu", (world, 1), mesh_dim_names=("ddp", "fsdp"))
    fsdp1(out, rank, world, mesh=flat)
    fsdp1(out, rank, world, mesh=None)
    state = fsdp2(out, rank, world, mesh=flat, name="fsdp2")
    fsdp2(out, rank, world, mesh=grid, name="hsdp")
    placed(out, rank, world, mesh=flat)
    moments = {f"{k}.exp_avg": v * 2 for k, v in state.items()}
    nested = {"app": {"model": state, "optim": moments}, "step": 3}
    dcp.save(nested, checkpoint_id=out / "dcp_nested")
    dcp.save(state, checkpoint_id=out / "dcp_flat")
    dist.destroy_process_group()


def main(out: Path) -> None:
    import torch.multiprocessing as mp

    build().save_pretrained(out / "hf")
    mp.spawn(work, args=(2, out), nprocs=2)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
