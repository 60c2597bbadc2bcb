"""The scenario that compares arms: with the knob off nothing is different from a host-planned engine."""

from __future__ import annotations

import random
from typing import ClassVar

import torch

from mstar_resident.engine.config import EngineConfig, Planning, PoolConfig
from mstar_resident.engine.scenarios.faults import Fault
from mstar_resident.engine.scenarios.outcome import Outcome
from mstar_resident.engine.scenarios.scenario import Scenario
from mstar_resident.engine.scenarios.world import World
from mstar_resident.engine.toy import ToyModel


class OffByKnob(Scenario):
    """The same traffic through all three arms."""

    name, text = (
        "off_by_knob",
        "knob off: no planner, byte-equal to the host-planned arm; the resident arm says the same",
    )
    steps: ClassVar[int] = 100
    planning: Planning = "resident"

    def world(self, rng: random.Random, fault: Fault | None) -> World:
        """Build one arm's engine."""
        pools = {"kv": PoolConfig(8, 200, 256)}
        config = EngineConfig(max_batch=4, max_requests=8, recurrent_states=8, planning=self.planning, pools=pools)
        return self.build(rng, config, ToyModel(recurrent=True), fault)

    def before(self, world: World, step: int) -> None:
        """Come and go; chance does not depend on the arm."""
        if step % 4 == 0 and step < 60:
            world.submit(world.rng.randint(1, 40), world.rng.randint(1, 40), stops=6)

    def run(self, seed: int, steps: int, fault: Fault | None = None) -> Outcome:
        """Run all arms and compare their tokens and the bytes that they left in their pools."""
        outcome = Outcome(self.name)
        worlds: dict[Planning, World] = {}
        for planning in ("off", "host", "resident"):
            self.planning = planning
            worlds[planning] = self.world(random.Random(f"{self.name} {seed}"), fault)
            self.play(worlds[planning], steps, outcome)
        wrong = [f"planning {arm} built a planner" for arm in ("off", "host") if worlds[arm].engine.planner is not None]
        for arm in ("host", "resident"):
            wrong += [f"{arm}, {difference}" for difference in _differences(worlds["off"], worlds[arm])]
        outcome.note("arms", wrong)
        return outcome


def _differences(off: World, other: World) -> list[str]:
    """Compare two arms' outputs, and their pools apart from the sinks, which padding writes to."""
    if len(off.requests) != len(other.requests):  # a run that a fault cut short
        return [f"expected {len(off.requests)} requests, got {len(other.requests)}"]
    wrong = [
        f"{mine.id}: expected {mine.outputs}, got {theirs.outputs}"
        for mine, theirs in zip(off.requests, other.requests, strict=True)
        if mine.outputs != theirs.outputs or mine.reason != theirs.reason
    ]
    for name, pool in off.engine.node.kv.items():
        if not torch.equal(pool[:, 1:], other.engine.node.kv[name][:, 1:]):
            wrong.append(f"pool {name} holds other bytes")
    mine, theirs = off.engine.node.recurrent, other.engine.node.recurrent
    if mine is not None and theirs is not None and not torch.equal(mine.ssm[:, 1:], theirs.ssm[:, 1:]):
        wrong.append("the recurrent pool holds other bytes")
    return wrong
