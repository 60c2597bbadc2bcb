"""Time how fa2's plan can be looked for in the graph, check each against the host planner restated, print the best.

python3 benches/gpu/tune_planner.py --json FILE
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import asdict, dataclass

import layers
import numpy as np
import torch

from mstar_resident.attention.fa2_plan import Fa2Plan
from mstar_resident.cli.record import write_json
from mstar_resident.kernels.fa2_planner import Fa2Buffers, Fa2Planner, Search

HEADS, KV_HEADS, PAGE_SIZE = 8, 2, 16
SEARCHES = [Search(*of) for of in itertools.product((1, 2, 4, 8), (8, 16, 32), (32, 64, 128))]
STEPS = 50


@dataclass(frozen=True)
class Record:
    """Hold the figures of one search."""

    rows: int
    lengths: str
    search: Search
    us: float


def lengths_of(kind: str, rows: int) -> np.ndarray:
    """Return a step's lengths: all equal, or one row in eight long."""
    if kind.isdecimal():
        return np.full(rows, int(kind))
    return np.where(np.arange(rows) % 8 == 0, 8192, np.random.default_rng(0).integers(1, 513, rows))


def measure(rows: int, kind: str, search: Search, args: argparse.Namespace) -> Record:
    """Check and time one search; exit where its plan differs."""
    lengths = lengths_of(kind, rows)
    table = torch.zeros(2 * rows + 1, 8192 // PAGE_SIZE + 1, dtype=torch.int32, device="cuda")
    buffers = Fa2Buffers.of(rows, table, PAGE_SIZE)
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    plan = Fa2Plan.on_tensor_cores(rows, HEADS, KV_HEADS, PAGE_SIZE, multiprocessors)
    planner = Fa2Planner(plan, buffers, _search=search)
    on_device = torch.from_numpy(lengths.astype(np.int32)).cuda(), torch.arange(1, rows + 1, device="cuda")

    def body() -> None:
        for _ in range(STEPS):
            planner.run(*on_device)

    us = layers.time_graph(body, STEPS, args.replays, args.rounds)[0]
    difference = plan.read(buffers.workspace.cpu().numpy()).difference(plan.naive(lengths))
    if difference is not None:
        raise SystemExit(f"{rows} rows of {kind}, {search}: {difference}")
    return Record(rows, kind, search, us)


def main() -> None:
    """Print the best searches of each case and over all; write ``--json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,16,64,128", help="comma separated")
    parser.add_argument("--lengths", default="768,8192,skewed", help="comma separated")
    layers.add_arguments(parser)
    parser.set_defaults(replays=3, rounds=5)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no CUDA device")
    records: list[Record] = []
    for rows in map(int, args.rows.split(",")):
        here: list[Record] = []
        for kind in args.lengths.split(","):
            found = [measure(rows, kind, search, args) for search in SEARCHES]
            best = sorted(found, key=lambda record: record.us)[:3]
            print(f"{rows:4} {kind:>7}: " + "; ".join(f"{r.us:.2f} {tuple(r.search)}" for r in best), flush=True)
            here += found
        worst = {search: max(r.us for r in here if r.search == search) for search in SEARCHES}
        best_of_all = sorted(worst.items(), key=lambda pair: pair[1])[:3]
        print(f"{rows:4}   worst: " + "; ".join(f"{us:.2f} {tuple(search)}" for search, us in best_of_all), flush=True)
        records += here
    if args.json:
        write_json(args.json, "tune-planner", [asdict(r) | {"search": r.search._asdict()} for r in records])


if __name__ == "__main__":
    main()
