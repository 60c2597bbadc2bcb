"""One rank of a group under torchrun: serve the same traffic on a model that the ranks share; leave a record.

Arguments: the model (``toy``, ``llama`` or ``hybrid``), the folder for the records, and a fault if one is injected:
``slots`` has moves name slots, ``cell`` spoils a page cell on the last rank.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from mstar_resident.bench.shapes import NARROW
from mstar_resident.engine.ranks import Follower, Leader, TorchGroup, moves
from mstar_resident.engine.request import Request
from mstar_resident.engine.scenarios.hooks import HookRunner
from mstar_resident.engine.toy import ToyModel, ToySampler
from mstar_resident.engine.view import DecodeView
from mstar_resident.models.shard import TorchShard
from mstar_resident.models.sharded import ShardedLlama, ShardedQwen35
from rank_support import FEW_SLOTS, LLAMA, STEPS, HearsSlots, TellsSlots, serve_one_before, traffic


def main(model: str, folder: Path, fault: str = "") -> None:
    """Be one rank."""
    dist.init_process_group("gloo")
    group, shard = TorchGroup(), TorchShard()
    arguments: dict[str, Any] = {"wrap_runner": HookRunner}
    if model == "toy":
        part: Any = ToyModel(shard=shard)
        arguments["sampler"] = lambda seats, device: ToySampler(509, seats, device)
    elif model == "llama":
        part = ShardedLlama.seeded_part(LLAMA, shard)
    else:
        part = ShardedQwen35.seeded_part(NARROW, shard)
    kinds: tuple[type[Leader], type[Follower]] = (TellsSlots, HearsSlots) if fault == "slots" else (Leader, Follower)
    requests: list[Request] = []
    leader = None
    engine: Any
    if group.rank == 0:
        engine = leader = kinds[0](part, FEW_SLOTS[model], group, **arguments)
    else:
        engine = follower = kinds[1](part, FEW_SLOTS[model], group, **arguments)
        serve_one_before(follower)
        add = follower._add

        def remember(entry: moves.Add) -> None:
            add(entry)
            requests.append(follower.requests[entry.number])

        follower._add = remember  # type: ignore[method-assign]
    engine.capture()
    slots: list[list[int]] = []

    def spoil(view: DecodeView) -> None:
        if len(slots) == 20 and view.lease is not None:
            engine.planner.store.tables["kv"][view.lease.slots[0], 0] += 1

    if fault == "cell" and group.rank == group.size - 1:
        engine.runner.flushed = spoil
    engine.runner.ran = lambda view: slots.append(view.lease.slots.tolist()) if view.lease is not None else None
    if leader is not None:
        requests = traffic(leader, 11, STEPS[model], lambda: None)
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
