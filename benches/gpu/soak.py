"""Soak the engine on a GPU: one long run after another, each row of each resident step compared with the host's truth.

    python3 benches/gpu/soak.py slot_pressure --steps 20000 --seed 1 --check shadow --json FILE

Exit 1 if anything differed, a request failed, memory grew, or the run was not what it is named for. ``--check row``
waits for the device after every step; ``shadow`` waits for nothing; ``none`` leaves the rows to the ``--compare`` with
the host-planned arm, whose requests must say the same.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import torch
from soak_runs import RUNS, Run, Traffic

from mstar_resident.cli.record import write_json
from mstar_resident.engine.config import EngineConfig
from mstar_resident.engine.engine import Engine
from mstar_resident.models.config import LlamaConfig, WhisperConfig
from mstar_resident.models.kernels import Kernels
from mstar_resident.models.llama import Llama
from mstar_resident.models.qwen35 import SHAPES, Qwen35
from mstar_resident.models.rope import RopeConfig
from mstar_resident.models.whisper import Whisper

TINY = LlamaConfig(101, 32, 2, 4, 2, 16, 64, RopeConfig(theta=1e4, rotary_dim=16))
TINY_WHISPER = WhisperConfig(101, 32, 2, 4, 64, max_positions=448, max_context=1500)


def decoder(name: str, shape: str, seed: int, device: str) -> Any:
    """Return the run's decoder: seeded weights in a shape, ``tiny`` for a CPU."""
    cuda = device != "cpu"
    given: dict[str, Any] = {
        "device": device,
        "dtype": torch.bfloat16 if cuda else torch.float32,
        "kernels": Kernels.triton() if cuda else Kernels(),
    }
    if name == "whisper":
        return Whisper.seeded(TINY_WHISPER if shape == "tiny" else WhisperConfig(), seed, **given)
    return Llama.seeded(TINY, seed, **given) if shape == "tiny" else Qwen35.seeded(SHAPES[shape], seed, **given)


def build(name: str, args: argparse.Namespace, planning: str) -> Engine:
    """Build the run's engine, its graphs captured."""
    run, cuda = RUNS[name], args.device != "cpu"
    requests = run.config.get("max_requests", run.rows + 16)
    settings: dict[str, Any] = {
        "max_batch": run.rows,
        "max_requests": requests,
        "recurrent_states": requests,
        "pools": dict.fromkeys(("kv", "self", "context"), run.pool),
        "device": args.device,
        "dtype": torch.bfloat16 if cuda else torch.float32,
        "planning": planning,
        "check": args.check == "row" and planning == "resident",
        "shadow": args.check == "shadow" and planning == "resident",
    }
    engine = Engine(decoder(name, args.shape, args.seed, args.device), EngineConfig(**{**settings, **run.config}))
    engine.capture()
    return engine


def soak(name: str, args: argparse.Namespace, planning: str = "resident") -> tuple[dict[str, Any], list[list[int]]]:
    """Run until ``--steps`` decode steps are over; return the case and what every request said."""
    run, engine = RUNS[name], build(name, args, planning)
    if planning == "resident" and engine.planner is None:
        raise SystemExit(f"the node stayed host-planned: {engine.refusal}")
    traffic, counters = Traffic(engine, args.seed), engine.counters
    begin, held = time.perf_counter(), 0
    while counters.decode_steps < args.steps:
        run.before(traffic, run.rows)
        engine.step()
        if not held and counters.decode_steps >= args.steps // 2:
            held = allocated(args.device)
    engine.run()
    took = time.perf_counter() - begin
    stats = engine.planner.stats() if engine.planner is not None else None
    tokens = sum(len(request.outputs) for request in traffic.requests)
    case = {
        "run": name,
        "shape": args.shape,
        "planning": planning,
        "check": args.check,
        "seed": args.seed,
        "rows": run.rows,
        "steps": counters.steps,
        "decode_steps": counters.decode_steps,
        "resident_steps": counters.resident_steps,
        "rows_checked": engine.shadow.rows if engine.shadow is not None else counters.rows_checked,
        "mismatches": len(counters.mismatches),
        "requests": len(traffic.requests),
        "aborted": sum(request.reason == "abort" for request in traffic.requests),
        "failed": sum(request.reason == "error" for request in traffic.requests) + counters.failed_steps,
        "refused": counters.refused,
        "offloads": counters.offloads,
        "reloads": counters.reloads,
        "prefix_pages": counters.prefix_pages,
        "displaced": stats.displaced if stats else 0,
        "whole_rows": stats.whole_rows if stats else 0,
        "crossings": stats.crossings if stats else 0,
        "ring_waits": stats.ring_waits if stats else 0,
        "bytes_grown": max(0, allocated(args.device) - held),
        "tokens_per_s": round(tokens / took, 1),
        "run_s": round(took, 1),
    }
    for found in counters.mismatches[:10]:
        print(found, file=sys.stderr)
    case["unmet"] = unmet(run, case, planning, args.check)
    return case, [request.outputs for request in traffic.requests if request.reason != "abort"]


def unmet(run: Run, case: dict[str, Any], planning: str, check: str) -> list[str]:
    """Return what the run is for and did not happen, and what must not happen and did."""
    found = [f"{name}: {case[name]}" for name in ("mismatches", "failed", "bytes_grown") if case[name]]
    if planning != "resident":
        return found
    steps = case["decode_steps"]
    found += [
        f"{name}: {case[name]} of {share * steps:.0f}"
        for name, share in run.least.items()
        if case[name] < share * steps
    ]
    found += [f"{name}: {case[name]}, at most {most}" for name, most in run.most.items() if case[name] > most]
    if check != "none" and case["rows_checked"] < case["resident_steps"]:
        found.append(f"rows_checked: {case['rows_checked']} in {case['resident_steps']} resident steps")
    return found


def allocated(device: str) -> int:
    """Return the bytes that torch holds on a CUDA device."""
    return torch.cuda.memory_reserved() if device != "cpu" else 0


def main() -> int:
    """Run one soak and print a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "run", choices=sorted(RUNS), help="; ".join(f"{name}: {run.text}" for name, run in RUNS.items())
    )
    parser.add_argument("--shape", default="0.8b", choices=["tiny", *sorted(SHAPES)], help="of all runs but whisper's")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=5000, help="decode steps (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", default="shadow", choices=["row", "shadow", "none"])
    parser.add_argument(
        "--compare", action="store_true", help="run the host-planned arm too; its answers must be the same"
    )
    parser.add_argument("--json")
    args = parser.parse_args()
    case, said = soak(args.run, args)
    cases = [case]
    if args.compare:
        host, expected = soak(args.run, args, "host")
        same = sum(one == other for one, other in zip(said, expected, strict=False))
        case["compared"], case["equal"] = min(len(said), len(expected)), same
        case["speed_ratio"] = round(case["tokens_per_s"] / host["tokens_per_s"], 4)
        if case["compared"] == 0 or same < case["compared"]:
            case["unmet"].append(f"equal answers: {same} of {case['compared']}")
        cases.append(host)
    for one in cases:
        print(one, flush=True)
    if args.json:
        write_json(args.json, "soak", cases)
    return 1 if any(one["unmet"] for one in cases) else 0


if __name__ == "__main__":
    sys.exit(main())
