"""Scenarios of other pools than one that appends: two, read-only, none, planner-owned, shared prefixes."""

from __future__ import annotations

import random

import numpy as np

from mstar_resident.engine.config import EngineConfig, PoolConfig
from mstar_resident.engine.pages import Ints
from mstar_resident.engine.scenarios.faults import Fault
from mstar_resident.engine.scenarios.scenario import Scenario
from mstar_resident.engine.scenarios.world import World
from mstar_resident.engine.toy import ToyModel


class TwoPools(Scenario):
    """Two appending pools with different page sizes."""

    name, text = (
        "two_pools",
        "two appending pools of pages of 4 and 16 tokens, each with lengths and crossings of its own",
    )

    def world(self, rng: random.Random, fault: Fault | None) -> World:
        """Build an engine with both."""
        pools = {"near": PoolConfig(4, 400, 256), "far": PoolConfig(16, 100, 512)}
        config = EngineConfig(max_batch=6, max_requests=10, pools=pools)
        return self.build(rng, config, ToyModel(append=("near", "far")), fault)

    def before(self, world: World, step: int) -> None:
        """Come and go."""
        if len(world.live) < 4 or (len(world.live) < 9 and world.rng.random() < 0.15):
            world.submit(world.rng.randint(1, 60), world.rng.randint(5, 80), stops=4)


class ReadOnlyPool(Scenario):
    """A context that decode only reads, beside an appending pool."""

    name, text = "read_only_pool", "a read-only context beside an appending pool: gathered, never advanced or crossed"

    def world(self, rng: random.Random, fault: Fault | None) -> World:
        """Build an engine with both."""
        pools = {"self": PoolConfig(4, 300, 256), "context": PoolConfig(16, 64, 128)}
        config = EngineConfig(max_batch=6, max_requests=8, pools=pools)
        return self.build(rng, config, ToyModel(append=("self",), read_only=("context",)), fault)

    def before(self, world: World, step: int) -> None:
        """Come and go, with contexts of any length."""
        if len(world.live) < 4 or (len(world.live) < 8 and world.rng.random() < 0.1):
            world.submit(world.rng.randint(1, 20), world.rng.randint(5, 80), context=world.rng.randint(1, 128), stops=4)


class NoTable(Scenario):
    """A node whose rows are narrow columns only."""

    name, text = "no_table", "a recurrent model without KV pools: rows of narrow columns, no table, no scatter of pages"

    def world(self, rng: random.Random, fault: Fault | None) -> World:
        """Build an engine without pools."""
        config = EngineConfig(max_batch=4, max_requests=8, recurrent_states=8)
        return self.build(rng, config, ToyModel(append=(), recurrent=True), fault)

    def before(self, world: World, step: int) -> None:
        """Come and go."""
        if len(world.live) < 3 or (len(world.live) < 7 and world.rng.random() < 0.1):
            world.submit(world.rng.randint(1, 30), world.rng.randint(5, 60), stops=4)


class PlannerOwnedPages(Scenario):
    """The planner keeps the page lists and the engine asks."""

    name, text = "planner_owned_pages", "the planner reserves, forks and frees pages; the engine copies its answers"

    def world(self, rng: random.Random, fault: Fault | None) -> World:
        """Build an engine that owns no pages, and whose pool is short at times."""
        config = EngineConfig(
            max_batch=4,
            max_requests=10,
            pages_owner="planner",
            prefix_cache=True,
            pools={"kv": PoolConfig(4, 42, 128)},
        )
        return self.build(rng, config, ToyModel(), fault)

    def before(self, world: World, step: int) -> None:
        """Submit prompts, half of which continue another's beginning."""
        if len(world.live) < 6:
            world.submit(branch(world), world.rng.randint(5, 50), stops=4)

    def happened(self, world: World) -> dict[str, bool]:
        """Forks, and pressure."""
        counters = world.engine.counters
        return {"forked pages": counters.prefix_pages > 5, "offloads": counters.offloads > 0}


class PrefixSharing(Scenario):
    """Prompts that begin alike share sealed pages."""

    name, text = (
        "prefix_sharing",
        "sealed pages of a prompt are shared by those that begin alike, and evicted when short",
    )

    def world(self, rng: random.Random, fault: Fault | None) -> World:
        """Build an engine with a prefix cache that fills its pool."""
        config = EngineConfig(max_batch=6, max_requests=10, prefix_cache=True, pools={"kv": PoolConfig(4, 80, 128)})
        return self.build(rng, config, ToyModel(), fault)

    def before(self, world: World, step: int) -> None:
        """Submit prompts, half of which continue another's beginning."""
        if len(world.live) < 5 or (len(world.live) < 9 and world.rng.random() < 0.1):
            world.submit(branch(world), world.rng.randint(5, 50), stops=4)

    def happened(self, world: World) -> dict[str, bool]:
        """Hits."""
        return {"shared pages": world.engine.counters.prefix_pages > 5}


def branch(world: World) -> Ints:
    """Return a prompt that is new, or that begins as an earlier one did, or that is the same."""
    if not world.requests or world.rng.random() < 0.4:
        return world.tokens(world.rng.randint(1, 40))
    earlier = world.rng.choice(world.live or world.requests[-8:]).prompt  # its pages are here, if it lives
    if world.rng.random() < 0.2:
        return earlier
    kept = earlier[: world.rng.randint(1, len(earlier))]
    return np.concatenate([kept, world.tokens(world.rng.randint(1, 20))])
