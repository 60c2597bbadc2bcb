"""The scenario of two ranks: the same decisions, slots of their own."""

from __future__ import annotations

import random
from typing import ClassVar

from mstar_resident.engine.config import EngineConfig, PoolConfig
from mstar_resident.engine.request import Request
from mstar_resident.engine.scenarios.fault import Fault
from mstar_resident.engine.scenarios.outcome import Outcome
from mstar_resident.engine.scenarios.scenario import Scenario
from mstar_resident.engine.scenarios.world import World
from mstar_resident.engine.toy import ToyModel
from mstar_resident.engine.view import DecodeView

#: Steps between two times that the second rank hears of releases.
LATE = 5


class Ranks(Scenario):
    """Two planners in lockstep, as on the ranks of a tensor-parallel group.

    Both ranks decide alike, and in each step exchange what a collective would carry. The second served a request
    before, and hears of releases later, on the other side of commits: it holds other slots, and must say the same.
    """

    name, text = "ranks", "two ranks in lockstep, one hears of releases later: other slots, the same steps and tokens"
    steps: ClassVar[int] = 120

    def world(self, rng: random.Random, fault: Fault | None) -> World:
        """Build one rank's engine, short of slots."""
        config = EngineConfig(max_batch=3, max_requests=10, order="turns", pools={"kv": PoolConfig(4, 400, 128)})
        return self.build(rng, config, ToyModel(), fault)

    def before(self, world: World, step: int) -> None:
        """Come, and go by abort now and then."""
        while len(world.live) < 8:
            world.submit(world.rng.randint(1, 20), world.rng.randint(2, 12), stops=4)
        if world.rng.random() < 0.15:
            world.engine.abort(world.rng.choice(world.live))

    def run(self, seed: int, steps: int, fault: Fault | None = None) -> Outcome:
        """Run both ranks step by step; compare what they exchange, and each with the oracle."""
        outcome = Outcome(self.name)
        ranks = [_Rank(self.world(random.Random(f"{self.name} {seed}"), of), fault) for of in (fault, None)]
        late = Late(ranks[1].world)
        late.serve_one()
        other_slots, found = 0, {}
        try:
            for step in range(steps):
                for rank in ranks:
                    self.before(rank.world, step)
                    rank.step()
                if step % LATE == LATE - 1:
                    late()
                if ranks[0].exchanged != ranks[1].exchanged:
                    said = [f"step {step}: expected {ranks[0].exchanged} on all ranks, got {ranks[1].exchanged}"]
                    outcome.note("ranks", said)
                other_slots += ranks[0].slots != ranks[1].slots
            for rank in ranks:
                rank.world.drain()
            late()
            found = {rank: rank.world.wrong() for rank in ranks}
        except Exception as error:
            if fault is None or not fault.done:
                raise
            outcome.note(type(error).__name__, [f"a step raised {type(error).__name__}: {error}"])
        for rank in ranks:
            outcome.add(rank.world.engine, found.get(rank, {}))
        if fault is None and steps >= self.steps and not other_slots:
            outcome.unmet.append("steps in which the ranks held other slots")
        return outcome


class _Rank:
    """Keep what one rank's last resident step exchanged."""

    def __init__(self, world: World, fault: Fault | None) -> None:
        self.world = world
        self.fault = fault
        self.exchanged: list[list[int]] = []
        self.slots: list[int] = []
        self._before = world.runner.ran
        world.runner.ran = self._ran

    def step(self) -> None:
        self.exchanged, self.slots = [], []
        self.world.step()

    def _ran(self, view: DecodeView) -> None:
        self._before(view)
        if view.lease is None:
            return
        self.slots = view.lease.slots.tolist()
        self.exchanged = [view.seats.tolist(), view.sampled.tolist()]
        if self.fault is not None and (more := self.fault.exchanged(view.lease)):
            self.exchanged.append(more)


class Late:
    """Hold releases of one rank back."""

    def __init__(self, world: World) -> None:
        self._engine = world.engine
        self._handles: list[int] = []
        setattr(world.engine.arm, "released", self._hold)  # noqa: B010

    def serve_one(self) -> None:
        """Run a step of a request that the other rank never had, and hold its release back too."""
        planner = self._engine.planner
        if planner is None:
            return
        handle = planner.open()
        planner.set_stream(handle, "kv", [1], 0)
        for column in planner.layout.columns:
            planner.set_column(column.name, [handle], [0])
        lease = planner.lease(1)
        stage = planner.stage(planner.batch([handle]), lease)
        planner.flush(stage, 0)
        planner.prologue(lease)
        planner.commit(stage)
        self._handles.append(handle)

    def _hold(self, request: Request) -> None:
        self._handles.append(int(self._engine.seats.handle[request.seat]))

    def __call__(self) -> None:
        """Tell the planner of what was held back."""
        for handle in self._handles:
            if self._engine.planner is not None:
                self._engine.planner.release(handle)
        self._handles.clear()
