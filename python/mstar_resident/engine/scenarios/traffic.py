"""Scenarios of ordinary traffic: rows stay, cross, join, leave; prompts in chunks; images."""

from __future__ import annotations

import random

import numpy as np

from mstar_resident.engine.config import EngineConfig, PoolConfig
from mstar_resident.engine.pages import Ints
from mstar_resident.engine.scenarios.faults import Fault
from mstar_resident.engine.scenarios.scenario import Scenario
from mstar_resident.engine.scenarios.world import World
from mstar_resident.engine.toy import ToyModel


class Steady(Scenario):
    """Four rows decode for the whole run."""

    name, text = "steady", "four rows decode undisturbed; nearly every stage made ahead is promoted"

    def world(self, rng: random.Random, fault: Fault | None) -> World:
        """Build an engine with pages of 16."""
        config = EngineConfig(max_batch=4, max_requests=8, pools={"kv": PoolConfig(16, 512, 2048)})
        return self.build(rng, config, ToyModel(), fault)

    def before(self, world: World, step: int) -> None:
        """Keep four requests going."""
        if len(world.live) < 4:
            world.submit(world.rng.randint(3, 90), 160)

    def happened(self, world: World) -> dict[str, bool]:
        """Promotions, and next to no whole rows."""
        counters = world.engine.counters
        return {"promoted stages": counters.promoted > 0.9 * counters.resident_steps}


class RaggedCrossings(Scenario):
    """Rows of different lengths on small pages."""

    name, text = "ragged_crossings", "rows of different lengths cross into new pages at different steps"

    def world(self, rng: random.Random, fault: Fault | None) -> World:
        """Build an engine with pages of 4."""
        config = EngineConfig(max_batch=8, max_requests=8, pools={"kv": PoolConfig(4, 2000, 1024)})
        return self.build(rng, config, ToyModel(), fault)

    def before(self, world: World, step: int) -> None:
        """Keep seven requests going, so that the bucket is padded."""
        while len(world.live) < 7:
            world.submit(world.rng.randint(1, 60), world.rng.randint(60, 300))

    def happened(self, world: World) -> dict[str, bool]:
        """About a quarter of all rows cross in each step."""
        rows, planner = world.engine.counters.rows_checked, world.engine.planner
        return {"crossings": planner is not None and planner.stats().crossings > rows / 6}


class JoinLeave(Scenario):
    """Requests come and go all the time."""

    name, text = "join_leave", "rows join and leave every few steps, by length and by stop tokens"

    def world(self, rng: random.Random, fault: Fault | None) -> World:
        """Build an engine with pages of 8."""
        config = EngineConfig(max_batch=8, max_requests=16, pools={"kv": PoolConfig(8, 400, 512)})
        return self.build(rng, config, ToyModel(), fault)

    def before(self, world: World, step: int) -> None:
        """Submit a request every few steps."""
        if len(world.live) < 3 or world.rng.random() < 0.2:
            world.submit(world.rng.randint(1, 40), world.rng.randint(1, 40), stops=12)

    def happened(self, world: World) -> dict[str, bool]:
        """Both kinds of end."""
        reasons = {request.reason for request in world.requests}
        return {"ends by length": "length" in reasons, "ends by a stop token": "stop" in reasons}


class ChunkedPrefill(Scenario):
    """Long prompts under the token budget."""

    name, text = "chunked_prefill", "prompts longer than the token budget fill in several host-planned chunks"

    def world(self, rng: random.Random, fault: Fault | None) -> World:
        """Build an engine with the usual budget."""
        config = EngineConfig(max_batch=4, max_requests=8, pools={"kv": PoolConfig(16, 512, 1024)})
        return self.build(rng, config, ToyModel(), fault)

    def before(self, world: World, step: int) -> None:
        """Submit long prompts now and then."""
        if len(world.live) < 2 or (len(world.live) < 6 and world.rng.random() < 0.08):
            world.submit(world.rng.randint(150, 700), world.rng.randint(20, 80))

    def happened(self, world: World) -> dict[str, bool]:
        """Rows that host steps moved while they were resident."""
        return {"host-planned steps": world.engine.counters.steps > world.engine.counters.decode_steps + 10}


class MixedSteps(Scenario):
    """Host-planned steps between resident ones, one or several in a row."""

    name, text = "mixed_steps", "mixed steps move resident rows, by one token or across a page, once or several times"

    def world(self, rng: random.Random, fault: Fault | None) -> World:
        """Build an engine whose budget lets few prompt tokens into a step."""
        config = EngineConfig(
            max_batch=8, max_requests=16, token_budget=24, min_chunk=8, pools={"kv": PoolConfig(4, 800, 512)}
        )
        return self.build(rng, config, ToyModel(), fault)

    def before(self, world: World, step: int) -> None:
        """Submit prompts of one to several chunks."""
        if len(world.live) < 3 or (len(world.live) < 12 and world.rng.random() < 0.25):
            world.submit(world.rng.randint(2, 70), world.rng.randint(10, 60))

    def happened(self, world: World) -> dict[str, bool]:
        """Rows rewritten because a host step moved them."""
        planner = world.engine.planner
        return {"moved rows": planner is not None and planner.stats().moved_rows + planner.stats().whole_rows > 20}


class ImagePositions(Scenario):
    """Prompts whose images advance positions by less than their tokens."""

    name, text = "image_positions", "images make position offsets negative; chunks never change an offset"

    def world(self, rng: random.Random, fault: Fault | None) -> World:
        """Build an engine with the usual budget."""
        config = EngineConfig(max_batch=4, max_requests=8, pools={"kv": PoolConfig(16, 512, 1024)})
        return self.build(rng, config, ToyModel(), fault)

    def before(self, world: World, step: int) -> None:
        """Submit prompts with images, and some without."""
        if len(world.live) < 3 or (len(world.live) < 7 and world.rng.random() < 0.1):
            positions = image_positions(world.rng) if world.rng.random() < 0.8 else None
            prompt = len(positions) if positions is not None else world.rng.randint(2, 60)
            world.submit(prompt, world.rng.randint(5, 60), positions=positions)

    def happened(self, world: World) -> dict[str, bool]:
        """Offsets below zero."""
        return {"negative offsets": any(request.offset < 0 for request in world.requests)}


def image_positions(rng: random.Random) -> Ints:
    """Return positions of text, an image and text again; the image's tokens share a few positions."""
    before, image, after = rng.randint(1, 20), rng.randint(16, 300), rng.randint(1, 20)
    side = max(1, int(image**0.5))
    parts = [
        np.arange(before),
        before + np.arange(image) * side // image,
        before + side + np.arange(after),
    ]
    return np.concatenate(parts).astype(np.int64)
