"""Host time of one whole resident step on a GPU: stage, flush, graph launch, commit.

The captured step is the prologue and 300 small kernels, as long as a small model's decode step in launches. Its replays
are checked against the planner's lengths before anything is timed. Run on a CUDA machine:

    python3 benches/gpu/bench_step.py --rows 1,16,64,128 --json out.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

import numpy as np
import torch

from mstar_resident import Column, KVTable, ResidentPlanner, RowLayout
from mstar_resident.capture import CapturedResidentStep
from mstar_resident.cli.record import write_json

KERNELS = 300
PAGE_SIZE = 128
CASES = ("steady", "steady_one_call", "join_leave")


def build(rows: int) -> tuple[ResidentPlanner, list[CapturedResidentStep[torch.Tensor]], np.ndarray]:
    """Build a planner of 128 rows, two captured steps of ``rows`` rows, and as many requests."""
    layout = RowLayout(
        tables=[KVTable("kv", page_size=PAGE_SIZE, pool_pages=2047, max_seq_len=262_144, span=1)],
        columns=[Column("position_offset", "position", table="kv"), Column("recurrent_index", "index")],
    )
    planner = ResidentPlanner(layout, max_batch=128, device="cuda", name="bench")
    work = torch.zeros(1024, device="cuda")

    def forward(lease: object) -> torch.Tensor:
        for _ in range(KERNELS):
            work.add_(1.0)
        return work

    steps = [CapturedResidentStep(planner, planner.lease(rows, buffer_idx=idx), forward) for idx in range(2)]
    handles = np.array([planner.open() for _ in range(rows)], dtype=np.int64)
    for number, handle in enumerate(handles):
        planner.set_stream(int(handle), "kv", np.arange(1, 17, dtype=np.int64) + number * 15, PAGE_SIZE // 2)
    planner.set_column("position_offset", handles, np.zeros(rows, dtype=np.int64))
    planner.set_column("recurrent_index", handles, np.arange(1, rows + 1))
    return planner, steps, handles


def run(rows: int, steps: int, case: str) -> dict[str, object]:
    """Time ``steps`` steps of one case: steady, steady_one_call (flushed and launched in one native call), join_leave.

    In join_leave one row is replaced before each step, untimed.
    """
    planner, captured, handles = build(rows)
    batch = planner.batch(handles)
    cuda_stream = torch.cuda.Stream()
    parts: dict[str, list[int]] = {name: [] for name in ("stage", "flush", "replay", "commit", "total")}
    before = planner.stats()
    with torch.cuda.stream(cuda_stream):
        for number in range(steps):
            step = captured[number % 2]
            if case == "join_leave":
                at = number % rows
                planner.release(int(handles[at]))
                handles[at] = planner.open()
                planner.set_stream(int(handles[at]), "kv", np.arange(1, 17, dtype=np.int64) + at * 15, PAGE_SIZE // 2)
                planner.set_column("position_offset", handles[at : at + 1], np.zeros(1, dtype=np.int64))
                planner.set_column("recurrent_index", handles[at : at + 1], np.full(1, at + 1))
                batch = planner.batch(handles)
            elif planner.length(int(handles[0]), "kv") > 16 * PAGE_SIZE - 4:
                for handle in handles:
                    planner.truncate("kv", int(handle), PAGE_SIZE // 2, 16)
            t0 = time.perf_counter_ns()
            stage = planner.stage(batch, step.lease)
            t1 = time.perf_counter_ns()
            if case == "steady_one_call":
                t2 = time.perf_counter_ns()
                step.launch(stage, cuda_stream.cuda_stream)
            else:
                planner.flush(stage, cuda_stream.cuda_stream)
                t2 = time.perf_counter_ns()
                step.replay()
            t3 = time.perf_counter_ns()
            planner.commit(stage)
            t4 = time.perf_counter_ns()
            for name, value in zip(parts, (t1 - t0, t2 - t1, t3 - t2, t4 - t3, t4 - t0), strict=True):
                parts[name].append(value)
            if number % 4 == 3:
                cuda_stream.synchronize()  # the queue stays short: no launch waits for a place, no flush for the ring
        cuda_stream.synchronize()
        lengths = captured[(steps - 1) % 2].lease.lengths["kv"][:rows].cpu().tolist()
    expected = [planner.length(int(handle), "kv") for handle in handles]
    if lengths != expected:
        raise SystemExit(f"mismatch at {rows} rows, {case}: {lengths} != {expected}")
    after = planner.stats()
    warm = steps // 5
    p50 = {f"{name}_us_p50": statistics.median(values[warm:]) / 1e3 for name, values in parts.items()}
    return {
        "rows": rows,
        "case": case,
        **p50,
        "total_us_p99": sorted(parts["total"][warm:])[int(0.99 * (steps - warm))] / 1e3,
        "copies_per_step": (after.copies - before.copies) / steps,
        "bytes_per_step": (after.bytes - before.bytes) / steps,
        "ring_waits": after.ring_waits - before.ring_waits,
    }


def main() -> int:
    """Run every case and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="1,16,64,128")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    cases = [run(int(rows), arguments.steps, case) for case in CASES for rows in arguments.rows.split(",")]
    for case in cases:
        print(json.dumps(case))
    if arguments.json:
        write_json(arguments.json, "bench-step", cases)
    return 0


if __name__ == "__main__":
    sys.exit(main())
