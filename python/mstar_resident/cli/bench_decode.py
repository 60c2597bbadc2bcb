"""``mstar-resident bench decode``: the engine's arms end to end, on the shapes of real models."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from mstar_resident.bench.decode import ARMS, DecodeBench, WrongRun
from mstar_resident.bench.plot import draw
from mstar_resident.bench.serve import TooShortError
from mstar_resident.bench.shapes import SHAPES
from mstar_resident.cli.exits import GOOD, MISMATCH, UsageError
from mstar_resident.cli.lists import chosen, counts
from mstar_resident.cli.record import check_writable, machine, write_json

MOST_ROWS, MOST_ROUNDS = 512, 100
HEADS = (
    ("rows", 4),
    ("arm", -9),
    ("tok/s", 9),
    ("against", 22),
    ("itl p50/p99 us", 16),
    ("ttft ms", 8),
    ("step us", 9),
    ("graph us", 9),
    ("x graph", 8),
    ("idle us", 8),
    ("host us", 8),
    ("sent B", 8),
    ("resident", 8),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--shape", default="0.8b", help=f"some of {', '.join(SHAPES)}, comma-separated (default: 0.8b)")
    parser.add_argument("--concurrency", default="1,8,16", help="requests at once, comma-separated (default: 1,8,16)")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt (default: %(default)s)")
    parser.add_argument("--new", type=int, default=256, help="tokens of an answer (default: %(default)s)")
    parser.add_argument("--arms", default=",".join(ARMS), help="comma-separated (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="timed runs of every arm (default: %(default)s)")
    parser.add_argument("--device", default="cuda", help="cuda or cpu (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="leave a record")
    parser.add_argument("--plot", metavar="FILE", help="draw the cases as an SVG")
    parser.add_argument("--trace", metavar="FILE", help="leave a Chrome trace of the first concurrency's steps")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    shapes = chosen("--shape", arguments.shape, tuple(SHAPES))
    arms = [arm for name in chosen("--arms", arguments.arms, ARMS) for arm in ARMS if arm == name]
    concurrency = counts("--concurrency", arguments.concurrency, MOST_ROWS)
    _check(arguments, shapes)
    cases: list[dict[str, Any]] = []
    trace = arguments.trace
    for name in shapes:
        bench = DecodeBench(SHAPES[name], arms, concurrency, arguments.prompt, arguments.new, arguments.device)
        _show_head(bench, arguments.rounds)
        for rows in concurrency:
            try:
                found = bench.run(rows, arguments.rounds, trace=bool(trace))
            except WrongRun as wrong:
                print(wrong, file=sys.stderr)
                return MISMATCH
            except TooShortError as error:
                raise UsageError(str(error)) from error
            _show(found)
            cases += found
            if trace:
                _write("--trace", trace, json.dumps({"displayTimeUnit": "ms", "traceEvents": bench.trace}))
                trace = None
            # After every concurrency, so that a run that is cut short leaves what it measured.
            if arguments.json:
                write_json(arguments.json, "bench-decode", cases)
            if arguments.plot:
                _write("--plot", arguments.plot, draw(cases, f"Decode, {', '.join(arms)}: {machine()}"))
        del bench  # its pools, before the next shape's
    return GOOD


def _check(arguments: argparse.Namespace, shapes: list[str]) -> None:
    if arguments.device not in ("cpu", "cuda"):
        raise UsageError(f"--device: expected cpu or cuda, got {arguments.device!r}")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: this machine has no CUDA device")
    if not 1 <= arguments.rounds <= MOST_ROUNDS:
        raise UsageError(f"--rounds: expected 1 to {MOST_ROUNDS}, got {arguments.rounds}")
    for option in ("prompt", "new"):
        if getattr(arguments, option) < 1:
            raise UsageError(f"--{option}: expected at least 1, got {getattr(arguments, option)}")
    for name in shapes:
        most = SHAPES[name].config.max_positions
        if arguments.prompt + arguments.new > most:
            raise UsageError(f"--prompt and --new: {name} has room for {most} tokens, got more")
    if arguments.plot and not arguments.plot.endswith(".svg"):
        raise UsageError(f"--plot: expected a file that ends in .svg, got {arguments.plot!r}")
    for option in ("json", "plot", "trace"):
        check_writable(getattr(arguments, option), f"--{option}")


def _write(option: str, path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{option}: cannot write {path}: {error.strerror}") from error


def _show_head(bench: DecodeBench, rounds: int) -> None:
    entry = bench.engines[bench.baseline].streams["kv"]
    print(
        f"{bench.shape.name} on {bench.device}: prompt {bench.prompt}, {bench.new} new, {rounds} rounds; pages of "
        f"{entry.pool.page_size}, {entry.width} columns; {bench.weight_bytes / 1e9:.2f} GB of weights a step, "
        f"{bench.weight_floor_us:.0f} us at 4.3 TB/s"
    )
    print(*(f"{head:{'<' if width < 0 else '>'}{abs(width)}}" for head, width in HEADS), flush=True)


def _show(cases: list[dict[str, Any]]) -> None:
    for case in cases:
        ratio, step, graph = case["ratio"], case["step_us"]["median"], case["graph_us"]["median"]
        against = f"{ratio['median']:.3f} ({ratio['min']:.3f}-{ratio['max']:.3f})"
        sent = case["planner_bytes_per_step"] if case["h2d_bytes_per_step"] is None else case["h2d_bytes_per_step"]
        values = [
            str(case["concurrency"]),
            case["arm"],
            f"{case['tok_s']['median']:.0f}",
            against if case["arm"] != case["ratio_to"] else "-",
            f"{case['itl_us_p50']['median']:.0f}/{case['itl_us_p99']['median']:.0f}",
            f"{case['ttft_us_p50']['median'] / 1000:.1f}",
            f"{step:.1f}",
            f"{graph:.1f}",
            f"{step / graph:.3f}",
            "-" if case["idle_us"] is None else f"{case['idle_us']['median']:.1f}",
            f"{case['host_us']['median']:.1f}",
            "-" if sent is None else f"{sent:.0f}",
            f"{case['resident_share']:.0%}",
        ]
        print(
            *(
                f"{value:{'<' if width < 0 else '>'}{abs(width)}}"
                for value, (_, width) in zip(values, HEADS, strict=True)
            )
        )
        if case["graph_growth_us"] is not None:
            growth = case["graph_growth_us"]
            least, most = growth["min"], growth["max"]
            print(f"     the prologue adds {growth['median']:.2f} us ({least:.2f} to {most:.2f}) to the graph")
        if case["device"] == "cuda" and case["idle_us"] is None:
            print(f"no graph was found in the profile of arm {case['arm']}: its idle time is unknown", file=sys.stderr)
    sys.stdout.flush()
