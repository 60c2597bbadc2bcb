"""Time launches of the split-KV decode kernel, check each, and print the best: what ``paged_launch.LAUNCHES`` records.

    python3 benches/gpu/tune_attention.py --json tuned.json
    python3 benches/gpu/tune_attention.py --shapes 256x2x4p16 --cases 16x8192,64x8192

Kernels are compiled first, by several processes. A launch whose answer is not float64's, or differs from one run to the
next, stops the run; one that needs too much shared memory is left out.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import layers
import torch
from bench_attention import DTYPE, Case
from triton.runtime.errors import OutOfResources

from mstar_resident.cli.record import write_json
from mstar_resident.kernels.paged_decode import PagedDecode
from mstar_resident.kernels.paged_launch import Launch

MAX_LENGTH = 16384
EVERY = "1x768,16x768,64x768,128x768,1x8192,16x8192,64x8192,64xskewed"


@dataclass(frozen=True)
class Shape:
    """Hold what a workspace is made for, written ``256x2x4p16``."""

    head_dim: int
    kv_heads: int
    group: int
    page: int

    def __str__(self) -> str:
        return f"{self.head_dim}x{self.kv_heads}x{self.group}p{self.page}"

    def decode(self, rows: int, launch: Launch) -> PagedDecode:
        """Return the workspace of a bucket."""
        heads = self.kv_heads * self.group
        sizes = (rows, heads, self.kv_heads, self.head_dim, self.page, MAX_LENGTH)
        return PagedDecode(*sizes, DTYPE, "cuda", _launch=launch)


CASES = {
    Shape(256, 2, 4, 16): EVERY,
    Shape(256, 2, 4, 128): "16x8192",
    Shape(256, 4, 4, 16): "16x768,64x768,16x8192",
    Shape(128, 8, 4, 16): "1x768,16x768,64x768,16x8192",
    Shape(64, 3, 3, 16): "1x768,16x768,64x768",
}
#: By head dim: tile, warps, stages, programs.
TRIED: dict[int, list[tuple[int, int, int, int]]] = {
    256: [
        (32, 4, 3, 2),
        (32, 4, 4, 2),
        (32, 4, 3, 3),
        (32, 4, 4, 1),
        (32, 2, 4, 2),
        (64, 4, 2, 3),
    ],
    128: [
        (64, 4, 3, 2),
        (64, 4, 4, 2),
        (64, 4, 3, 3),
        (32, 4, 4, 4),
    ],
    64: [
        (64, 4, 3, 2),
        (64, 4, 4, 4),
        (128, 4, 4, 2),
    ],
}


def launches(shape: Shape) -> Iterator[Launch]:
    """Return the launches that are tried."""
    return itertools.starmap(Launch, TRIED[shape.head_dim])


def compile_one(job: tuple[Shape, int, Launch]) -> bool:
    """Compile what a bucket launches into the compiler's cache; return whether it fits."""
    shape, rows, launch = job
    q = torch.zeros(rows, shape.kv_heads * shape.group, shape.head_dim, dtype=DTYPE, device="cuda")
    layer = torch.zeros(1, 2, shape.page, shape.kv_heads, shape.head_dim, dtype=DTYPE, device="cuda")
    table = torch.zeros(1, 7, dtype=torch.int32, device="cuda")
    index, lengths = (torch.zeros(rows, dtype=dtype, device="cuda") for dtype in (torch.int64, torch.int32))
    try:
        shape.decode(rows, launch).run(q, layer, table, index, lengths, torch.empty_like(q))
    except OutOfResources:
        return False
    torch.cuda.synchronize()
    return True


def time_one(shape: Shape, case: Case, launch: Launch, args: argparse.Namespace) -> tuple[tuple[float, ...], float]:
    """Return µs of a layer, median, p10 and p90, and the relative error."""
    paged, q = case.paged, case.q
    decode, out = shape.decode(len(q), launch), torch.empty_like(q)

    def attend(layer: torch.Tensor) -> torch.Tensor:
        decode.run(q, layer, paged.table, paged.rows, paged.lengths, out)
        return out

    def body() -> None:
        for layer in case.pool:
            attend(layer)

    first = attend(case.pool[0]).clone()
    error = case.error(first)
    if not error < 6e-3:
        raise SystemExit(f"{shape}, {launch}: relative error {error}")
    times = layers.time_graph(body, case.layers, args.replays, args.rounds)
    if not torch.equal(attend(case.pool[0]), first):
        raise SystemExit(f"{shape}, {launch}: another answer the second time")
    return times, error


def tune(shape: Shape, name: str, fitting: list[Launch], args: argparse.Namespace) -> list[dict[str, object]]:
    """Time every launch of one case, print the best three, return all."""
    rows, kind = name.split("x", 1)
    values = {"head_dim": shape.head_dim, "kv_heads": shape.kv_heads, "group": shape.group, "page": shape.page}
    case = Case(int(rows), kind, argparse.Namespace(**values, touch_mib=args.touch_mib, bandwidth=args.bandwidth))
    records = []
    for launch in fitting:
        times, error = time_one(shape, case, launch, args)
        figures = dict(zip(("us", "p10_us", "p90_us"), times, strict=True))
        record = values | asdict(launch) | figures
        records.append(record | {"case": name, "floor_us": case.floor_us, "relative_error": error})
    records.sort(key=lambda record: record["us"])
    for record in records[:3]:
        print(f"{shape!s:12} {name:10} {record['us']:8.2f} {case.floor_us:8.2f}  {described(record)}", flush=True)
    return records


def described(record: dict[str, object]) -> str:
    """Return a launch in words."""
    sizes = f"tile {record['tile']}, warps {record['warps']}, stages {record['stages']}, programs {record['programs']}"
    return f"{sizes}"


def overall(records: list[dict[str, object]]) -> list[tuple[float, float, str]]:
    """Return by launch how far it is from the best, at the worst case and on average; the nearest first."""
    best: dict[object, float] = {}
    for record in records:
        best[record["case"]] = min(record["us"], best.get(record["case"], record["us"]))
    ratios: dict[str, list[float]] = {}
    for record in records:
        ratios.setdefault(described(record), []).append(record["us"] / best[record["case"]])
    return sorted((max(found), sum(found) / len(found), name) for name, found in ratios.items())


def main() -> None:
    """Compile, time, print the best of each case and of each shape, write ``--json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=",".join(map(str, CASES)), help="comma separated, of the default")
    parser.add_argument("--cases", help="comma separated rows x length or skewed; those of the shape by default")
    parser.add_argument("--jobs", type=int, default=14, help="processes that compile")
    layers.add_arguments(parser)
    parser.set_defaults(replays=3, rounds=7)
    args = parser.parse_args()
    known = {str(shape): shape for shape in CASES}
    if any(name not in known for name in args.shapes.split(",")):
        parser.error(f"--shapes: expected some of {','.join(known)}, got {args.shapes}")
    if not torch.cuda.is_available():
        parser.error("no CUDA device")
    cases = {known[name]: (args.cases or CASES[known[name]]).split(",") for name in args.shapes.split(",")}
    jobs = []
    for shape, names in cases.items():
        for rows in sorted({int(name.split("x")[0]) for name in names}):
            jobs += [(shape, rows, launch) for launch in launches(shape)]
    began = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(min(args.jobs, len(jobs))) as pool:
        fits = dict(zip(jobs, pool.map(compile_one, jobs, chunksize=1), strict=True))
    print(f"compiled {sum(fits.values())} of {len(jobs)} in {time.monotonic() - began:.0f} s", flush=True)
    print(f"{'shape':12} {'case':10} {'µs':>8} {'floor':>8}  launch")
    records = []
    for shape, names in cases.items():
        of_shape = []
        for name in names:
            torch.manual_seed(0)
            rows = int(name.split("x")[0])
            fitting = [launch for launch in launches(shape) if fits[shape, rows, launch]]
            of_shape += tune(shape, name, fitting, args)
        for worst, mean, launch in overall(of_shape)[:3]:
            print(f"{shape!s:12} {'all':10} {mean:7.3f}x {worst:7.3f}x  {launch} (the best: mean, worst)", flush=True)
        records += of_shape
    print(f"done in {time.monotonic() - began:.0f} s")
    if args.json:
        write_json(args.json, "tune-attention", records)


if __name__ == "__main__":
    main()
