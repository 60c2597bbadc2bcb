"""``mstar-resident bench prologue|attention``: benches of kernels, which are part of a checkout."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from mstar_resident.cli.exits import ERROR, GOOD, UsageError
from mstar_resident.cli.lists import counts
from mstar_resident.cli.record import check_writable

MOST_ROWS, MOST_TOKENS = 512, 1 << 20


def add_prologue(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the prologue's bench."""
    parser.add_argument("--rows", default="1,64,128", help="rows of a step, comma-separated (default: %(default)s)")
    parser.add_argument("--columns", type=int, default=2050, help="columns of a row (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="leave a record")


def add_attention(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of attention's bench."""
    parser.add_argument("--head-dim", type=int, default=256, help="64, 128 or 256 (default: %(default)s)")
    parser.add_argument("--kv-heads", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--group", type=int, default=4, help="query heads of a KV head (default: %(default)s)")
    parser.add_argument("--page", type=int, default=16, help="tokens of a page (default: %(default)s)")
    parser.add_argument("--rows", default="1,16,64,128", help="rows of a step, comma-separated (default: %(default)s)")
    parser.add_argument(
        "--lengths", default="768,8192,skewed", help="tokens of every row, or skewed, comma-separated (%(default)s)"
    )
    parser.add_argument("--json", metavar="FILE", help="leave a record")


def run(arguments: argparse.Namespace) -> int:
    """Run a bench on this machine's CUDA device; return its exit code."""
    import torch

    options = {name: value for name, value in vars(arguments).items() if value is not None}
    counts("--rows", arguments.rows, MOST_ROWS)
    if arguments.what == "attention":
        lengths = [part for part in arguments.lengths.split(",") if part != "skewed"]
        if lengths or not arguments.lengths:
            counts("--lengths", ",".join(lengths), MOST_TOKENS)
    check_writable(arguments.json)
    bench = Path(__file__).resolve().parents[3] / f"benches/gpu/bench_{arguments.what}.py"
    if not bench.is_file():
        raise UsageError(f"bench {arguments.what}: it is part of a checkout, not of the wheel")
    if not torch.cuda.is_available():
        raise UsageError(f"bench {arguments.what}: this machine has no CUDA device")
    command = [sys.executable, str(bench)]
    for name in ("head_dim", "kv_heads", "group", "page", "columns", "rows", "lengths", "json"):
        if name in options:
            command += [f"--{name.replace('_', '-')}", str(options[name])]
    return GOOD if subprocess.run(command, check=False).returncode == 0 else ERROR
