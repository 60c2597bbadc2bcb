"""The runs of the GPU soak: what each asks of the engine, and what must have happened by its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mstar_resident.engine.config import PoolConfig
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.request import Request, State


class Traffic:
    """Keep an engine busy with random requests.

    Attributes:
        requests: all that were submitted.
    """

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine, self.draw = engine, np.random.default_rng(seed)
        self.requests: list[Request] = []
        self.live: list[Request] = []

    def fill(self, count: int, prompt: tuple[int, int], new: tuple[int, int], **more: Any) -> None:
        """Submit requests until ``count`` are not over; lengths are drawn from least to most, both included."""
        self.live = [request for request in self.live if request.state is not State.DONE]
        while len(self.live) < count:
            self.submit(self.between(*prompt), self.between(*new), **more)

    def submit(self, prompt: int, new: int, **more: Any) -> Request:
        """Submit one request of random tokens."""
        tokens = self.draw.integers(1, self.engine.model.vocab_size, prompt)
        request = Request(str(len(self.requests)), tokens, new, **more)
        self.engine.add(request)
        self.requests.append(request)
        self.live.append(request)
        return request

    def between(self, least: int, most: int) -> int:
        """Draw an int."""
        return int(self.draw.integers(least, most + 1))


@dataclass(frozen=True, slots=True)
class Run:
    """Describe a run: rows of a step, the engine's sizes, what comes in before each step, what must have happened.

    ``least`` is a share of the steps, per counter: 0.04 refusals in 6,000 steps are 240.
    """

    text: str
    rows: int
    before: Callable[[Traffic, int], None]
    config: Mapping[str, Any] = field(default_factory=dict)
    pool: PoolConfig = field(default_factory=lambda: PoolConfig(16, 8192, 2048))
    least: Mapping[str, float] = field(default_factory=dict)
    most: Mapping[str, int] = field(default_factory=dict)


def chunks(traffic: Traffic, rows: int) -> None:
    """Prompts of three and more chunks."""
    traffic.fill(rows + 8, (420, 700), (400, 900))


def few_pages(traffic: Traffic, rows: int) -> None:
    """More streams than the pool holds."""
    traffic.fill(rows + 4, (20, 90), (60, 200))


def turns(traffic: Traffic, rows: int) -> None:
    """Eight requests for each row, in turns."""
    traffic.fill(8 * rows, (5, 30), (100, 400))


def many(traffic: Traffic, rows: int) -> None:
    """Twice as many requests as rows."""
    traffic.fill(2 * rows, (5, 40), (100, 300))


def storm(traffic: Traffic, rows: int) -> None:
    """Abort 24 and submit 16 now and then, whatever step is in flight."""
    if not traffic.requests or len(traffic.engine.scheduler.live) < 8 or traffic.draw.random() < 0.01:
        for request in [request for request in traffic.live if request.state is not State.DONE][:24]:
            traffic.engine.abort(request)
        traffic.fill(0, (1, 1), (1, 1))
        for _ in range(max(16, 40 - len(traffic.live))):
            traffic.submit(traffic.between(5, 60), traffic.between(40, 300))


def images(traffic: Traffic, rows: int) -> None:
    """Prompts whose positions advance by less than their tokens."""
    traffic.fill(0, (1, 1), (1, 1))
    while len(traffic.live) < rows:
        text, image = traffic.between(5, 40), traffic.between(64, 300)
        side = max(1, int(image**0.5))
        positions = np.concatenate([np.arange(text), text + np.arange(image) % side])
        traffic.submit(text + image, traffic.between(100, 300), positions=positions)


def alike(traffic: Traffic, rows: int) -> None:
    """The same 32 prompts again and again, eight of each beginning; one round ends before the next comes in."""
    if any(request.state is not State.DONE for request in traffic.requests):
        return
    beginnings = np.random.default_rng(7).integers(1, traffic.engine.model.vocab_size, (4, 200))
    for number in range(32):
        ending = np.random.default_rng(number).integers(1, traffic.engine.model.vocab_size, 1 + number)
        tokens = np.concatenate([beginnings[number % 4], ending])
        request = Request(str(len(traffic.requests)), tokens, 128)
        traffic.engine.add(request)
        traffic.requests.append(request)


def spoken(traffic: Traffic, rows: int) -> None:
    """Short answers over contexts of any length, as codes of a seeded decoder."""
    traffic.fill(0, (1, 1), (1, 1))
    while len(traffic.live) < rows:
        context = traffic.draw.integers(0, 1000, traffic.between(200, 1500))
        traffic.submit(traffic.between(1, 8), traffic.between(40, 300), context=context)


RUNS = {
    "chunked_prefill": Run("prompts of three and more chunks beside decoding rows", 24, chunks),
    "kv_pressure": Run(
        "few pages: refused reservations, offload, reload",
        16,
        few_pages,
        pool=PoolConfig(16, 110, 512),
        config={"least_resident": 0.5},
        least={"refused": 0.04, "offloads": 0.05, "reloads": 0.04},
    ),
    "slot_pressure": Run(
        "captures capped at 8 rows, in turns: rows displaced at every step",
        8,
        turns,
        config={"order": "turns", "max_requests": 64},
        least={"displaced": 7.0},
    ),
    "wide": Run(
        "twice as many requests as the widest capture",
        128,
        many,
        config={"max_requests": 256, "token_budget": 2048},
        pool=PoolConfig(16, 16384, 2048),
        most={"displaced": 0},
    ),
    "abort_storm": Run("24 dropped, 16 fresh, over and over", 32, storm, least={"aborted": 0.05}),
    "images": Run("positions that lag behind lengths", 16, images),
    "prefix_off": Run("the same prompts again, each filled anew", 16, alike, config={"max_requests": 32}),
    "prefix_on": Run(
        "the same prompts again, their full pages shared",
        16,
        alike,
        config={"max_requests": 32, "prefix_cache": True},
        least={"prefix_pages": 0.1},
    ),
    "whisper": Run(
        "two pools, one of them read-only", 32, spoken, pool=PoolConfig(128, 64 * 13, 1536), config={"max_requests": 64}
    ),
}
