"""Scenarios where something is short: slots, pages, recurrent states."""

from __future__ import annotations

import random

from mstar_resident.engine.config import EngineConfig, PoolConfig
from mstar_resident.engine.scenarios.faults import Fault
from mstar_resident.engine.scenarios.scenario import Scenario
from mstar_resident.engine.scenarios.world import World
from mstar_resident.engine.toy import ToyModel


class SlotPressure(Scenario):
    """Three times as many requests as slots, taking turns."""

    name, text = "slot_pressure", "captures capped at 4 rows, 24 requests take turns: rows are displaced at every step"

    def world(self, rng: random.Random, fault: Fault | None) -> World:
        """Build an engine of 8 slots."""
        config = EngineConfig(
            max_batch=4, max_requests=24, order="turns", token_budget=400, pools={"kv": PoolConfig(8, 600, 256)}
        )
        return self.build(rng, config, ToyModel(), fault)

    def before(self, world: World, step: int) -> None:
        """Keep all seats taken."""
        while len(world.live) < 24:
            world.submit(world.rng.randint(1, 40), world.rng.randint(10, 60), stops=3)

    def happened(self, world: World) -> dict[str, bool]:
        """Rows displaced at nearly every step."""
        planner = world.engine.planner
        steps = world.engine.counters.resident_steps
        return {"displaced rows": planner is not None and planner.stats().displaced > 2 * steps}


class MemoryPressure(Scenario):
    """Ten pages for six requests."""

    name, text = "memory_pressure", "a pool of 10 pages: cold requests go to host memory and come back on other pages"
    recurrent = False

    def world(self, rng: random.Random, fault: Fault | None) -> World:
        """Build an engine whose pool holds about two requests."""
        config = EngineConfig(max_batch=4, max_requests=6, recurrent_states=6, pools={"kv": PoolConfig(4, 10, 40)})
        return self.build(rng, config, ToyModel(recurrent=self.recurrent), fault)

    def before(self, world: World, step: int) -> None:
        """Keep five requests going."""
        while len(world.live) < 5:
            world.submit(world.rng.randint(1, 12), world.rng.randint(4, 24), stops=3)

    def happened(self, world: World) -> dict[str, bool]:
        """Refusals, and ways there and back."""
        counters = world.engine.counters
        return {
            "refused reservations": counters.refused > 10,
            "offloads": counters.offloads > 5,
            "reloads": counters.reloads > 5,
        }


class RecurrentMemoryPressure(MemoryPressure):
    """The same with recurrent states, which travel along."""

    name, text = (
        "recurrent_memory_pressure",
        "recurrent states are offloaded with their pages and reload at another index",
    )
    recurrent = True


class RefusedPages(Scenario):
    """Two pools, the second of which is short."""

    name, text = (
        "refused_pages",
        "the second pool refuses: what the first gave is rolled back, with the stage naming it",
    )

    def world(self, rng: random.Random, fault: Fault | None) -> World:
        """Build an engine whose second pool is the tight one."""
        pools = {"wide": PoolConfig(2, 200, 80), "tight": PoolConfig(4, 16, 64)}
        config = EngineConfig(max_batch=4, max_requests=6, pools=pools)
        return self.build(rng, config, ToyModel(append=("wide", "tight")), fault)

    def before(self, world: World, step: int) -> None:
        """Keep five requests going."""
        while len(world.live) < 5:
            world.submit(world.rng.randint(1, 16), world.rng.randint(6, 40))

    def happened(self, world: World) -> dict[str, bool]:
        """Refusals, and what they lead to."""
        counters = world.engine.counters
        return {"refused reservations": counters.refused > 10, "offloads": counters.offloads > 3}


class RecurrentStates(Scenario):
    """Fewer recurrent states than seats."""

    name, text = (
        "recurrent",
        "recurrent indices are reused at once, a full pool holds requests back, a stop refills a turn",
    )

    def world(self, rng: random.Random, fault: Fault | None) -> World:
        """Build an engine of four states."""
        config = EngineConfig(max_batch=4, max_requests=8, recurrent_states=4, pools={"kv": PoolConfig(8, 300, 512)})
        return self.build(rng, config, ToyModel(recurrent=True), fault)

    def before(self, world: World, step: int) -> None:
        """Keep requests waiting, some of them sessions."""
        for request in world.idle:
            if world.rng.random() < 0.5:
                world.engine.abort(request, "closed")
            elif len(request.prompt) + len(request.outputs) < 300:
                world.extend(request, world.rng.randint(1, 10), world.rng.randint(5, 30))
        while len(world.live) < 7:
            keep = world.rng.random() < 0.4
            world.submit(world.rng.randint(1, 90), world.rng.randint(2, 40), keep=keep, stops=20)

    def happened(self, world: World) -> dict[str, bool]:
        """Reuse."""
        return {"reused recurrent indices": len(world.requests) > 12}
