"""Ranks in one process or under torchrun: how they are built, what they serve, and a fault to be found."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mstar_resident.engine.config import EngineConfig, PoolConfig
from mstar_resident.engine.ranks import Follower, Leader, RankGroup, moves
from mstar_resident.engine.request import Request, Sampling, State
from mstar_resident.engine.scenarios.hooks import HookRunner
from mstar_resident.engine.toy import ToyModel, ToySampler
from mstar_resident.models.config import LlamaConfig
from mstar_resident.models.rope import RopeConfig

SHORT = EngineConfig(
    max_batch=3,
    max_requests=9,
    recurrent_states=9,
    order="turns",
    token_budget=24,
    min_chunk=8,
    pools={"kv": PoolConfig(4, 26, 64)},
    check=True,
    debug=True,
    dtype=torch.int64,
    state_dtype=torch.int64,
)

LLAMA = LlamaConfig(512, 64, 2, 8, 4, 16, 96, RopeConfig(theta=1e4, rotary_dim=16), tie_embeddings=True)
#: By model: short of slots and, less often, of pages.
FEW_SLOTS = {"toy": replace(SHORT, max_batch=2, pools={"kv": PoolConfig(4, 44, 64)})}
FEW_SLOTS["llama"] = FEW_SLOTS["hybrid"] = replace(FEW_SLOTS["toy"], dtype=torch.float32, state_dtype=torch.float32)
#: Steps of the traffic, by model: the more, the less one costs.
STEPS = {"toy": 80, "llama": 80, "hybrid": 40}


def build(rank: type[Leader] | type[Follower], group: RankGroup, config: EngineConfig = SHORT, **model: Any) -> Any:
    toy = ToyModel(**model)
    return rank(
        toy,
        config,
        group,
        sampler=lambda seats, device: ToySampler(toy.vocab_size, seats, device),
        wrap_runner=HookRunner,
    )


def serve_one_before(follower: Follower) -> None:
    """Have a rank serve a request that the others never had, so that it holds other slots, seats and pages."""
    planner = follower.planner
    assert planner is not None
    handles = [planner.open() for _ in range(3)]
    for handle in handles:
        for table in planner.layout.tables:
            planner.set_stream(handle, table.name, [1], 1 - table.span)
        for column in planner.layout.columns:
            planner.set_column(column.name, [handle], [0])
    for row in (handles[:2], handles[2:]):
        lease = planner.lease(len(row))
        stage = planner.stage(planner.batch(row), lease)
        planner.flush(stage, 0)
        planner.prologue(lease)
        planner.commit(stage)
    for handle in handles[1:]:
        planner.release(handle)
    for entry in follower.streams.values():
        pages = entry.pool.take(7)
        assert pages is not None
        entry.pool.give(np.random.default_rng(1).permutation(pages))
    taken = [Request(str(i), np.ones(1, np.int64), 1) for i in range(4)]
    for request in taken:
        follower.seats.take(request)
    for request in (taken[2], taken[0], taken[3], taken[1]):
        follower.seats.give(request)


def traffic(leader: Leader, seed: int, steps: int, after: Callable[[], None], contexts: bool = False) -> list[Request]:
    """Submit, extend and abort at random; ``after`` runs after every step."""
    rng = random.Random(seed)
    requests: list[Request] = []
    for step in range(10 * steps):
        live = [request for request in requests if request.state is not State.DONE]
        for request in [request for request in live if request.state is State.IDLE]:
            if step >= steps or len(request.tokens()) > 40 or rng.random() < 0.4:
                leader.abort(request, "closed")
            else:
                leader.extend(request, np.array([rng.randrange(509)]), rng.randint(2, 12))
        if step < steps and len(live) < 8:
            earlier = [r.prompt for r in requests if rng.random() < 0.3][-1:]
            prompt = np.array([rng.randrange(509) for _ in range(rng.randint(1, 24))], dtype=np.int64)
            prompt = np.concatenate([*(p[:20] for p in earlier), prompt])[:40]
            request = Request(
                f"r{len(requests)}",
                prompt,
                rng.randint(2, 16),
                Sampling(seed=rng.randrange(99)),
                stop=frozenset(rng.sample(range(509), 20)),
                keep=rng.random() < 0.4,
                context=np.array([rng.randrange(509) for _ in range(9)]) if contexts else None,
            )
            leader.add(request)
            requests.append(request)
        if live and rng.random() < 0.08:
            leader.abort(rng.choice(live))
        leader.step()
        after()
        if step >= steps and not leader.busy and all(request.state is State.DONE for request in requests):
            break
    leader.finish()
    return requests


def torchrun(ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ranks on a free port of this machine; none outlives the call."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, [*sys.path, Path(__file__).parent])),
    }
    process = subprocess.Popen(
        [*command, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=200)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


class TellsSlots(Leader):
    """Name the rows of steps by slots, as no leader may."""

    def _launch(self, plan: Any) -> Any:
        self._slots_of = plan.seats if plan.walk == "decode" else None
        return super()._launch(plan)

    def _tell(self) -> None:
        planner, step = self.planner, self._moves[-1] if self._moves else None
        if isinstance(step, moves.Step) and self._slots_of is not None and planner is not None:
            slots = tuple(planner.slot(handle) for handle in self.seats.handle[self._slots_of].tolist())
            self._moves[-1] = replace(step, numbers=slots)
        super()._tell()


class HearsSlots(Follower):
    """Take the rows of steps for slots."""

    def _step_of(self, entry: moves.Step) -> None:
        if entry.decode_rows == len(entry.numbers):
            planner = self.planner
            assert planner is not None
            held = {planner.slot(int(self.seats.handle[r.seat])): n for n, r in self.requests.items() if r.seat}
            before = {slot: number for slot, number in held.items() if slot}
            entry = replace(entry, numbers=tuple(before.get(slot, -1) for slot in entry.numbers))
        super()._step_of(entry)
