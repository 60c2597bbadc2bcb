"""The scenario for long runs: everything at once, on four rows."""

from __future__ import annotations

import random

from mstar_resident.engine.config import EngineConfig, PoolConfig
from mstar_resident.engine.scenarios.faults import Fault
from mstar_resident.engine.scenarios.life import StepFailureError
from mstar_resident.engine.scenarios.scenario import Scenario
from mstar_resident.engine.scenarios.traffic import image_positions
from mstar_resident.engine.scenarios.world import World
from mstar_resident.engine.toy import ToyModel


class RandomMix(Scenario):
    """Twenty requests on four rows: any shape of model, any event, any order, all drawn from the seed."""

    name, text = "random", "4 rows, 20 requests: joins, turns, aborts, failures, offloads and mixed steps at random"
    steps = 300

    def world(self, rng: random.Random, fault: Fault | None) -> World:
        """Draw a model and its sizes."""
        append = rng.choice((("kv",), ("kv",), ("near", "far")))
        read_only = rng.choice(((), (), ("context",)))
        short = rng.random() < 0.4
        pools = {
            name: PoolConfig(rng.choice((2, 4, 8, 16)), rng.randint(40, 60) if short else 800, 320) for name in append
        }
        pools |= {name: PoolConfig(rng.choice((4, 16)), 400, 64) for name in read_only}
        config = EngineConfig(
            max_batch=4,
            max_requests=20,
            recurrent_states=rng.choice((6, 20)),
            token_budget=rng.choice((32, 200)),
            min_chunk=rng.choice((8, 32)),
            order=rng.choice(("arrival", "turns")),
            lookahead=rng.random() < 0.9,
            prefix_cache=rng.random() < 0.3,
            pages_owner=rng.choice(("engine", "engine", "planner")),
            least_resident=0.0 if fault else 0.95,
            pools=pools,
        )
        world = self.build(rng, config, ToyModel(append, read_only, recurrent=rng.random() < 0.4), fault)
        #: What fits the smallest pool, with a token to spare.
        self._most = min([entry.max_tokens for entry in world.engine.streams.values() if entry.span]) - 1

        def in_flight(phase: str) -> None:
            chance = rng.random()
            if chance < 0.005:
                raise StepFailureError(phase)
            if chance < 0.01 and world.live:
                world.engine.abort(rng.choice(world.live))

        world.runner.in_flight = in_flight
        return world

    def before(self, world: World, step: int) -> None:
        """Submit up to twenty requests at once, and disturb them."""
        rng, engine = world.rng, world.engine
        for request in world.idle:
            room = self._most - len(request.tokens())
            if room < 4 or rng.random() < 0.3:
                engine.abort(request, "closed")
            else:
                tokens = rng.randint(1, min(12, room - 1))
                world.extend(request, tokens, rng.randint(1, min(20, room - tokens)))
        if len(world.live) < 20 and rng.random() < 0.3:
            positions = image_positions(rng) if rng.random() < 0.2 else None
            if positions is not None and len(positions) + 2 > self._most:
                positions = None
            prompt = len(positions) if positions is not None else rng.randint(1, min(60, self._most - 2))
            world.submit(
                prompt,
                rng.randint(1, min(60, self._most - prompt)),
                positions=positions,
                context=rng.randint(1, 64) if "context" in engine.streams else 0,
                keep=rng.random() < 0.3,
                stops=rng.choice((0, 5, 30)),
            )
        if world.live and rng.random() < 0.03:
            engine.abort(rng.choice(world.live))
