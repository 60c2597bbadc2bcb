"""Scenarios of requests' lives: aborts, recycled handles, stops found too late, steps that fail."""

from __future__ import annotations

import random

from mstar_resident.engine.config import EngineConfig, PoolConfig
from mstar_resident.engine.request import State
from mstar_resident.engine.scenarios.faults import Fault
from mstar_resident.engine.scenarios.scenario import Scenario
from mstar_resident.engine.scenarios.world import World
from mstar_resident.engine.toy import ToyModel


class Aborts(Scenario):
    """Requests end at any moment, also while a step that reads them is in flight."""

    name, text = "aborts", "requests are aborted between steps, before a replay, after its prologue, before its commit"

    def world(self, rng: random.Random, fault: Fault | None) -> World:
        """Build an engine, and abort in flight."""
        config = EngineConfig(max_batch=4, max_requests=12, pools={"kv": PoolConfig(4, 400, 256)})
        world = self.build(rng, config, ToyModel(), fault)

        def abort(phase: str) -> None:
            if world.live and rng.random() < 0.03:
                world.engine.abort(rng.choice(world.live))

        world.runner.in_flight = abort
        return world

    def before(self, world: World, step: int) -> None:
        """Submit, and abort now and then."""
        if len(world.live) < 5 or world.rng.random() < 0.2:
            world.submit(world.rng.randint(1, 60), world.rng.randint(5, 60))
        if world.live and world.rng.random() < 0.1:
            world.engine.abort(world.rng.choice(world.live))

    def happened(self, world: World) -> dict[str, bool]:
        """Aborts, and ends that are none."""
        reasons = [request.reason for request in world.requests]
        return {"aborts": reasons.count("abort") > 10, "ends that are no aborts": "length" in reasons}


class AbortStorm(Scenario):
    """Twenty-four requests are dropped at once and sixteen come, three times."""

    name, text = "abort_storm", "24 requests dropped at once, 16 fresh ones, three times"

    def world(self, rng: random.Random, fault: Fault | None) -> World:
        """Build an engine that holds them all."""
        config = EngineConfig(max_batch=16, max_requests=48, pools={"kv": PoolConfig(8, 600, 256)})
        return self.build(rng, config, ToyModel(), fault)

    def before(self, world: World, step: int) -> None:
        """Storm at each quarter of the run."""
        if step == 0:
            for _ in range(44):
                world.submit(world.rng.randint(1, 30), 120)
        if step and step % (self.steps // 4) == 0 and step // (self.steps // 4) <= 3:
            for request in world.rng.sample(world.live, 24):
                world.engine.abort(request)
            for _ in range(16):
                world.submit(world.rng.randint(1, 30), 120)

    def happened(self, world: World) -> dict[str, bool]:
        """All three storms, each of 24."""
        return {"three storms": sum(request.reason == "abort" for request in world.requests) == 3 * 24}


class RecycledHandles(Scenario):
    """Many short requests on few slots."""

    name, text = "recycled_handles", "short requests take the handles of those before, often in the same step"

    def world(self, rng: random.Random, fault: Fault | None) -> World:
        """Build an engine of two rows and three seats."""
        config = EngineConfig(max_batch=2, max_requests=3, pools={"kv": PoolConfig(4, 60, 64)})
        return self.build(rng, config, ToyModel(), fault)

    def before(self, world: World, step: int) -> None:
        """Keep more requests waiting than there are seats."""
        while len(world.live) < 5:
            world.submit(world.rng.randint(1, 6), world.rng.randint(2, 6), stops=10)

    def happened(self, world: World) -> dict[str, bool]:
        """Many more requests than handles."""
        return {"recycled handles": len(world.requests) > 30}


class PreplanAbandoned(Scenario):
    """Stages made ahead that never run, or run with other rows."""

    name, text = "preplan_abandoned", "joins, aborts and rewinds between staging and replay drop the stage made ahead"

    def world(self, rng: random.Random, fault: Fault | None) -> World:
        """Build an engine with pages of 4, so that dropped stages carry crossings."""
        config = EngineConfig(max_batch=6, max_requests=12, pools={"kv": PoolConfig(4, 300, 512)})
        return self.build(rng, config, ToyModel(), fault)

    def before(self, world: World, step: int) -> None:
        """Disturb every third step or so, after the step ahead was staged."""
        chance = world.rng.random()
        decoding = [request for request in world.live if request.state is State.DECODE]
        if len(world.live) < 4 or chance < 0.12:
            world.submit(world.rng.randint(1, 12), world.rng.randint(20, 90))
        elif chance < 0.2 and len(decoding) > 2:
            world.engine.abort(world.rng.choice(decoding))
        elif chance < 0.3 and decoding and world.watch is not None:
            # Somebody else wrote to the stream: its row is stale, whatever was staged.
            world.watch.mark(world.rng.choice(decoding))

    def happened(self, world: World) -> dict[str, bool]:
        """Every fate of a stage made ahead."""
        counters = world.engine.counters
        return {
            "promoted stages": counters.promoted > 0,
            "restaged steps": counters.restaged > 0,
            "abandoned stages": counters.abandoned > 0,
        }


class Overshoot(Scenario):
    """Stops that are read after the next step was launched; the streams live on."""

    name, text = "overshoot", "a stop is read one step late, its overshoot is rewound, and the stream has a next turn"

    def world(self, rng: random.Random, fault: Fault | None) -> World:
        """Build an engine with pages of 4, so that overshoots cross pages."""
        config = EngineConfig(max_batch=6, max_requests=10, pools={"kv": PoolConfig(4, 600, 512)})
        return self.build(rng, config, ToyModel(), fault)

    def before(self, world: World, step: int) -> None:
        """Keep sessions going, turn after turn."""
        for request in world.idle:
            if len(request.prompt) + len(request.outputs) > 350 or world.rng.random() < 0.1:
                world.engine.abort(request, "closed")
            elif world.rng.random() < 0.5:
                world.extend(request, world.rng.randint(1, 10), world.rng.randint(5, 40))
        if len(world.live) < 6:
            world.submit(world.rng.randint(1, 20), world.rng.randint(5, 40), keep=True, stops=40)

    def happened(self, world: World) -> dict[str, bool]:
        """Overshoots, and turns after them."""
        turns = any(request.turn for request in world.requests)
        return {"overshoots": world.engine.counters.overshoot > 5, "next turns": turns}


class StepFailureError(RuntimeError):
    """The failure that the scenario makes."""


class FailedSteps(Scenario):
    """Steps raise between flush and commit."""

    name, text = "failed_steps", "steps raise before the prologue, after it, and after the program, and are run again"
    recurrent = False

    def world(self, rng: random.Random, fault: Fault | None) -> World:
        """Build an engine, and raise in flight."""
        config = EngineConfig(max_batch=6, max_requests=8, recurrent_states=8, pools={"kv": PoolConfig(4, 600, 512)})
        world = self.build(rng, config, ToyModel(recurrent=self.recurrent), fault)

        def fail(phase: str) -> None:
            if rng.random() < 0.03:
                raise StepFailureError(phase)

        world.runner.in_flight = fail
        return world

    def before(self, world: World, step: int) -> None:
        """Keep five requests going."""
        while len(world.live) < 5:
            world.submit(world.rng.randint(1, 30), world.rng.randint(5, 60), stops=5)

    def happened(self, world: World) -> dict[str, bool]:
        """Failures."""
        return {"failed steps": world.engine.counters.failed_steps > 3}


class FailedRecurrentSteps(FailedSteps):
    """Steps raise after they moved a state in place, so that requests are filled anew."""

    name, text = (
        "failed_recurrent_steps",
        "a failed step may have moved a recurrent state: its requests are filled anew",
    )
    recurrent = True

    def happened(self, world: World) -> dict[str, bool]:
        """Failures, and requests filled anew."""
        return super().happened(world) | {"requests filled anew": world.engine.counters.refills > 3}
