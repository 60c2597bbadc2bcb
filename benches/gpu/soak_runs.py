"""The runs of the GPU soak: what each asks of the engine, how long by default, and what must have happened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from soak_traffic import Traffic

from mstar_resident.engine.config import PoolConfig

#: Engine steps from storm to storm, requests that a storm drops, and those that come with it.
STORM_EVERY, DROPPED, FRESH = 64, 24, 16
#: Prompts of a round of the prefix runs.
ALIKE = 32


@dataclass(frozen=True, slots=True)
class Run:
    """Describe a run: the engine's sizes, what comes in before each step, how much, and what must have happened.

    A run ends after ``steps`` resident steps of at least ``full`` rows, or with its traffic where ``steps`` is 0.
    ``least`` is a share of the resident steps, per counter: 0.04 refusals in 6,000 steps are 240.
    """

    text: str
    rows: int
    before: Callable[[Traffic, int], None]
    steps: int
    compare: int
    """Engine steps for which the host-planned arm serves the same requests."""
    seeds: tuple[int, ...] = (0,)
    """Processes side by side, unless told otherwise."""
    full: int = 16
    shape: str = "0.8b"
    config: Mapping[str, Any] = field(default_factory=dict)
    pools: Mapping[str, PoolConfig] = field(default_factory=lambda: {"kv": PoolConfig(16, 8192, 2048)})
    least: Mapping[str, float] = field(default_factory=dict)
    most: Mapping[str, int] = field(default_factory=dict)
    compare_from: int = 0
    """The first request whose answer is compared."""
    chunks: int = 0
    """Prefill steps that every prompt takes at least."""


def chunks(traffic: Traffic, rows: int) -> None:
    """Prompts of three and more chunks."""
    traffic.join(rows + 8, (420, 700), (1000, 1300))


def few_pages(traffic: Traffic, rows: int) -> None:
    """More streams than the pool holds."""
    traffic.join(rows + 4, (20, 90), (60, 200), group=4)


def turns(traffic: Traffic, rows: int) -> None:
    """Eight requests for each row, in turns."""
    traffic.join(8 * rows, (5, 30), (1200, 1900), group=rows)


def many(traffic: Traffic, rows: int) -> None:
    """Twice as many requests as rows, all the time."""
    traffic.join(2 * rows, (5, 40), (600, 900), group=16)


def storm(traffic: Traffic, rows: int) -> None:
    """Drop 24, whatever they do and whatever step is in flight, and submit 16; between storms, long ones come in."""
    at = traffic.engine.counters.steps
    if at >= STORM_EVERY * (traffic.storms + 1) and len(traffic.live) >= DROPPED:
        for number in sorted(traffic.draw.permutation(len(traffic.live))[:DROPPED]):
            traffic.engine.abort(traffic.live[number])
        traffic.look()
        traffic.fresh |= {traffic.submit(traffic.between(5, 60), traffic.between(24, 44)) for _ in range(FRESH)}
        traffic.storms += 1
    elif at % STORM_EVERY >= STORM_EVERY // 2 or not traffic.storms:
        traffic.join(rows + 8, (5, 60), (60, 300), group=8)


def images(traffic: Traffic, rows: int) -> None:
    """Prompts whose positions advance by less than their tokens."""
    while len(traffic.live) + 4 <= rows + 8:
        new = traffic.between(200, 500)
        for _ in range(4):
            text, image = traffic.between(5, 40), traffic.between(64, 300)
            side = max(1, int(image**0.5))
            positions = np.concatenate([np.arange(text), text + np.arange(image) % side])
            traffic.submit(text + image, new, positions=positions)


def alike(traffic: Traffic, rows: int, rounds: int = 1) -> None:
    """The same 32 prompts, eight of each beginning; one round ends before the next comes in."""
    if traffic.live:
        return
    if len(traffic.requests) == rounds * ALIKE:
        traffic.over = True
        return
    vocab = traffic.engine.model.vocab_size
    beginnings = np.random.default_rng(7).integers(1, vocab, (4, 200))
    for number in range(ALIKE):
        ending = np.random.default_rng(number).integers(1, vocab, 1 + number)
        traffic.ask(np.concatenate([beginnings[number % 4], ending]), 128)


def alike_again(traffic: Traffic, rows: int) -> None:
    """Two rounds of the same prompts."""
    alike(traffic, rows, 2)


def spoken(traffic: Traffic, rows: int) -> None:
    """Answers over contexts of any length, as codes of a seeded decoder."""
    while len(traffic.live) + 8 <= rows + 8:
        new = traffic.between(200, 430)
        for _ in range(8):
            context = traffic.draw.integers(0, 1000, traffic.between(200, 1500))
            traffic.submit(traffic.between(1, 8), new, context=context)


# Seats for half of a round: the second half meets what the first has stored. Only a decoder without recurrent state
# can begin on shared pages, so that these runs have a shape of their own.
_PREFIX: dict[str, Any] = {
    "rows": 16,
    "steps": 0,
    "compare": 100_000,
    "shape": "qwen3-0.6b",
    "pools": {"kv": PoolConfig(16, 1024, 2048)},
}

RUNS = {
    "chunked_prefill": Run(
        "prompts of three and more chunks beside decoding rows",
        16,
        chunks,
        steps=50_000,
        compare=3000,
        config={"max_requests": 24, "token_budget": 200, "min_chunk": 64},
        chunks=3,
    ),
    "kv_pressure": Run(
        "few pages: refused reservations, offload, reload",
        24,
        few_pages,
        steps=6500,
        compare=2000,
        pools={"kv": PoolConfig(16, 190, 512)},
        config={"max_requests": 32},
        least={"refused": 0.04, "offloads": 0.04, "reloads": 0.04},
        most={"slots_kept": 0},
    ),
    "slot_pressure": Run(
        "captures capped at 8 rows, in turns: rows displaced at every step",
        8,
        turns,
        steps=126_000,
        compare=6000,
        seeds=(0, 1),
        full=8,
        config={"order": "turns", "max_requests": 64},
        least={"displaced": 7.0},
    ),
    "wide": Run(
        "twice as many requests as the widest capture",
        128,
        many,
        steps=10_000,
        compare=1000,
        full=128,
        config={"max_requests": 256, "token_budget": 2048},
        pools={"kv": PoolConfig(16, 16384, 2048)},
        most={"displaced": 0},
    ),
    "abort_storm": Run(
        "24 dropped, 16 fresh, over and over",
        32,
        storm,
        steps=5800,
        compare=6500,
        config={"max_requests": 48},
        least={"aborted": 0.2},
    ),
    "images": Run("positions that lag behind lengths", 16, images, steps=5000, compare=2500),
    "prefix_off": Run(
        "32 prompts of four beginnings, each filled anew", before=alike, config={"max_requests": 16}, **_PREFIX
    ),
    "prefix_on": Run(
        "the same prompts, full pages shared as soon as one has stored them",
        before=alike,
        config={"max_requests": 16, "prefix_cache": True},
        least={"prefix_pages": 0.1},
        **_PREFIX,
    ),
    "prefix_again": Run(
        "the same prompts again, all of whose full pages are there",
        before=alike_again,
        config={"max_requests": 16, "prefix_cache": True},
        least={"prefix_pages": 0.5},
        compare_from=ALIKE,
        **_PREFIX,
    ),
    "whisper": Run(
        "two pools, one of them read-only",
        16,
        spoken,
        steps=50_000,
        compare=6000,
        shape="large-v3",
        pools={"self": PoolConfig(128, 24 * 4, 448), "context": PoolConfig(128, 24 * 12, 1536)},
        config={"max_requests": 24},
    ),
}
