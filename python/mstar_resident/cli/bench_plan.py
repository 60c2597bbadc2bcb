"""What a step's plan costs on the host, beside a NumPy planner that rebuilds every row.

A plan through Python is stage, flush into the store and commit. Every case first runs both planners side by side and
compares what their steps read; then each is timed alone; then they are compared again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mstar_resident import _core
from mstar_resident.cli.exits import GOOD, MISMATCH, UsageError
from mstar_resident.cli.lists import chosen, counts
from mstar_resident.cli.record import check_writable, write_json
from mstar_resident.layout import Column, KVTable, RowLayout
from mstar_resident.naive import Int64, NaivePlanner
from mstar_resident.planner import ResidentPlanner

#: What happens between two steps; the core's bench times the same.
CASES = {
    "steady": "the same batch, no crossing",
    "crossing": "the same batch, every row enters a new page in every step (pages of one token)",
    "join_leave": "one request leaves and one joins in every step",
    "displacing": "four batches take turns on slots for two: every row is displaced and written whole",
    "whole": "every row is stale in every step, with 1,024 used pages",
}
PAGE_SIZE, TABLE_PAGES, POOL_PAGES = 128, 2047, 1 << 20
CHECKED_STEPS = 6
#: The workloads' requests hold pages for this many steps, and a request that joins stays for one step a row.
MOST_ROWS, MOST_STEPS = 512, 2000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--rows", default="1,16,64,256", help="rows of a step, comma-separated (default: %(default)s)")
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated (default: all)")
    parser.add_argument("--steps", type=int, default=1000, help="timed steps a case (default: %(default)s)")
    parser.add_argument("--bounds", action="store_true", help="exit 1 where a bound of the plan's cost is missed")
    parser.add_argument("--json", metavar="FILE", help="leave a record")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    rows, names = counts("--rows", arguments.rows, MOST_ROWS), chosen("--cases", arguments.cases, tuple(CASES))
    if not 1 <= arguments.steps <= MOST_STEPS:
        raise UsageError(f"--steps: expected 1 to {MOST_STEPS}, got {arguments.steps}")
    check_writable(arguments.json)
    heads = [f"{head:>10}" for head in ("core ns", "python us", "naive us", "naive/py", "bytes")]
    print(f"{'case':<11} {'rows':>5}", *heads)
    cases = []
    for name in names:
        for count in rows:
            try:
                case = run_case(name, count, arguments.steps)
            except WrongAnswer as wrong:
                print(f"{name} at {count} rows: {wrong}", file=sys.stderr)
                return MISMATCH
            ratio = case["naive_us_p50"] / case["python_us_p50"]
            print(
                f"{name:<11} {count:>5} {case['core_ns_p50']:>10.0f} {case['python_us_p50']:>10.2f} "
                f"{case['naive_us_p50']:>10.1f} {ratio:>10.1f} {case['bytes']:>10.0f}",
                flush=True,
            )
            cases.append(case)
    if arguments.json:
        write_json(arguments.json, "bench-plan", cases)
    missed = missed_bounds(cases) if arguments.bounds else []
    for bound in missed:
        print(f"missed: {bound}", file=sys.stderr)
    return MISMATCH if missed else GOOD


class WrongAnswer(Exception):  # noqa: N818  (a finding, not a fault)
    """The two planners' steps read different inputs."""


class Workload:
    """Hold both planners, their requests and their batches; request i is row i of the NumPy planner."""

    def __init__(self, case: str, rows: int) -> None:
        crossing = case == "crossing"
        self.case, self.rows = case, rows
        self.page_size = 1 if crossing else PAGE_SIZE
        self.held = {"crossing": TABLE_PAGES, "whole": 1030}.get(case, 8)
        self.start = {"crossing": 1, "whole": 1023 * PAGE_SIZE}.get(case, 3 * PAGE_SIZE + 1)
        self.limit = TABLE_PAGES - 2 if crossing else (self.start // PAGE_SIZE + 1) * PAGE_SIZE - 1
        layout = RowLayout(
            [KVTable("kv", self.page_size, POOL_PAGES, TABLE_PAGES * self.page_size)],
            [Column("position_offset", "position", "kv"), Column("recurrent_index", "index")],
        )
        batches = 4 if case == "displacing" else 1
        self.planner = ResidentPlanner(layout, rows, name=f"bench {case}")
        self.lease = self.planner.lease(rows)
        self.naive = NaivePlanner(layout, batches * rows)
        self.handles = [0] * (batches * rows)
        self.rewind_bytes = 0
        for request in range(batches * rows):
            self.join(request, request)
        self.naive_rows: list[Int64] = [np.arange(b * rows, (b + 1) * rows) for b in range(batches)]
        self.batches = [self.planner.batch(self.handles[b * rows : (b + 1) * rows]) for b in range(batches)]

    def join(self, request: int, number: int) -> None:
        """Open a request in both planners, with pages and columns that follow from ``number``."""
        handle = self.handles[request] = self.planner.open()
        pages = (number * 31 + np.arange(self.held)) % 1_000_000 + 1
        self.planner.set_stream(handle, "kv", pages, self.start)
        self.planner.set_column("position_offset", [handle], [-(number % 7)])
        self.planner.set_column("recurrent_index", [handle], [number + 1])
        self.naive.set_stream(request, 0, pages, self.start)
        self.naive.values[:, request] = (-(number % 7), number + 1)

    def between(self, step: int) -> None:
        """Do what the engine does between two steps; not timed."""
        if self.case == "join_leave":
            request = step % self.rows
            self.planner.release(self.handles[request])
            self.join(request, self.rows + step)
            self.batches[0] = self.planner.batch(self.handles)
        elif self.case == "whole":
            self.planner.mark_stale(self.handles)
        if self.planner.length(self.handles[0], "kv") >= self.limit or self.naive.stored[0, 0] >= self.limit:
            self.rewind()

    def rewind(self) -> None:
        """Put every stream back to its start; the step that mends the rows is not timed."""
        self.lease.cells.zero_()  # as a replay of the last timed step would have
        before = self.planner.stats().bytes
        for handle in self.handles:
            self.planner.truncate("kv", handle, self.start, self.held)
        self.naive.stored[0] = self.start
        for index, batch in enumerate(self.batches):
            stage = self.planner.stage(batch, self.lease)
            self.planner.flush(stage, 0)
            self.planner.prologue(self.lease)
            self.planner.commit(stage)
            self.naive.commit(self.naive_rows[index])
        self.rewind_bytes += self.planner.stats().bytes - before

    def plan(self, batch: _core.Batch) -> None:
        """Plan one step through Python: what is timed. No prologue runs, so the store's lengths stand still."""
        stage = self.planner.stage(batch, self.lease)
        self.planner.flush(stage, 0)
        self.planner.commit(stage)

    def rebuild(self, rows: Int64) -> None:
        """Plan one step with the NumPy planner."""
        self.naive.plan(rows, self.rows)
        self.naive.commit(rows)

    def compare(self, first: int, steps: int) -> None:
        """Run both planners side by side and compare what their steps read.

        Raises:
            WrongAnswer: they differ.
        """
        self.lease.cells.zero_()  # as a replay of the last timed step would have
        self.naive.stored[0] = [self.planner.length(handle, "kv") for handle in self.handles]
        for step in range(first, first + steps):
            self.between(step)
            index = step % len(self.batches)
            batch, rows = self.batches[index], self.naive_rows[index]
            stage = self.planner.stage(batch, self.lease)
            self.planner.flush(stage, 0)
            self.planner.prologue(self.lease)
            expected = self.naive.plan(rows, self.rows)
            used = (expected.lengths[0] + self.page_size - 1) // self.page_size
            cells = np.where(np.arange(TABLE_PAGES) < used[:, None], expected.tables[0], 0)
            pairs: dict[str, tuple[torch.Tensor, Any]] = {
                "page cells": (self.planner.store.tables["kv"][self.lease.slots], cells),
                "attention lengths": (self.lease.lengths["kv"], expected.lengths[0]),
                "write locations": (self.lease.write_loc["kv"], expected.write_loc[0]),
                "positions": (self.lease.columns["position_offset"], expected.columns[0]),
                "recurrent indices": (self.lease.columns["recurrent_index"], expected.columns[1]),
            }
            self.planner.commit(stage)
            self.naive.commit(rows)
            for name, (got, wanted) in pairs.items():
                if not np.array_equal(got.numpy(), wanted):
                    raise WrongAnswer(f"{name} of step {step} differ from the NumPy planner's")

    def time(self, first: int, steps: int, plan: Callable[[int], None]) -> float:
        """Return the median microseconds of ``plan`` over steps, each given its batch's number."""
        samples = []
        for step in range(first, first + steps):
            self.between(step)
            index = step % len(self.batches)
            begin = time.perf_counter_ns()
            plan(index)
            samples.append(time.perf_counter_ns() - begin)
        return float(np.median(samples)) / 1000


def run_case(case: str, rows: int, steps: int) -> dict[str, Any]:
    """Check and time one case; return its record.

    Raises:
        WrongAnswer: the planners differ, before or after the timing.
    """
    work = Workload(case, rows)
    work.compare(0, CHECKED_STEPS)
    begin = work.planner.stats().bytes - work.rewind_bytes
    python_us = work.time(CHECKED_STEPS, steps, lambda index: work.plan(work.batches[index]))
    sent = work.planner.stats().bytes - work.rewind_bytes - begin
    work.naive.stored[0] = [work.planner.length(handle, "kv") for handle in work.handles]
    naive_us = work.time(CHECKED_STEPS + steps, steps, lambda index: work.rebuild(work.naive_rows[index]))
    work.planner.mark_stale(work.handles)
    work.compare(CHECKED_STEPS + 2 * steps, CHECKED_STEPS)
    core_ns, _ = _core.bench_core(rows, case, steps)
    return {
        "rows": rows,
        "case": case,
        "core_ns_p50": core_ns,
        "python_us_p50": python_us,
        "naive_us_p50": naive_us,
        "bytes": sent / steps,
    }


def missed_bounds(cases: list[dict[str, Any]]) -> list[str]:
    """Return, as sentences, the bounds that the steady cases miss."""
    steady = {case["rows"]: case for case in cases if case["case"] == "steady"}
    missed = [
        f"steady at {rows} rows: {case['python_us_p50']:.2f} us through Python, bound 3"
        for rows, case in steady.items()
        if case["python_us_p50"] > 3
    ]
    if 64 in steady and steady[64]["naive_us_p50"] < 20 * steady[64]["python_us_p50"]:
        missed.append("steady at 64 rows: the NumPy planner takes less than 20 times as long as Python")
    if 64 in steady and steady[64]["core_ns_p50"] > 500:
        missed.append(f"steady at 64 rows: {steady[64]['core_ns_p50']:.0f} ns in the core, bound 500")
    if {1, 256} <= set(steady) and steady[256]["core_ns_p50"] > 2 * steady[1]["core_ns_p50"]:
        missed.append("steady at 256 rows: the core takes more than twice as long as at 1 row")
    return missed
