"""Prove rows on a GPU: thousands of captured steps of a hybrid decoder, each row of each step checked.

Seeded random weights in a Qwen3.5 shape, requests joining and leaving in groups, host-planned steps in between. With
``--check row`` every step is followed by the row check, which waits for the device; with ``--check shadow`` the graph
records what it used and nothing waits. Exit 1 if anything differed, or if the run was not what it is named for:

    python3 benches/gpu/prove.py --shape 0.8b --rows 40 --steps 20000 --check shadow --json out.json
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import get_args

import numpy as np
import torch

from mstar_resident.attention.select import Backend, select_attention
from mstar_resident.cli.record import write_json
from mstar_resident.engine.config import EngineConfig, PoolConfig
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.request import Request
from mstar_resident.models.kernels import Kernels
from mstar_resident.models.qwen35 import SHAPES, Qwen35

GROUP = 8
"""Requests that join together, and leave together."""
PAGE_SIZE = 16
"""One row in 16 crosses a page in every step."""
LIFE = 80
"""Steps between the groups."""


def build(shape: str, rows: int, check: str, seed: int, attention: Backend) -> Engine:
    """Build the engine, its graphs captured, every bucket resident and host-plan-free."""
    torch.cuda.set_device(0)
    c, bf16 = SHAPES[shape], torch.bfloat16
    decode = select_attention(attention, c.heads, c.kv_heads, c.head_dim, PAGE_SIZE, bf16, "cuda")
    model = Qwen35.seeded(c, seed, device="cuda", dtype=bf16, kernels=Kernels.triton(decode))
    engine = Engine(model, sizes(rows, check, "cuda", bf16))
    report = engine.capture()
    if not report.host_plan_free:
        raise SystemExit(f"a bucket is not host-plan-free:\n{report}")
    return engine


def sizes(rows: int, check: str, device: str, dtype: torch.dtype) -> EngineConfig:
    """Size an engine for the traffic of :func:`drive`."""
    new = LIFE * (rows // GROUP)
    return EngineConfig(
        max_batch=rows,
        max_requests=2 * rows,
        recurrent_states=2 * rows,
        pools={"kv": PoolConfig(PAGE_SIZE, 2 * rows * (new // PAGE_SIZE + 4), 2048)},
        device=device,
        dtype=dtype,
        check=check == "row",
        shadow=check == "shadow",
    )


def drive(engine: Engine, rows: int, steps: int, seed: int) -> int:
    """Serve groups of requests that join and leave until ``steps`` steps were resident; return how many joined."""
    draw = np.random.default_rng(seed)
    groups = rows // GROUP
    vocab = engine.model.vocab_size
    joined = 0
    while engine.counters.resident_steps < steps:
        if not engine.busy or engine.counters.resident_steps >= LIFE * (joined // GROUP):
            for _ in range(GROUP):
                prompt = draw.integers(1, vocab, int(draw.integers(5, 21)))
                engine.add(Request(str(joined), prompt, LIFE * groups))
                joined += 1
        engine.step()
    engine.run()
    return joined


def unmet(engine: Engine, rows: int, steps: int, joined: int, checked: int) -> list[str]:
    """Return, as sentences, what a run lacks of what a proof must have."""
    counters, lacks = engine.counters, []
    crossings = engine.planner.stats().crossings if engine.planner is not None else 0
    if checked < 0.8 * rows * steps:
        lacks.append(f"only {checked} rows were checked, fewer than {0.8 * rows:.0f} a step")
    if joined * 2 < counters.resident_steps / 20:
        lacks.append("fewer than one join or leave in 20 steps")
    if crossings < 0.05 * checked:
        lacks.append("fewer than 5% of the rows crossed a page in a step")
    if counters.steps == counters.resident_steps:
        lacks.append("no host-planned step was mixed in")
    return lacks


def prove(shape: str, rows: int, steps: int, check: str, seed: int, attention: Backend) -> dict[str, object]:
    """Run until ``steps`` steps were resident, and return what was seen."""
    begin = time.perf_counter()
    engine = build(shape, rows, check, seed, attention)
    planner = engine.planner
    if planner is None:
        raise SystemExit(f"the node stayed host-planned: {engine.refusal}")
    built = time.perf_counter()
    joined = drive(engine, rows, steps, seed)
    done = time.perf_counter()
    counters, stats = engine.counters, planner.stats()
    checked = engine.shadow.rows if engine.shadow is not None else counters.rows_checked
    case: dict[str, object] = {
        "shape": shape,
        "check": check,
        "attention": attention,
        "seed": seed,
        "rows": rows,
        "page_size": PAGE_SIZE,
        "steps": counters.steps,
        "resident_steps": counters.resident_steps,
        "host_steps": counters.steps - counters.resident_steps,
        "promoted": counters.promoted,
        "joined": joined,
        "rows_checked": checked,
        "mismatches": len(counters.mismatches),
        "crossings": stats.crossings,
        "crossing_share": round(stats.crossings / max(1, checked), 4),
        "whole_rows": stats.whole_rows,
        "displaced": stats.displaced,
        "ring_waits": stats.ring_waits,
        "copies": stats.copies,
        "bytes": stats.bytes,
        "build_s": round(built - begin, 1),
        "run_s": round(done - built, 1),
    }
    for found in counters.mismatches[:10]:
        print(found, file=sys.stderr)
    lacks = unmet(engine, rows, steps, joined, checked)
    for text in lacks:
        print(f"not proved: {text}", file=sys.stderr)
    case["proved"] = not lacks and not counters.mismatches
    return case


def main() -> int:
    """Run the proofs and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="0.8b", choices=sorted(SHAPES))
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--check", default="shadow,row", help="shadow, row, or both, comma-separated")
    parser.add_argument("--attention", default="triton", choices=get_args(Backend))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    cases = []
    for check in arguments.check.split(","):
        case = prove(arguments.shape, arguments.rows, arguments.steps, check, arguments.seed, arguments.attention)
        print(case, flush=True)
        cases.append(case)
    if arguments.json:
        write_json(arguments.json, "prove", cases)
    return 0 if all(case["proved"] for case in cases) else 1


if __name__ == "__main__":
    sys.exit(main())
