"""What preparing a decode step costs a host-planned engine: the arm that resident planning is compared with.

Timed is all that the engine's host arm does for a step of unchanged rows besides launching it: pages for the rows that
cross, write locations, positions, lengths and seats, what changed in the page tables, the attention plan, and the
advance. Every workload is compared with numbers built row by row, before and after it is timed.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np
import torch

from mstar_resident.attention.decode_plan import PlanMode, naive_decode_plan
from mstar_resident.cli.exits import GOOD, MISMATCH, UsageError
from mstar_resident.cli.lists import counts
from mstar_resident.cli.record import check_writable, write_json
from mstar_resident.engine.arm import HostArm
from mstar_resident.engine.config import EngineConfig
from mstar_resident.engine.counters import Counters
from mstar_resident.engine.host_plan import fill
from mstar_resident.engine.memory import Memory
from mstar_resident.engine.pages import PagePool
from mstar_resident.engine.plan import StepPlan
from mstar_resident.engine.request import Request
from mstar_resident.engine.seats import Seats
from mstar_resident.engine.streams import Streams

#: Attention that reads off the tables needs no plan; one that does has it built anew or kept.
ARMS: dict[str, PlanMode | None] = {"tables": None, "full plan": "off", "kept plan": "on"}
PAGE_SIZE, COLUMNS, FIRST_LENGTH = 16, 2050, 512
CHECKED_STEPS = 20
MOST_ROWS, MOST_STEPS = 512, 2000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--rows", default="1,16,64,128,256", help="rows of a step, comma-separated (default: %(default)s)"
    )
    parser.add_argument("--steps", type=int, default=1000, help="timed steps a case (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda, where copies are included (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="leave a record")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    rows = counts("--rows", arguments.rows, MOST_ROWS)
    if not 1 <= arguments.steps <= MOST_STEPS:
        raise UsageError(f"--steps: expected 1 to {MOST_STEPS}, got {arguments.steps}")
    if arguments.device not in ("cpu", "cuda"):
        raise UsageError(f"--device: expected cpu or cuda, got {arguments.device!r}")
    check_writable(arguments.json)
    print(f"{'arm':<11} {'rows':>5} {'us p50':>10} {'us p99':>10}")
    cases = []
    for arm in ARMS:
        for count in rows:
            try:
                case = run_case(arm, count, arguments.steps, arguments.device)
            except WrongPreparation as wrong:
                print(f"{arm} at {count} rows: {wrong}", file=sys.stderr)
                return MISMATCH
            print(f"{arm:<11} {count:>5} {case['us_p50']:>10.1f} {case['us_p99']:>10.1f}", flush=True)
            cases.append(case)
    if arguments.json:
        write_json(arguments.json, "bench-host", cases)
    return GOOD


class WrongPreparation(Exception):  # noqa: N818  (a finding, not a fault)
    """A prepared step holds other numbers than a loop over its rows gives."""


class HostWorkload:
    """Hold one pool and a batch of requests whose lengths are spread over a page, so that a sixteenth cross a step."""

    def __init__(self, arm: str, rows: int, steps: int, device: str) -> None:
        mode = ARMS[arm]
        pages = -(-(FIRST_LENGTH + PAGE_SIZE + steps + 1) // PAGE_SIZE)
        self.seats = Seats(rows)
        pool = PagePool("kv", PAGE_SIZE, rows * pages)
        self.entry = Streams(pool, self.seats.count, COLUMNS, 1, host_plan=mode is not None)
        config = EngineConfig(
            max_batch=rows, max_requests=rows, planning="host", attention_plan=mode or "on", device=device
        )
        streams = {"kv": self.entry}
        self.arm = HostArm(config, self.seats, streams, False, Counters())
        self.memory = Memory(self.seats, streams, self.arm)
        requests = [Request(str(i), np.zeros(1, np.int64), 1) for i in range(rows)]
        for i, request in enumerate(requests):
            self.seats.take(request)
            self.memory.place(self.entry, request.seat, FIRST_LENGTH + i % PAGE_SIZE)
        taken = np.array([request.seat for request in requests])
        self.seats.stored[taken] = self.entry.length[taken]
        one = np.ones(rows, np.int64)
        self.plan = StepPlan(tuple(requests), taken, one, self.seats.epoch[taken], one, rows)
        self.views = [self.arm.filled_view(rows, buffer_idx) for buffer_idx in range(2)]

    def prepare(self, step: int) -> None:
        """Do what the host does before it launches a step."""
        self.memory.reserve(self.plan.seats, self.plan.tokens)
        view = self.views[step % 2]
        fill(view, self.plan, self.seats, {"kv": self.entry})
        self.arm.plans.fill(view, self.plan.seats)

    def advance(self) -> None:
        """Do what the host does after it has launched a step."""
        self.entry.length[self.plan.seats] += self.plan.tokens
        self.seats.stored[self.plan.seats] += self.plan.tokens

    def check(self, step: int) -> None:
        """Compare a prepared step with a loop over its rows.

        Raises:
            WrongPreparation: they differ.
        """
        view, entry, seats = self.views[step % 2], self.entry, self.plan.seats
        kv, rows = view.inputs.kv["kv"], view.bucket
        if kv.write_loc is None:
            raise WrongPreparation("an appending pool without write locations")
        lengths = [int(entry.length[seat]) for seat in seats]
        locations = [
            int(entry.table[seat, n // PAGE_SIZE]) * PAGE_SIZE + n % PAGE_SIZE
            for seat, n in zip(seats, lengths, strict=True)
        ]
        wanted = {
            "attention lengths": (kv.lengths, [n + 1 for n in lengths]),
            "write locations": (kv.write_loc, locations),
            "positions": (view.inputs.positions, lengths),
        }
        wrong = [name for name, (got, values) in wanted.items() if got.tolist() != values]
        if not torch.equal(kv.table[kv.rows].cpu(), torch.from_numpy(entry.table[seats])):
            wrong.append("page tables")
        if kv.planned is not None:
            full = naive_decode_plan(entry.table, entry.length, seats, rows, PAGE_SIZE, 1)
            pairs = {
                "indptr": (kv.planned.indptr, full.indptr),
                "indices": (kv.planned.indices[: len(full.indices)], full.indices),
                "last page lengths": (kv.planned.last_page_len, full.last_page_len),
            }
            wrong += [name for name, (got, values) in pairs.items() if got.tolist() != values.tolist()]
        if wrong:
            raise WrongPreparation(f"{', '.join(wrong)} of step {step} differ from a loop over the rows")


def run_case(arm: str, rows: int, steps: int, device: str = "cpu") -> dict[str, Any]:
    """Check and time one arm at one number of rows; return its record.

    Raises:
        WrongPreparation: a prepared step is wrong, before or after the timing.
    """
    work = HostWorkload(arm, rows, steps + 2 * CHECKED_STEPS, device)
    samples = []
    for step in range(steps + 2 * CHECKED_STEPS):
        begin = time.perf_counter_ns()
        work.prepare(step)
        prepared = time.perf_counter_ns()
        if not CHECKED_STEPS <= step < CHECKED_STEPS + steps:
            work.check(step)
            work.advance()
            continue
        between = time.perf_counter_ns()
        work.advance()
        samples.append(prepared - begin + time.perf_counter_ns() - between)
    p50, p99 = np.percentile(samples, [50, 99]) / 1000
    return {"arm": arm, "rows": rows, "device": device, "us_p50": float(p50), "us_p99": float(p99)}
