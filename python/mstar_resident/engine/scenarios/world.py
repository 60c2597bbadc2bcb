"""A toy engine with its traffic, its oracle and, if asked for, its fault."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import torch

from mstar_resident.engine.config import EngineConfig
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.oracle import Oracle
from mstar_resident.engine.pages import Ints
from mstar_resident.engine.program import Runner
from mstar_resident.engine.request import Request, Sampling, State
from mstar_resident.engine.scenarios.faults import Fault
from mstar_resident.engine.scenarios.hooks import HookRunner
from mstar_resident.engine.scenarios.watch import Watch
from mstar_resident.engine.toy import ToyModel, ToySampler


class World:
    """Drive one engine and remember what was asked of it.

    Attributes:
        rng: the only source of chance.
        watch: what a resident run is held to besides its rows; None without a planner.
        requests: every request ever submitted.
    """

    def __init__(self, rng: random.Random, config: EngineConfig, model: ToyModel, fault: Fault | None = None) -> None:
        self.rng = rng
        self.model = model
        self.fault = fault
        config = replace(config, check=True, debug=True, dtype=torch.int64, state_dtype=torch.int64)
        self.engine = Engine(
            model,
            config,
            sampler=lambda seats, device: ToySampler(model.vocab_size, seats, device),
            wrap_runner=self._hook,
        )
        self.engine.capture()
        self.requests: list[Request] = []
        self._turns: dict[Request, list[tuple[Ints, int]]] = {}  # tokens of each turn, outputs before it
        planner = self.engine.planner
        self.watch = Watch(self.engine, planner) if planner is not None else None
        if fault is not None and planner is not None:
            self.runner.flushed = lambda view: fault.flushed(planner, view)
            self.runner.ran = lambda view: fault.ran(planner, view)

    @property
    def live(self) -> list[Request]:
        """Requests that are not over."""
        return [request for request in self.requests if request.state is not State.DONE]

    @property
    def idle(self) -> list[Request]:
        """Requests that wait for a next turn."""
        return [request for request in self.requests if request.state is State.IDLE]

    def tokens(self, count: int) -> Ints:
        """Return random tokens."""
        return np.array([self.rng.randrange(self.model.vocab_size) for _ in range(count)], dtype=np.int64)

    def submit(
        self,
        prompt: int | Ints,
        max_new: int,
        *,
        positions: Ints | None = None,
        context: int = 0,
        keep: bool = False,
        stops: int = 0,
    ) -> Request:
        """Submit a request: its prompt, or how many random tokens it has; ``stops`` of the vocabulary end it."""
        tokens = self.tokens(prompt) if isinstance(prompt, int) else prompt
        request = Request(
            f"r{len(self.requests)}",
            tokens,
            max_new,
            Sampling(temperature=self.rng.choice((0.0, 0.5, 1.0)), seed=self.rng.randrange(2**31)),
            stop=frozenset(self.rng.sample(range(self.model.vocab_size), stops)),
            positions=positions,
            context=self.tokens(context) if context else None,
            keep=keep,
        )
        self.engine.add(request)
        self.requests.append(request)
        self._turns[request] = [(tokens, 0)]
        return request

    def extend(self, request: Request, count: int, max_new: int) -> None:
        """Give an idle request its next turn."""
        tokens = self.tokens(count)
        self.engine.extend(request, tokens, max_new)
        self._turns[request].append((tokens, len(request.outputs)))

    def step(self) -> None:
        """Run one step of the engine."""
        if self.fault is not None:
            self.fault.between(self.engine)
        self.engine.step()

    def drain(self) -> None:
        """Run until nothing is left to do; what turns idle is ended, since others may wait for what it holds."""
        for _ in range(20_000):
            for request in self.idle:
                self.engine.abort(request, "closed")
            self.step()
            if not self.engine.busy and not self.idle:
                break

    def wrong(self) -> dict[str, list[str]]:
        """Return, by what shows it, all that differs from what a run must be."""
        watched = {} if self.watch is None else {"cost": self.watch.cost, "addresses": self.watch.addresses}
        return {"tokens": self._wrong_outputs(), "left over": self._left_over(), **watched}

    def _wrong_outputs(self) -> list[str]:
        spec = self.model.kv_spec()
        append = sum(entry.span for entry in spec)
        oracle = Oracle(append, len(spec) - append, self.model.recurrent_spec() is not None, self.model.vocab_size)
        wrong = []
        for request in self.requests:
            turns = self._turns[request]
            ends = [before for _, before in turns[1:]] + [len(request.outputs)]
            counts = [end - before for end, (_, before) in zip(ends, turns, strict=True)]
            expected = oracle.outputs(request, [tokens.tolist() for tokens, _ in turns], counts)
            for place, (want, got) in enumerate(zip(expected, request.outputs, strict=True)):
                if want != got:
                    wrong.append(f"token {place} of {request.id}: expected {want}, got {got}")
            early = [
                o for o in set(range(len(expected))) - {end - 1 for end in ends} if request.outputs[o] in request.stop
            ]
            if early or len(request.outputs) > request.max_new:
                wrong.append(f"{request.id} went on after it should have stopped")
            if request.reason == "length" and len(request.outputs) != request.max_new:
                wrong.append(f"{request.id} stopped after {len(request.outputs)} of {request.max_new} tokens")
        return wrong

    def _left_over(self) -> list[str]:
        engine = self.engine
        if self.live:
            return [f"{request.id} never ended: {request.state.value}" for request in self.live]
        if engine.memory.prefix is not None:
            engine.memory.prefix.evict(engine.memory.prefix.evictable())
        left = {f"pages of {name}": e.pool.pages - engine.memory.free(e) for name, e in engine.streams.items()}
        left["seats"] = engine.config.max_requests - engine.seats.free
        left["recurrent indices"] = engine.config.recurrent_states - engine.admission.states.free
        engine.memory.check()
        if engine.planner is not None:
            engine.planner.check()
            stats = engine.planner.stats()
            left |= {"held slots": stats.slots_held, "cooling slots": stats.slots_cooling}
        if self.watch is not None:
            left["handles"] = self.watch.open_handles()
        return [f"{count} {what} were never given back" for what, count in left.items() if count]

    def _hook(self, runner: Runner) -> HookRunner:
        self.runner = HookRunner(runner)
        return self.runner
