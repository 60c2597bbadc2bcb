"""``mstar-resident bench decode``: the engine's arms end to end, on the shapes of real models."""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from pathlib import Path
from typing import Any, get_args

import torch

from mstar_resident.attention.select import Backend
from mstar_resident.bench.decode import ARMS, DecodeBench, WrongRun
from mstar_resident.bench.plot import draw
from mstar_resident.bench.serve import TooShortError
from mstar_resident.bench.shapes import SHAPES
from mstar_resident.cli.exits import GOOD, MISMATCH, UsageError
from mstar_resident.cli.lists import chosen, counts
from mstar_resident.cli.record import check_writable, machine, write_json

MOST_ROWS, MOST_ROUNDS = 512, 100
#: Of both tables' columns: head and width, negative for text.
TIMED = (
    ("rows", 4),
    ("arm", -9),
    ("tok/s", 9),
    ("against", 22),
    ("itl p50/p99 us", 16),
    ("ttft ms", 8),
    ("step us", 9),
    ("graph us", 9),
    ("step/graph", 10),
    ("host us", 8),
    ("plan us", 8),
    ("adds us", 8),
    ("resident", 8),
)
PROFILED = (
    ("rows", 4),
    ("arm", -9),
    ("idle us", 26),
    ("of it busy", 10),
    ("copies", 8),
    ("bytes", 9),
    ("graph span us", 13),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--shape", default="0.8b", help=f"one of {', '.join(SHAPES)} (default: %(default)s)")
    parser.add_argument("--concurrency", default="1,8,16", help="requests at once, comma-separated (default: 1,8,16)")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt (default: %(default)s)")
    parser.add_argument("--new", type=int, default=256, help="tokens of an answer (default: %(default)s)")
    parser.add_argument("--arms", default=",".join(ARMS), help="comma-separated (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="timed runs of every arm (default: %(default)s)")
    parser.add_argument(
        "--profile",
        metavar="CONCURRENCY",
        help="of which a run is profiled for idle time and copies, comma-separated (default: all of --concurrency)",
    )
    parser.add_argument("--page-size", type=int, help="tokens of a page (default: the shape's, 128 but for tiny)")
    parser.add_argument(
        "--attention", default="auto", choices=get_args(Backend), help="what decodes on cuda (default: %(default)s)"
    )
    parser.add_argument("--device", default="cuda", help="cuda or cpu (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="leave a record")
    parser.add_argument("--plot", metavar="FILE", help="draw the cases as an SVG")
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="leave a Chrome trace of the first profiled concurrency's steps, gzipped if FILE ends in .gz",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    if arguments.shape not in SHAPES:
        raise UsageError(f"--shape: expected one of {', '.join(SHAPES)}, got {arguments.shape!r}")
    arms = [arm for name in chosen("--arms", arguments.arms, ARMS) for arm in ARMS if arm == name]
    concurrency = counts("--concurrency", arguments.concurrency, MOST_ROWS)
    profiled = list(map(str, concurrency))
    if arguments.profile is not None:
        profiled = chosen("--profile", arguments.profile, profiled)
    _check(arguments)
    shape = SHAPES[arguments.shape].paged(arguments.page_size)
    tokens = arguments.prompt, arguments.new
    bench = DecodeBench(shape, arms, concurrency, *tokens, arguments.device, arguments.attention)
    try:
        _measure(bench, concurrency, profiled, arguments)
    except WrongRun as wrong:
        print(wrong, file=sys.stderr)
        return MISMATCH
    except TooShortError as error:
        raise UsageError(str(error)) from error
    return GOOD


def _measure(bench: DecodeBench, concurrency: list[int], wanted: list[str], arguments: argparse.Namespace) -> None:
    _show_head(bench, arguments.rounds)
    found: list[list[dict[str, Any]]] = []
    for rows in concurrency:
        found.append(bench.run(rows, arguments.rounds))
        for case in found[-1]:
            _print_row(_timed_row(case), TIMED)
        _leave(found, arguments)
    # A profiler stays attached to the process: first all that is timed, then all that is profiled.
    profiled = [cases for cases, rows in zip(found, concurrency, strict=True) if str(rows) in wanted]
    if arguments.device != "cuda":
        profiled = profiled[: bool(arguments.trace)]
    if profiled:
        _print_row([head for head, _ in PROFILED], PROFILED)
    for number, cases in enumerate(profiled):
        trace = bench.profile(cases)
        for case in cases:
            _print_row(_profiled_row(case), PROFILED)
        _leave(found, arguments)
        if arguments.trace and number == 0:
            _write("--trace", arguments.trace, json.dumps({"displayTimeUnit": "ms", "traceEvents": trace}))


def _leave(found: list[list[dict[str, Any]]], arguments: argparse.Namespace) -> None:
    """Write record and plot, after each concurrency: a run that is cut short leaves what it measured."""
    cases = [case for cases in found for case in cases]
    if arguments.json:
        write_json(arguments.json, "bench-decode", cases)
    if arguments.plot:
        _write("--plot", arguments.plot, draw(cases, f"Decode, {', '.join(arguments.arms.split(','))}: {machine()}"))


def _check(arguments: argparse.Namespace) -> None:
    if arguments.device not in ("cpu", "cuda"):
        raise UsageError(f"--device: expected cpu or cuda, got {arguments.device!r}")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: this machine has no CUDA device")
    if not 1 <= arguments.rounds <= MOST_ROUNDS:
        raise UsageError(f"--rounds: expected 1 to {MOST_ROUNDS}, got {arguments.rounds}")
    for option in ("prompt", "new", "page_size"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            raise UsageError(f"--{option.replace('_', '-')}: expected at least 1, got {value}")
    most, tokens = SHAPES[arguments.shape].config.max_positions, arguments.prompt + arguments.new
    if tokens > most:
        raise UsageError(f"--prompt and --new: {arguments.shape} has room for {most} tokens, got {tokens}")
    if arguments.plot and not arguments.plot.endswith(".svg"):
        raise UsageError(f"--plot: expected a file that ends in .svg, got {arguments.plot!r}")
    for option in ("json", "plot", "trace"):
        check_writable(getattr(arguments, option), f"--{option}")


def _write(option: str, path: str, text: str) -> None:
    packed = gzip.compress if path.endswith(".gz") else bytes
    try:
        Path(path).write_bytes(packed(text.encode()))
    except OSError as error:
        raise UsageError(f"{option}: cannot write {path}: {error.strerror}") from error


def _show_head(bench: DecodeBench, rounds: int) -> None:
    entry = bench.engines[bench.baseline].streams["kv"]
    print(
        f"{bench.shape.name} on {bench.device}: prompt {bench.prompt}, {bench.new} new, {rounds} rounds; pages of "
        f"{entry.pool.page_size}, {entry.width} columns; {bench.weight_bytes / 1e9:.2f} GB of weights a step, "
        f"{bench.weight_floor_us:.0f} us at 4.3 TB/s"
    )
    if bench.device == "cuda":
        print(*bench.reports[bench.arms[-1]].buckets, sep="\n")
    _print_row([head for head, _ in TIMED], TIMED)


def _timed_row(case: dict[str, Any]) -> list[str]:
    ratio, step, graph = case["ratio"], case["step_us"]["median"], case["graph_us"]["median"]
    growth = case["graph_growth_us"]
    return [
        str(case["concurrency"]),
        case["arm"],
        f"{case['tok_s']['median']:.0f}",
        "-" if case["arm"] == case["ratio_to"] else f"{ratio['median']:.3f} ({ratio['min']:.3f}-{ratio['max']:.3f})",
        f"{case['itl_us_p50']['median']:.0f}/{case['itl_us_p99']['median']:.0f}",
        f"{case['ttft_us_p50']['median'] / 1000:.1f}",
        f"{step:.1f}",
        f"{graph:.1f}",
        f"{step / graph:.3f}",
        f"{case['host_us']['median']:.1f}",
        f"{case['prepare_us']['median']:.1f}",
        "-" if growth is None else f"{growth['median']:.2f}",
        f"{case['resident_share']:.0%}",
    ]


def _profiled_row(case: dict[str, Any]) -> list[str]:
    row = [str(case["concurrency"]), case["arm"]]
    if case["idle_us"] is None:  # a CPU, or a profiler that saw no graph
        return row + ["unknown"] + ["-"] * (len(PROFILED) - 3)
    idle = case["idle_us"]
    return [
        *row,
        f"{idle['median']:.1f} ({idle['min']:.1f}-{idle['max']:.1f})",
        f"{case['idle_busy_us']['median']:.1f}",
        f"{case['h2d_copies_per_step']:.2f}",
        f"{case['h2d_bytes_per_step']:.0f}",
        f"{case['graph_span_us']['median']:.1f}",
    ]


def _print_row(values: list[str], columns: tuple[tuple[str, int], ...]) -> None:
    cells = (
        f"{value:{'<' if width < 0 else '>'}{abs(width)}}" for value, (_, width) in zip(values, columns, strict=True)
    )
    print(*cells, flush=True)
