"""One rank's place in a tensor-parallel run, or alone: how it builds engines, serves or follows, and what it saw."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from mstar_resident.bench.decode import spread
from mstar_resident.bench.look import MarkedRunner, Stopwatch
from mstar_resident.bench.shapes import twin
from mstar_resident.engine.config import EngineConfig
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.ranks import Follower, Leader, LocalGroup, RankGroup, TorchGroup, moves
from mstar_resident.engine.request import Request
from mstar_resident.engine.scenarios.hooks import HookRunner
from mstar_resident.engine.view import DecodeView
from mstar_resident.models.config import Qwen35Config
from mstar_resident.models.kernels import Kernels
from mstar_resident.models.shard import LoneShard, Shard, TorchShard
from mstar_resident.models.sharded import ShardedQwen35

#: Decode steps of a marked run that are left out: their inputs are written whole.
SETTLE = 3
#: Resident steps before a fault.
BEFORE_FAULT = 30


class Remembering(Follower):
    """Keep the requests of a run, also those that are over."""

    seen: list[Request]

    def _add(self, entry: moves.Add) -> None:
        super()._add(entry)
        self.seen.append(self.requests[entry.number])


@dataclass(frozen=True, slots=True)
class Place:
    """Say which rank this process is, where it runs, and how it hears of the others."""

    group: RankGroup
    shard: Shard
    device: str
    alone: bool

    @classmethod
    def of(cls, device: str, alone_of: int = 0) -> Place:
        """Join the ranks that torchrun started, on a device of this one's; or be rank 0 of ``alone_of``, alone."""
        local = int(os.environ.get("LOCAL_RANK", "0"))
        if device == "cuda":
            torch.cuda.set_device(local)
            device = f"cuda:{local}"
        if alone_of:
            return cls(LocalGroup(), LoneShard(0, alone_of), device, alone=True)
        dist.init_process_group("gloo" if device == "cpu" else "nccl")
        return cls(TorchGroup(), TorchShard(), device, alone=False)

    @property
    def leads(self) -> bool:
        """Whether this rank decides, times and writes the record."""
        return self.group.rank == 0

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and KV: bf16 on cuda, fp32 elsewhere."""
        return torch.float32 if self.device == "cpu" else torch.bfloat16

    def model(self, config: Qwen35Config, seed: int) -> ShardedQwen35:
        """Return this rank's part of the model, drawn on its device."""
        kernels = Kernels() if self.device == "cpu" else Kernels.triton()
        part = ShardedQwen35.seeded_part(
            config, self.shard, seed, device=self.device, dtype=self.dtype, kernels=kernels
        )
        if self.device != "cpu":
            torch.cuda.empty_cache()  # of the whole weights that the parts were cut from
        return part

    def engine(self, model: ShardedQwen35, config: EngineConfig, **arguments: Any) -> Engine:
        """Return an engine over the part's weights, with pools of its own, not captured."""
        part: Any = twin(model)
        if self.alone:
            return Engine(part, config, **arguments)
        group = TorchGroup()
        if self.leads:
            return Leader(part, config, group, **arguments)
        follower = Remembering(part, config, group, **arguments)
        follower.seen = []
        return follower

    def serve(self, engine: Engine, work: Callable[[], Any]) -> tuple[Any, list[list[int]]]:
        """Do rank 0's work on the engine, or follow it; return what the work gave, and a follower's tokens."""
        if isinstance(engine, Remembering):
            engine.seen = []
            engine.follow()
            return None, [request.outputs for request in engine.seen]
        given = work()
        if isinstance(engine, Leader):
            engine.finish()
        return given, []

    def barrier(self) -> None:
        """Wait for the others."""
        self.group.gather(None)

    def leave(self, engines: list[Engine]) -> None:
        """Leave the group, with the graphs of all engines."""
        if isinstance(self.group, TorchGroup):
            self.group.leave(*engines)


class Marks:
    """Time every decode step of an engine by marks on its device, while a run is on."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._watch = Stopwatch(torch.device(engine.config.device))

    def __enter__(self) -> Marks:
        self._engine.arm.runner = MarkedRunner(self._engine.runner, self._watch)
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.arm.runner = self._engine.runner

    def figures(self) -> dict[str, Any]:
        """Wait for the device; return a graph's time, the idle time behind it and a step's, in microseconds."""
        graphs, idle = self._watch.laps_us()[SETTLE:], self._watch.laps_us(first=1)[SETTLE:]
        steps = [graph + rest for graph, rest in zip(graphs, idle, strict=False)]
        return {"graph_us": spread(graphs), "idle_us": spread(idle), "step_us": spread(steps), "steps": len(graphs)}


def memory_figures(device: str) -> dict[str, int]:
    """Return what this process holds of its device's memory, and the most that it held since the last call."""
    if device == "cpu":
        return {}
    torch.cuda.synchronize()
    most = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return {
        "allocated_bytes": torch.cuda.memory_allocated(),
        "reserved_bytes": torch.cuda.memory_reserved(),
        "peak_bytes": most,
    }


def spoiling(engine: Engine) -> None:
    """Inject a fault: name another page in one cell of the store, once, as if a copy had gone astray."""
    steps = 0

    def spoil(view: DecodeView) -> None:
        nonlocal steps
        steps += 1
        if steps == BEFORE_FAULT and engine.planner is not None and view.lease is not None:
            engine.planner.store.tables["kv"][view.lease.slots[0], 0] += 1

    runner = engine.runner
    if not isinstance(runner, HookRunner):
        raise TypeError("expected an engine whose runner calls back")
    runner.flushed = spoil
