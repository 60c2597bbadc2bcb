"""Time every launch of the gated delta net's step that is worth a try, and print which is best where.

    python3 benches/gpu/tune_gdn.py --json FILE

Each launch is compared with float64 at each shape. ``share`` is of ``--bandwidth`` (TB/s), by the bytes of state read
and written. Kernels are compiled ahead by ``--compilers`` processes.
"""

from __future__ import annotations

import argparse
import multiprocessing
from dataclasses import asdict, dataclass
from itertools import product

import layers
import torch
from bench_gdn import GDN, Case

from mstar_resident.cli.record import write_json
from mstar_resident.kernels.gdn_launch import Launch, choose

#: (fused, bytes of a tile / 1024, warps, more)
TRIED = [
    *[(True, 64, warps, {"ahead": True}) for warps in (8, 16)],
    *[(True, 32, warps, {"ahead": True}) for warps in (8, 16)],
    *[(True, 8, 4, {"ahead": ahead}) for ahead in (False, True)],
    *[(False, 64, warps, {"ahead": True}) for warps in (8, 16)],
    (False, 32, 8, {"ahead": True}),
    *[(False, 16, warps, {}) for warps in (4, 8)],
    *[(False, 8, warps, {}) for warps in (2, 4)],
    (False, 8, 4, {"ahead": True}),
    *[(False, 4, warps, {"ahead": True}) for warps in (2, 4)],
    *[(False, 4, 2, {}), (False, 2, 1, {})],
]
STATES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Record:
    """Hold the figures of one launch at one shape."""

    shape: str
    state: str
    rows: int
    launch: Launch
    us: float
    share: float
    relative_error: float


def tried(shape: str, rows: int, state: torch.dtype) -> list[Launch]:
    """Return the launches to try, once each, the chosen one first."""
    share = GDN[shape] // 16
    launches = [choose(rows, share, state.itemsize)]
    for fused, kib, warps, more in TRIED:
        if share == 1 or not fused:
            launches.append(Launch(fused, kib * 1024 // (128 * state.itemsize), warps, **more))
    return list(dict.fromkeys(launch.fitted(share, 128, 128) for launch in launches))


def compile_one(work: tuple[str, torch.dtype, Launch, argparse.Namespace]) -> None:
    """Compile a launch into the cache on disk, by running it once."""
    shape, state, launch, args = work
    Case(shape, 1, state, args).step(0, launch)
    torch.cuda.synchronize()


def measure(shape: str, rows: int, state: torch.dtype, args: argparse.Namespace) -> list[Record]:
    """Check and time every launch at one shape."""
    case, name = Case(shape, rows, state, args), str(state).removeprefix("torch.")
    records = []
    for launch in tried(shape, rows, state):
        error = case.check(launch)
        us, _, _ = case.time(args.replays, args.rounds, launch)
        records.append(Record(shape, name, rows, launch, us, case.floor_us / us, error))
    return records


def text(launch: Launch) -> str:
    """Return a launch in a few letters."""
    flags = ["ahead"] * launch.ahead
    return " ".join([("fused" if launch.fused else "apart"), f"{launch.block}x{launch.warps}w", *flags])


def main() -> None:
    """Measure and print tables; write the records to ``--json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,16,64,128", help="comma separated")
    parser.add_argument("--compilers", type=int, default=8, help="processes that compile; 0: none")
    parser.add_argument("--top", type=int, default=3, help="launches printed of a shape")
    layers.add_arguments(parser)
    parser.set_defaults(replays=3, rounds=3)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no CUDA device")
    torch.manual_seed(0)
    every_rows = [int(rows) for rows in args.rows.split(",")]
    cases = list(product(GDN, every_rows, STATES))
    if args.compilers:
        small = argparse.Namespace(bandwidth=args.bandwidth, touch_mib=0)
        work = dict.fromkeys((s, state, launch) for s, rows, state in cases for launch in tried(s, rows, state))
        with multiprocessing.get_context("spawn").Pool(args.compilers) as pool:
            pool.map(compile_one, [(*one, small) for one in work], chunksize=1)
    records: list[Record] = []
    for shape, rows, state in cases:
        here = measure(shape, rows, state, args)
        records += here
        chosen, best = here[0], sorted(here, key=lambda record: record.us)[: args.top]
        line = "; ".join(f"{text(r.launch)} {r.us:.2f} ({r.share:.0%})" for r in best)
        print(f"{shape} {chosen.state:8} {rows:4}: chosen {chosen.us:.2f} ({chosen.share:.0%}); {line}", flush=True)
    print("least share at 64 rows and more, by state:")
    for name, launch in dict.fromkeys((r.state, r.launch) for r in records):
        shares = [r.share for r in records if (r.state, r.launch) == (name, launch) and r.rows >= 64]
        if shares:
            print(f"  {min(shares):4.0%} of {len(shares)} {name:8} {text(launch)}")
    if args.json:
        write_json(args.json, "tune-gdn", [asdict(r) | {"launch": r.launch._asdict()} for r in records])


if __name__ == "__main__":
    main()
