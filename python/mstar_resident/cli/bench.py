"""``mstar-resident bench plan|host|decode|prologue``."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from mstar_resident.cli import bench_decode, bench_host, bench_plan
from mstar_resident.cli.exits import ERROR, GOOD, MISMATCH, UsageError
from mstar_resident.cli.record import write_json

#: The workloads' requests hold pages for this many steps, and a request that joins stays for one step a row.
MOST_ROWS, MOST_STEPS = 512, 2000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    kinds = parser.add_subparsers(dest="what", required=True, metavar="{plan,host,decode,prologue}")
    plan = kinds.add_parser("plan", help="what a step's plan costs on the host: core, Python, NumPy planner")
    plan.add_argument("--rows", default="1,16,64,256", help="rows of a step, comma-separated (default: %(default)s)")
    plan.add_argument("--cases", default=",".join(bench_plan.CASES), help="comma-separated (default: all)")
    plan.add_argument("--steps", type=int, default=1000, help="timed steps a case (default: %(default)s)")
    plan.add_argument("--bounds", action="store_true", help="exit 1 where a bound of the plan's cost is missed")
    plan.add_argument("--json", metavar="FILE", help="leave a record")
    host = kinds.add_parser("host", help="what preparing a decode step costs the host-planned arm")
    host.add_argument(
        "--rows", default="1,16,64,128,256", help="rows of a step, comma-separated (default: %(default)s)"
    )
    host.add_argument("--steps", type=int, default=1000, help="timed steps a case (default: %(default)s)")
    host.add_argument("--device", default="cpu", help="cpu or cuda, where copies are included (default: %(default)s)")
    host.add_argument("--json", metavar="FILE", help="leave a record")
    decode = kinds.add_parser(
        "decode", help="the engine end to end: tokens a second and where a step's time goes, by arm"
    )
    bench_decode.add_arguments(decode)
    prologue = kinds.add_parser("prologue", help="what the prologue adds to a captured graph, on a CUDA device")
    prologue.add_argument("--rows", default="1,64,128", help="rows of a step, comma-separated (default: %(default)s)")
    prologue.add_argument("--columns", type=int, default=2050, help="columns of a row (default: %(default)s)")
    prologue.add_argument("--json", metavar="FILE", help="leave a record")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    if arguments.what == "decode":
        return bench_decode.run(arguments)
    rows = parse_rows(arguments.rows)
    if arguments.what == "prologue":
        return run_prologue(rows, arguments.columns, arguments.json)
    if not 1 <= arguments.steps <= MOST_STEPS:
        raise UsageError(f"--steps: expected 1 to {MOST_STEPS}, got {arguments.steps}")
    if arguments.what == "host":
        return run_host(rows, arguments.steps, arguments.device, arguments.json)
    names = [name.strip() for name in arguments.cases.split(",") if name.strip()]
    unknown = [name for name in names if name not in bench_plan.CASES]
    if unknown or not names:
        raise UsageError(f"--cases: expected some of {', '.join(bench_plan.CASES)}, got {arguments.cases!r}")
    heads = [f"{head:>10}" for head in ("core ns", "python us", "naive us", "naive/py", "bytes")]
    print(f"{'case':<11} {'rows':>5}", *heads)
    cases = []
    for name in names:
        for count in rows:
            try:
                case = bench_plan.run_case(name, count, arguments.steps)
            except bench_plan.WrongAnswer as wrong:
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
    missed = bench_plan.missed_bounds(cases) if arguments.bounds else []
    for bound in missed:
        print(f"missed: {bound}", file=sys.stderr)
    return MISMATCH if missed else GOOD


def run_host(rows: list[int], steps: int, device: str, json: str | None) -> int:
    """Run the bench of the host-planned arm; return its exit code."""
    if device not in ("cpu", "cuda"):
        raise UsageError(f"--device: expected cpu or cuda, got {device!r}")
    print(f"{'arm':<11} {'rows':>5} {'us p50':>10} {'us p99':>10}")
    cases = []
    for arm in bench_host.ARMS:
        for count in rows:
            try:
                case = bench_host.run_case(arm, count, steps, device)
            except bench_host.WrongPreparation as wrong:
                print(f"{arm} at {count} rows: {wrong}", file=sys.stderr)
                return MISMATCH
            print(f"{arm:<11} {count:>5} {case['us_p50']:>10.1f} {case['us_p99']:>10.1f}", flush=True)
            cases.append(case)
    if json:
        write_json(json, "bench-host", cases)
    return GOOD


def parse_rows(text: str) -> list[int]:
    """Return the comma-separated row counts.

    Raises:
        UsageError: not positive ints, or more rows than the workloads have pages for.
    """
    try:
        rows = [int(part) for part in text.split(",")]
    except ValueError:
        rows = []
    if not rows or not all(1 <= count <= MOST_ROWS for count in rows):
        raise UsageError(f"--rows: expected comma-separated ints from 1 to {MOST_ROWS}, got {text!r}")
    return rows


def run_prologue(rows: list[int], columns: int, json: str | None) -> int:
    """Run the prologue's bench, which is part of a checkout, on this machine's CUDA device."""
    import torch

    bench = Path(__file__).resolve().parents[3] / "benches/gpu/bench_prologue.py"
    if not bench.is_file():
        raise UsageError("bench prologue: it is part of a checkout, not of the wheel")
    if not torch.cuda.is_available():
        raise UsageError("bench prologue: this machine has no CUDA device")
    command = [sys.executable, str(bench), "--rows", ",".join(map(str, rows)), "--columns", str(columns)]
    done = subprocess.run(command + (["--json", json] if json else []), check=False)
    return GOOD if done.returncode == 0 else ERROR
