"""Serve one batch of requests, and measure the steps in which every one of them decodes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from mstar_resident.engine.engine import Engine
from mstar_resident.engine.request import Request

#: Decode steps before the window, behind the one that the last first token was read after and that writes the rows
#: whole: with one more, both buffers of the bucket have the rows' slots.
SETTLE = 1
#: Calls of a request's life that are no window: those that settle, and those that launch or stage without it.
OUTSIDE = SETTLE + 3

Window = Callable[[Engine, int], None]


class TooShortError(ValueError):
    """Requests end before enough steps were measured in which all of them decode."""


@dataclass(frozen=True, slots=True)
class Load:
    """Describe a batch of requests that come together: seeded prompts, equal lengths."""

    concurrency: int
    prompt: int
    new: int

    def requests(self, vocab: int) -> list[Request]:
        """Return the requests, the same for equal numbers."""
        draw = np.random.default_rng(self.concurrency)
        return [
            Request(str(number), draw.integers(1, vocab, self.prompt, dtype=np.int64), self.new)
            for number in range(self.concurrency)
        ]


@dataclass(frozen=True, slots=True)
class Served:
    """Hold what one batch of requests cost; times in nanoseconds."""

    outputs: list[list[int]]
    ttft_ns: list[int]
    """Per request, from the arrival of all to its first token on the host."""
    total_ns: int
    """From the arrival of all to the last token of all."""
    apart: int
    """Steps from the first request's first token to the last one's: so many last tokens of some had fewer beside."""
    steps: int
    """Steps of the window: every request gets a token in each."""
    stamps: list[int]
    """Ends of the window's steps and its begin, if the window was a timed one."""
    phases_ns: dict[str, int]
    """Host time of the window by phase."""
    decode_steps: int
    resident_steps: int
    """Of the whole run, beside all its decode steps."""
    planner: dict[str, int]
    """What the planner counted over the whole run; empty without one."""
    planner_window: dict[str, int]
    """The same over the window."""

    @property
    def intervals_ns(self) -> list[int]:
        """Time of every step of the window: that between two tokens of a request."""
        return [end - begin for begin, end in pairwise(self.stamps)]


COUNTED = ("whole_rows", "crossings", "displaced", "copies", "bytes")


def serve(engine: Engine, load: Load, window: Window | None = None) -> Served:
    """Serve a load from the arrival of its requests to the last token.

    Args:
        engine: an idle one, captured.
        load: its requests.
        window: runs so many steps; by default it calls the engine and notes the time, nothing else.

    Raises:
        TooShortError: the window would have no step.
        RuntimeError: a step failed, pages were short, or a request did not get a token in a step of the window.
    """
    requests = load.requests(engine.model.vocab_size)
    counters = engine.counters
    odd = _odd(engine)
    decode_steps, resident_steps = counters.decode_steps, counters.resident_steps
    planner = _planner_counts(engine)
    calls = 0
    firsts: list[tuple[int, int]] = []

    def note_first(request: Request) -> Callable[[int], None]:
        def first(token: int) -> None:
            request.on_token = None  # the steps that are measured call nothing
            firsts.append((calls, time.perf_counter_ns()))

        return first

    for request in requests:
        request.on_token = note_first(request)
        engine.add(request)
    begin = time.perf_counter_ns()
    while len(firsts) < len(requests) and engine.step():
        calls += 1
    apart = max(firsts)[0] - min(firsts)[0]
    steps = load.new - OUTSIDE - apart
    if steps < 1:
        raise TooShortError(
            f"--new {load.new} leaves no step in which all {load.concurrency} requests decode; "
            f"{OUTSIDE} are left out, and {apart} pass between the first tokens of the requests"
        )
    for _ in range(SETTLE):
        engine.step()
    tokens = sum(len(request.outputs) for request in requests)
    spent, counts = dict(counters.clock.spent_ns), _planner_counts(engine)
    stamps: list[int] = []
    (window or _timed(stamps))(engine, steps)
    spent = {phase: ns - spent[phase] for phase, ns in counters.clock.spent_ns.items()}
    counts = _minus(_planner_counts(engine), counts)
    tokens = sum(len(request.outputs) for request in requests) - tokens
    while engine.step():
        pass
    end = time.perf_counter_ns()
    if tokens != steps * load.concurrency or _odd(engine) != odd:
        raise RuntimeError(
            f"the run is not one that can be compared: {tokens} tokens in {steps} steps of {load.concurrency} rows; "
            f"failed steps, refusals, offloads, refills {_odd(engine)}, {odd} before"
        )
    return Served(
        [request.outputs for request in requests],
        [at - begin for _, at in firsts],
        end - begin,
        apart,
        steps,
        stamps,
        spent,
        counters.decode_steps - decode_steps,
        counters.resident_steps - resident_steps,
        _minus(_planner_counts(engine), planner),
        counts,
    )


def _timed(stamps: list[int]) -> Window:
    def window(engine: Engine, steps: int) -> None:
        stamps.append(time.perf_counter_ns())
        for _ in range(steps):
            engine.step()
            stamps.append(time.perf_counter_ns())

    return window


def _odd(engine: Engine) -> tuple[int, int, int, int]:
    counters = engine.counters
    return counters.failed_steps, counters.refused, counters.offloads, counters.refills


def _planner_counts(engine: Engine) -> dict[str, int]:
    if engine.planner is None:
        return {}
    stats = engine.planner.stats()
    return {name: getattr(stats, name) for name in COUNTED}


def _minus(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {name: value - before[name] for name, value in after.items()}
