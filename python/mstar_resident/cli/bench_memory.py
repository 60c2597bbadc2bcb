"""``mstar-resident bench memory``: what each rank's share of a shape takes, worked out without a device."""

from __future__ import annotations

import argparse
from typing import Any

import torch

from mstar_resident.bench.memory_plan import RankMemory, Span, memory_plan
from mstar_resident.bench.shapes import MOST_COLUMNS, NARROW
from mstar_resident.cli.exits import GOOD, UsageError
from mstar_resident.cli.record import check_writable, write_json
from mstar_resident.engine.config import EngineConfig, PoolConfig
from mstar_resident.models.qwen35 import SHAPES as QWEN35

SHAPES = {**QWEN35, "narrow": NARROW}
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
MOST_RANKS = 64
COLUMNS = (
    ("rank", 4),
    ("heads", 7),
    ("KV heads", 9),
    ("key heads", 10),
    ("value heads", 12),
    ("weights MiB", 12),
    ("KV B/token", 11),
    ("KV KiB/page", 12),
    ("pool MiB", 9),
    ("state KiB/request", 18),
    ("states MiB", 11),
    ("store KiB", 10),
    ("total MiB", 10),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--shape", default="27b", help=f"one of {', '.join(SHAPES)} (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=4, help="that share the model (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=128, help="of the widest step, and requests (default: %(default)s)")
    parser.add_argument("--page-size", type=int, default=128, help="tokens of a page (default: %(default)s)")
    parser.add_argument("--pages", type=int, default=MOST_COLUMNS, help="of the pool (default: %(default)s)")
    parser.add_argument("--dtype", default="bf16", help="of weights and KV, bf16 or fp32 (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="leave a record")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    if arguments.shape not in SHAPES:
        raise UsageError(f"--shape: expected one of {', '.join(SHAPES)}, got {arguments.shape!r}")
    if arguments.dtype not in DTYPES:
        raise UsageError(f"--dtype: expected one of {', '.join(DTYPES)}, got {arguments.dtype!r}")
    if not 1 <= arguments.ranks <= MOST_RANKS:
        raise UsageError(f"--ranks: expected 1 to {MOST_RANKS}, got {arguments.ranks}")
    check_writable(arguments.json)
    config = SHAPES[arguments.shape]
    engine = EngineConfig(
        max_batch=arguments.rows,
        max_requests=arguments.rows,
        recurrent_states=arguments.rows,
        pools={"kv": PoolConfig(arguments.page_size, arguments.pages, config.max_positions)},
        dtype=DTYPES[arguments.dtype],
    )
    plan = memory_plan(config, arguments.ranks, engine)
    ranks = "1 rank" if arguments.ranks == 1 else f"{arguments.ranks} ranks"
    print(
        f"{arguments.shape} on {ranks}, {arguments.dtype}, states in fp32: steps and states of {arguments.rows} "
        f"requests, {arguments.pages} pages of {arguments.page_size} tokens"
    )
    print(*(f"{head:>{width}}" for head, width in COLUMNS))
    for share in plan:
        print(*(f"{cell:>{width}}" for cell, (_, width) in zip(_row(share), COLUMNS, strict=True)))
    if arguments.json:
        conditions = {name: getattr(arguments, name) for name in ("shape", "ranks", "rows", "pages", "dtype")}
        conditions["page_size"] = arguments.page_size
        cases: list[dict[str, Any]] = [conditions | share.record() for share in plan]
        write_json(arguments.json, "bench-memory", cases)
    return GOOD


def _row(share: RankMemory) -> list[str]:
    return [
        str(share.rank),
        *map(_span, (share.heads, share.kv_heads, share.key_heads, share.value_heads)),
        f"{share.weight_bytes / 2**20:.1f}",
        str(share.kv_bytes_per_token),
        f"{share.kv_bytes_per_page / 2**10:.0f}",
        f"{share.kv_bytes / 2**20:.1f}",
        f"{share.state_bytes_per_request / 2**10:.0f}",
        f"{share.state_bytes / 2**20:.1f}",
        f"{share.store_bytes / 2**10:.0f}",
        f"{share.total_bytes / 2**20:.1f}",
    ]


def _span(span: Span) -> str:
    first, count = span
    return str(first) if count == 1 else f"{first}-{first + count - 1}"
