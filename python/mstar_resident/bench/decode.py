"""The decode bench: the engine's arms on one model, in turns over the same requests, their tokens compared.

``resident`` keeps decode rows on the device. ``host`` rebuilds a step's inputs on the host. ``off`` is what the
planning knob gives: no planner, the same code as ``host``, so that what differs between those two is the
measurement's noise.
"""

from __future__ import annotations

import gc
import statistics
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from mstar_resident.attention.select import Backend
from mstar_resident.bench.growth import Growth, measure_growth
from mstar_resident.bench.look import Look, look
from mstar_resident.bench.profiled import profile_steps
from mstar_resident.bench.serve import Load, Served, serve
from mstar_resident.bench.shapes import Shape, Streamed, twin
from mstar_resident.bench.timeline import Event, device_times, tracks
from mstar_resident.engine.capture_report import BucketReport, CaptureReport
from mstar_resident.engine.config import EngineConfig, Planning
from mstar_resident.engine.engine import Engine

ARMS: tuple[Planning, ...] = ("host", "resident", "off")
#: Prompt tokens of one step: as many rows as possible get their first token together.
TOKEN_BUDGET = 32_768
LEAST_RESIDENT = 0.95
#: What weights are streamed with, in bytes a second: what a large copy reaches on an H200.
STREAM_RATE = 4.3e12
#: Profiled steps that are left out: the profiler has just started.
LEAD_STEPS = 5
#: Most tokens of an answer in runs that are not timed: what they tell is of a step, and their tokens are compared too.
UNTIMED_NEW = 128
WAITING = "read"
#: What a step's inputs cost on the host, from the plan to the launch and the bookkeeping behind it.
PREPARING = ("plan", "fresh plan", "flush", "attention plan", "launch", "commit")


class WrongRun(Exception):  # noqa: N818  (a finding, not a fault)
    """Arms gave different tokens, or the resident arm was not resident."""


class DecodeBench:
    """Hold one engine per arm over the same weights, each with pools and captured graphs of its own.

    Args:
        shape: the model.
        arms: which; the first of them, or ``host`` if it is one of them, is what the others are compared with.
        concurrency: all that will be asked for.
        prompt: tokens of every prompt.
        new: tokens of every answer.
        device: cpu or cuda.
        attention: what decodes on cuda.

    Raises:
        RuntimeError: a graph could not be captured.
    """

    def __init__(
        self,
        shape: Shape,
        arms: Sequence[Planning],
        concurrency: Sequence[int],
        prompt: int,
        new: int,
        device: str,
        attention: Backend = "auto",
    ) -> None:
        self.shape = shape
        self.arms = tuple(arms)
        self.baseline = "host" if "host" in arms else self.arms[0]
        self.prompt, self.new, self.device = prompt, new, device
        most = max(concurrency)
        model = shape.build(device, attention=attention)
        self.reports: dict[Planning, CaptureReport] = {}
        self.weight_bytes = model.streamed_bytes()
        self._pool = shape.pool(most, prompt + new)
        self.engines = {arm: self._engine(twin(model), arm, most) for arm in self.arms}
        self._truth: dict[int, list[list[int]]] = {}

    def run(self, concurrency: int, rounds: int) -> list[dict[str, Any]]:
        """Look at every arm untimed, time all arms round by round, and return a case per arm.

        Args:
            concurrency: requests at once.
            rounds: timed ones; the arms' order turns from round to round.

        Raises:
            WrongRun: tokens differ, or too few steps of the resident arm were resident.
            TooShortError: too few tokens are asked for.
        """
        load = Load(concurrency, self.prompt, self.new)
        bucket = self.engines[self.baseline].arm.bucket(concurrency)
        looks: dict[Planning, tuple[Served, Look]] = {}
        for arm, engine in self.engines.items():
            looks[arm] = look(engine, self._untimed(concurrency))
            self._check(arm, looks[arm][0], concurrency)
        growth = {arm: measure_growth(engine, bucket) for arm, engine in self.engines.items()}
        timed: dict[Planning, list[Served]] = {arm: [] for arm in self.arms}
        with few_collections():
            for number in range(rounds):
                turn = number % len(self.arms)
                for arm in self.arms[turn:] + self.arms[:turn]:
                    served = serve(self.engines[arm], load)
                    self._check(arm, served, concurrency)
                    timed[arm].append(served)
        rates = {arm: [tokens_per_s(run, load) for run in runs] for arm, runs in timed.items()}
        cases = []
        for arm in self.arms:
            ratios = [ours / theirs for ours, theirs in zip(rates[arm], rates[self.baseline], strict=True)]
            cases.append(
                self._conditions(arm, load, bucket, rounds)
                | {"tok_s": spread(rates[arm]), "ratio": spread(ratios), "ratio_to": self.baseline}
                | timed_figures(timed[arm], load)
                | looked_figures(*looks[arm], growth[arm])
                | profiled_figures([])
            )
        return cases

    def profile(self, cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Fill in what only a profile tells of one concurrency's cases; return the events of a Chrome trace.

        Call it when everything has been timed: see :func:`~mstar_resident.bench.profiled.profile_steps`.

        Raises:
            WrongRun: tokens differ from those of the runs before, or the resident arm was not resident.
        """
        trace: list[dict[str, Any]] = []
        for number, case in enumerate(cases):
            arm: Planning = case["arm"]
            load = self._untimed(case["concurrency"])
            served, events = profile_steps(self.engines[arm], load)
            self._check(arm, served, load.concurrency)
            case.update(profiled_figures(events))
            name = f"{self.shape.name}, {arm}, {load.concurrency} rows"
            trace += tracks(events, name, number, threading.get_native_id())
        return trace

    @property
    def weight_floor_us(self) -> float:
        """Time that streaming a step's weights takes at :data:`STREAM_RATE`."""
        return self.weight_bytes / STREAM_RATE * 1e6

    def _engine(self, model: Streamed, arm: Planning, most: int) -> Engine:
        config = EngineConfig(
            max_batch=most,
            max_requests=most,
            pools={"kv": self._pool},
            recurrent_states=most,
            token_budget=TOKEN_BUDGET,
            planning=arm,
            device=self.device,
            dtype=model.dtype,
            least_resident=LEAST_RESIDENT,
        )
        engine = Engine(model, config)
        self.reports[arm] = engine.capture()
        if engine.graphs is not None and engine.graphs.failed:
            raise RuntimeError(f"arm {arm}: buckets that could not be captured: {engine.graphs.failed}")
        return engine

    def _untimed(self, concurrency: int) -> Load:
        return Load(concurrency, self.prompt, min(self.new, UNTIMED_NEW))

    def _check(self, arm: Planning, served: Served, concurrency: int) -> None:
        where = f"{self.shape.name}, arm {arm} at concurrency {concurrency}"
        if arm == "resident" and served.resident_steps < LEAST_RESIDENT * served.decode_steps:
            raise WrongRun(
                f"{where}: {served.resident_steps} of {served.decode_steps} decode steps were resident, "
                f"at least {LEAST_RESIDENT:.0%} must be"
            )
        truth = self._truth.setdefault(concurrency, served.outputs)
        if len(served.outputs[0]) > len(truth[0]):  # all answers of a run are as long
            self._truth[concurrency] = served.outputs
        for request, (got, wanted) in enumerate(zip(served.outputs, truth, strict=True)):
            both = min(len(got), len(wanted))
            if len(got) != len(wanted):  # where the shorter run's batch shrank, its steps were other ones
                both -= served.apart
            if got[:both] != wanted[:both]:
                at = next(i for i in range(both) if got[i] != wanted[i])
                raise WrongRun(
                    f"{where}: token {at} of request {request} is {got[at : at + 1]}, "
                    f"the first run of arm {self.arms[0]} gave {wanted[at : at + 1]}"
                )

    def _report(self, arm: Planning, bucket: int) -> BucketReport:
        return next(report for report in self.reports[arm].buckets if report.bucket == bucket)

    def _conditions(self, arm: Planning, load: Load, bucket: int, rounds: int) -> dict[str, Any]:
        pool = self._pool
        return {
            "shape": self.shape.name,
            "arm": arm,
            "concurrency": load.concurrency,
            "bucket": bucket,
            "attention": self._report(arm, bucket).attention.get("kv", ""),
            "host_plan_free": self._report(arm, bucket).host_plan_free,
            "prompt": load.prompt,
            "new": load.new,
            "rounds": rounds,
            "device": self.device,
            "dtype": str(self.engines[arm].config.dtype).removeprefix("torch."),
            "page_size": pool.page_size,
            "columns": self.engines[arm].streams["kv"].width,
            "weight_bytes": self.weight_bytes,
            "weight_floor_us": self.weight_floor_us,
        }


@contextmanager
def few_collections() -> Iterator[None]:
    """Keep what is there already out of the collector's sight, as an engine does that serves for long."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def timed_figures(runs: list[Served], load: Load) -> dict[str, Any]:
    """Return what timed runs of one arm cost: per figure its median, least and greatest over the runs."""
    steps = [np.array(run.intervals_ns) / 1000 for run in runs]
    phases = {
        phase: spread(run.phases_ns[phase] / 1000 / run.steps for run in runs)
        for phase in runs[0].phases_ns
        if any(run.phases_ns[phase] for run in runs)
    }
    waiting = [run.phases_ns[WAITING] / 1000 / run.steps for run in runs]
    prepare = [sum(run.phases_ns[phase] for phase in PREPARING) / 1000 / run.steps for run in runs]
    return {
        "served_tok_s": spread(load.concurrency * load.new / (run.total_ns / 1e9) for run in runs),
        "itl_us_p50": spread(np.percentile(us, 50) for us in steps),
        "itl_us_mean": spread(us.mean() for us in steps),
        "itl_us_p99": spread(np.percentile(us, 99) for us in steps),
        "ttft_us_p50": spread(statistics.median(run.ttft_ns) / 1000 for run in runs),
        "step_us": spread(us.mean() for us in steps),
        "window_steps": runs[0].steps,
        "host_us": spread(us.mean() - wait for us, wait in zip(steps, waiting, strict=True)),
        "prepare_us": spread(prepare),
        "phases_us": phases,
        "resident_share": min(run.resident_steps / run.decode_steps for run in runs),
    }


def looked_figures(served: Served, found: Look, growth: Growth | None) -> dict[str, Any]:
    """Return what a look at one arm found; None for what it does not have."""
    counts, window = served.planner, served.planner_window
    return {
        "graph_us": spread(found.graph_us),
        "between_us": spread(found.between_us) if found.between_us else None,
        "replay_us": spread(growth.resident_us) if growth else None,
        "bare_replay_us": spread(growth.bare_us) if growth else None,
        "graph_growth_us": spread(growth.added_us) if growth else None,
        "planner_copies_per_step": window["copies"] / served.steps if window else None,
        "planner_bytes_per_step": window["bytes"] / served.steps if window else None,
        "silent_share": found.silent / served.steps if found.silent is not None else None,
        "whole_rows": counts.get("whole_rows"),
        "crossings": counts.get("crossings"),
        "displaced": counts.get("displaced"),
        "distinct_tokens": statistics.median(len(set(tokens)) for tokens in served.outputs),
    }


def profiled_figures(events: Sequence[Event]) -> dict[str, Any]:
    """Return what a profile tells of the device; None for all of it where it ran no graphs."""
    device = device_times(events, skip=LEAD_STEPS)
    return {
        "profiled_steps": len(device["idle_us"]) if device else 0,
        "graph_span_us": spread(device["span_us"]) if device else None,
        "idle_us": spread(device["idle_us"]) if device else None,
        "idle_busy_us": spread(device["busy_us"]) if device else None,
        "h2d_copies_per_step": statistics.mean(device["h2d_copies"]) if device else None,
        "h2d_bytes_per_step": statistics.mean(device["h2d_bytes"]) if device else None,
    }


def tokens_per_s(run: Served, load: Load) -> float:
    """Return the tokens of the window per second: a token a request and step."""
    return load.concurrency * run.steps * 1e9 / (run.stamps[-1] - run.stamps[0])


def spread(values: Iterable[float]) -> dict[str, float]:
    """Return the median, the least and the greatest."""
    found = sorted(float(value) for value in values)
    return {"median": statistics.median(found), "min": found[0], "max": found[-1]}
