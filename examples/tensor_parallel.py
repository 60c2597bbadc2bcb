"""Serve requests with a model that several processes share: rank 0 decides, the others follow.

    torchrun --nproc-per-node 2 examples/tensor_parallel.py

Started by hand, it starts two ranks itself. Ranks talk over gloo on CPUs, and over NCCL where each has a
CUDA device.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import torch
import torch.distributed as dist

from mstar_resident.engine import Engine, EngineConfig, PoolConfig, Request, Sampling
from mstar_resident.engine.ranks import Follower, Leader, TorchGroup
from mstar_resident.models.config import LlamaConfig
from mstar_resident.models.llama import Llama
from mstar_resident.models.rope import RopeConfig
from mstar_resident.models.shard import TorchShard
from mstar_resident.models.sharded import ShardedLlama

MODEL = LlamaConfig(
    vocab_size=512,
    hidden_size=64,
    layers=2,
    heads=8,
    kv_heads=4,
    head_dim=16,
    intermediate_size=128,
    rope=RopeConfig(theta=1e4, rotary_dim=16),
)


def requests() -> list[Request]:
    """Return six requests, the same ones at every call."""
    rng = np.random.default_rng(0)
    return [
        Request(f"request {i}", rng.integers(0, 512, 10 + 7 * i), 24, Sampling(temperature=0.8, seed=i))
        for i in range(6)
    ]


def serve(engine: Engine) -> list[list[int]]:
    """Serve the requests and return their tokens."""
    asked = requests()
    for request in asked:
        engine.add(request)
    engine.run()
    return [request.outputs for request in asked]


def main() -> None:
    """Be one rank."""
    cuda = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])  # a device for each rank
    rank = int(os.environ["RANK"])
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    device = f"cuda:{torch.cuda.current_device()}" if cuda else "cpu"
    config = EngineConfig(
        max_batch=4,
        pools={"kv": PoolConfig(page_size=16, pool_pages=64, max_seq_len=256)},  # the same on all ranks
        check=True,
        device=device,
    )
    group = TorchGroup()
    part = ShardedLlama.seeded_part(MODEL, TorchShard(), device=device)
    tokens: list[list[int]] = []
    if rank == 0:
        engine: Engine = (leader := Leader(part, config, group))
        leader.capture()
        tokens = serve(leader)
        leader.finish()
    else:
        engine = follower = Follower(part, config, group)
        follower.capture()
        follower.follow()  # raises where a token differs from rank 0's
    done = engine.counters
    found = group.gather((done.resident_steps, done.rows_checked, len(done.mismatches)))
    if rank == 0:
        for number, (steps, rows, mismatches) in enumerate(found):
            print(f"rank {number}: {steps} resident steps, {rows} rows checked, {mismatches} mismatches")
        alone = serve(Engine(Llama.seeded(MODEL, device=device), config))
        same = sum(mine == theirs for mine, theirs in zip(tokens, alone, strict=True))
        print(f"{same} of {len(alone)} requests say what one process says that has the whole model")
        if same < len(alone) or any(mismatches for _, _, mismatches in found):
            raise SystemExit("the ranks are wrong")
    group.leave(engine)  # with its graphs, which NCCL's end would wait for


if __name__ == "__main__":
    if "RANK" in os.environ:
        main()
    else:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        raise SystemExit(subprocess.run([*torchrun, __file__], check=False).returncode)
