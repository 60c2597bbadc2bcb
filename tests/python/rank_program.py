"""One rank of a group under torchrun: serve the same traffic on a model that the ranks share; leave a record.

Arguments: the model (``toy`` or ``llama``), the folder for the records, and ``slots`` to inject the fault.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from mstar_resident.engine.config import PoolConfig
from mstar_resident.engine.ranks import Follower, Leader, TorchGroup, moves
from mstar_resident.engine.request import Request
from mstar_resident.engine.scenarios.hooks import HookRunner
from mstar_resident.engine.toy import ToyModel, ToySampler
from mstar_resident.models.config import LlamaConfig
from mstar_resident.models.rope import RopeConfig
from mstar_resident.models.sharded import ShardedLlama, TorchShard
from rank_support import SHORT, HearsSlots, TellsSlots, serve_one_before, traffic

LLAMA = LlamaConfig(512, 64, 2, 8, 4, 16, 96, RopeConfig(theta=1e4, rotary_dim=16), tie_embeddings=True)
#: Short of slots and, less often, of pages.
CONFIG = {"toy": replace(SHORT, max_batch=2, pools={"kv": PoolConfig(4, 44, 64)})}
CONFIG["llama"] = replace(CONFIG["toy"], dtype=torch.float32, state_dtype=torch.float32)


def main(model: str, folder: Path, fault: str = "") -> None:
    """Be one rank."""
    dist.init_process_group("gloo")
    group, shard = TorchGroup(), TorchShard()
    arguments: dict[str, Any] = {"wrap_runner": HookRunner}
    if model == "toy":
        part: Any = ToyModel(shard=shard)
        arguments["sampler"] = lambda seats, device: ToySampler(509, seats, device)
    else:
        part = ShardedLlama.seeded_part(LLAMA, shard)
    kinds: tuple[type[Leader], type[Follower]] = (TellsSlots, HearsSlots) if fault == "slots" else (Leader, Follower)
    requests: list[Request] = []
    leader = None
    engine: Any
    if group.rank == 0:
        engine = leader = kinds[0](part, CONFIG[model], group, **arguments)
    else:
        engine = follower = kinds[1](part, CONFIG[model], group, **arguments)
        serve_one_before(follower)
        add = follower._add

        def remember(entry: moves.Add) -> None:
            add(entry)
            requests.append(follower.requests[entry.number])

        follower._add = remember  # type: ignore[method-assign]
    engine.capture()
    slots: list[list[int]] = []
    engine.runner.ran = lambda view: slots.append(view.lease.slots.tolist()) if view.lease is not None else None
    if leader is not None:
        requests = traffic(leader, 11, 80, lambda: None)
    else:
        engine.follow()
    record = {
        "outputs": [request.outputs for request in requests],
        "ends": [request.reason for request in requests],
        "slots": slots,
        "rows_checked": engine.counters.rows_checked,
        "mismatches": engine.counters.mismatches,
        "offloads": engine.counters.offloads,
        "displaced": engine.planner.stats().displaced,
    }
    (folder / f"{group.rank}.json").write_text(json.dumps(record))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
