"""Scenarios of attention that needs a host plan, beside resident rows."""

from __future__ import annotations

import random
from typing import ClassVar

from mstar_resident.attention.decode_plan import PlanMode
from mstar_resident.engine.config import EngineConfig, PoolConfig
from mstar_resident.engine.request import State
from mstar_resident.engine.scenarios.faults import Fault
from mstar_resident.engine.scenarios.scenario import Scenario
from mstar_resident.engine.scenarios.world import World
from mstar_resident.engine.toy import ToyModel


class PlannedAttention(Scenario):
    """Two appending pools and a context; attention over two of them reads pages through plans that are kept."""

    name, text = (
        "planned_attention",
        "attention plans are kept between resident steps: pages spliced in, dropped by rewinds, ends and reloads",
    )
    #: ``verify`` compares every plan with one built row by row; the tokens alone tell as well.
    attention_plan: PlanMode = "verify"
    pages: ClassVar[int] = 48

    def world(self, rng: random.Random, fault: Fault | None) -> World:
        """Build an engine whose pool of small pages is short at times."""
        pools = {
            "near": PoolConfig(4, self.pages, 128),
            "far": PoolConfig(16, 100, 256),
            "context": PoolConfig(16, 64, 128),
        }
        config = EngineConfig(max_batch=6, max_requests=9, pools=pools, attention_plan=self.attention_plan)
        model = ToyModel(("near", "far"), ("context",), host_plan=("near", "context"))
        return self.build(rng, config, model, fault)

    def before(self, world: World, step: int) -> None:
        """Come and go, stop and go on, so that pages change hands."""
        rng, engine = world.rng, world.engine
        for request in world.idle:
            if len(request.tokens()) > 90 or rng.random() < 0.3:
                engine.abort(request, "closed")
            else:
                world.extend(request, rng.randint(1, 8), rng.randint(4, 20))
        if len(world.live) < 5 or (len(world.live) < 9 and rng.random() < 0.1):
            context = rng.randint(1, 100)
            world.submit(rng.randint(1, 30), rng.randint(4, 40), context=context, keep=rng.random() < 0.6, stops=25)
        decoding = [request for request in world.live if request.state is State.DECODE]
        if decoding and rng.random() < 0.03:
            engine.abort(rng.choice(decoding))

    def happened(self, world: World) -> dict[str, bool]:
        """Plans of every kind, under pressure."""
        caches = world.engine.arm.plans.caches
        return {
            "plans kept": caches["near"].reused > 3,
            "pages spliced in": caches["near"].spliced > 10,
            "plans dropped": caches["near"].built > 20,
            "a context's plans kept": caches["context"].reused > 10 and not caches["context"].spliced,
            "offloads": world.engine.counters.offloads > 0,
        }
