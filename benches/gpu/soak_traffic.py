"""Requests for the GPU soak: a function of the seed and of the engine's steps, never of time."""

from __future__ import annotations

from typing import Any

import numpy as np

from mstar_resident.engine.engine import Engine
from mstar_resident.engine.request import Request, State


class Traffic:
    """Keep an engine busy with random requests.

    Attributes:
        requests: all that were submitted.
        live: those that are not over.
        finished: per request that is over, the engine's steps when that was seen.
        fresh: those that came in a storm.
        storms: storms so far.
        over: whether nothing more will come.
    """

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine, self.draw = engine, np.random.default_rng(seed)
        self.requests: list[Request] = []
        self.live: list[Request] = []
        self.finished: dict[Request, int] = {}
        self.fresh: set[Request] = set()
        self.storms = 0
        self.over = False

    def look(self) -> None:
        """See what is over."""
        for request in self.live:
            if request.state is State.DONE:
                self.finished[request] = self.engine.counters.steps
        self.live = [request for request in self.live if request.state is not State.DONE]

    def join(self, count: int, prompt: tuple[int, int], new: tuple[int, int], group: int = 1) -> None:
        """Submit requests until ``count`` are live, in groups that end together, so that few steps are mixed ones.

        Lengths are drawn from least to most, both included.
        """
        while len(self.live) + group <= count:
            answer = self.between(*new)
            for _ in range(group):
                self.submit(self.between(*prompt), answer)

    def submit(self, prompt: int, new: int, **more: Any) -> Request:
        """Submit one request of random tokens."""
        return self.ask(self.draw.integers(1, self.engine.model.vocab_size, prompt), new, **more)

    def ask(self, tokens: np.ndarray, new: int, **more: Any) -> Request:
        """Submit one request."""
        request = Request(str(len(self.requests)), tokens, new, **more)
        self.engine.add(request)
        self.requests.append(request)
        self.live.append(request)
        return request

    def between(self, least: int, most: int) -> int:
        """Draw an int."""
        return int(self.draw.integers(least, most + 1))
