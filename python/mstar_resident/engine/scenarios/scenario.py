"""A named, random, seeded course of events."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import ClassVar

from mstar_resident.engine.config import EngineConfig
from mstar_resident.engine.counters import ResidencyError
from mstar_resident.engine.scenarios.faults import Fault
from mstar_resident.engine.scenarios.outcome import Outcome
from mstar_resident.engine.scenarios.world import World
from mstar_resident.engine.toy import ToyModel


class Scenario:
    """Make traffic for a toy engine; what it is for must happen in a run of ``steps``."""

    name: ClassVar[str]
    text: ClassVar[str]
    steps: ClassVar[int] = 150

    def __init__(self, device: str = "cpu") -> None:
        self._device = device

    def world(self, rng: random.Random, fault: Fault | None) -> World:
        """Build the engine."""
        raise NotImplementedError

    def before(self, world: World, step: int) -> None:
        """Act before a step."""
        raise NotImplementedError

    def happened(self, world: World) -> dict[str, bool]:
        """Say, by what it is, whether what the scenario is for happened."""
        return {}

    def run(self, seed: int, steps: int, fault: Fault | None = None) -> Outcome:
        """Run the scenario, then until nothing is left to do, and compare every token with the oracle."""
        outcome = Outcome(self.name)
        world = self.world(random.Random(f"{self.name} {seed}"), fault)
        self.play(world, steps, outcome)
        if fault is None and steps >= self.steps:
            outcome.unmet += [what for what, happened in self.happened(world).items() if not happened]
        return outcome

    def build(self, rng: random.Random, config: EngineConfig, model: ToyModel, fault: Fault | None) -> World:
        """Build an engine on the scenario's device; on a GPU its decode steps are captured."""
        return World(rng, replace(config, device=self._device), model, fault)

    def play(self, world: World, steps: int, outcome: Outcome) -> None:
        """Run one world to its end and add what came of it."""
        found: dict[str, list[str]] = {}
        try:
            for step in range(steps):
                self.before(world, step)
                world.step()
            world.drain()
            world.engine.require_residency()
            found = world.wrong()
        except ResidencyError as error:
            found = {"residency": [str(error)]}
        except Exception as error:
            # A step that runs on broken cells may raise before a check is made.
            if world.fault is None or not world.fault.done:
                raise
            found = {type(error).__name__: [f"a step raised {type(error).__name__}: {error}"]}
        outcome.add(world.engine, found)
