"""Soak the engine on a GPU: one long run, each row of each resident step compared with the host's truth.

    python3 benches/gpu/soak.py slot_pressure --seed 1 --json FILE

Every run has a volume of its own (``--steps``). First the host-planned arm serves the same requests for ``--compare``
engine steps; what it says in them the resident arm must say, too. If they differ, the host-planned arm runs again, and
only answers that it repeats are compared. The shadow compares every step and waits for nothing; every 17th step is
also checked by the row check, which waits for the device (``--check both``).

Exit 1 if anything differed, a request failed, the step path waited or allocated, anything was compiled while serving,
memory grew, or the run was not what it is named for.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import traceback
from dataclasses import dataclass, field
from typing import Any

import torch
from soak_models import build, decoder
from soak_runs import RUNS, Run
from soak_traffic import Traffic
from soak_watch import Watch

from mstar_resident.bench.shapes import twin
from mstar_resident.cli.record import check_writable, write_json

#: Tokens of an answer that is compared, at least, unless it is shorter as a whole.
LEAST_TOKENS = 16
NEVER = (
    *("mismatches", "failed", "waits", "compiled_while_serving", "allocations_on_path", "bytes_grown"),
    "other_schedule",
)


@dataclass(slots=True)
class Said:
    """Hold what a run's requests were told, per request in order of submission."""

    tokens: list[list[int]] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    """Engine steps when the request was seen to be over, 0 if it was not."""
    complete: list[bool] = field(default_factory=list)
    fresh: list[bool] = field(default_factory=list)

    @classmethod
    def of(cls, traffic: Traffic) -> Said:
        """Note what was said so far."""
        requests, finished = traffic.requests, traffic.finished
        return cls(
            [list(request.outputs) for request in requests],
            [finished.get(request, 0) for request in requests],
            [request in finished and request.reason == "length" for request in requests],
            [request in traffic.fresh for request in requests],
        )


def soak(name: str, args: argparse.Namespace, model: Any, planning: str) -> tuple[dict[str, Any], Said]:
    """Serve the run's requests with one arm; return the case and what every request was told."""
    run, resident = RUNS[name], planning == "resident"
    engine = build(run, model, args.device, planning, args.check)
    watch = Watch(engine, run.full) if resident else None
    traffic, counters = Traffic(engine, args.seed), engine.counters
    most = 0 if not run.steps else (args.steps or run.steps) if resident else args.compare
    begin, cut, raised, aborted = time.perf_counter(), False, "", 0
    said = Said()
    try:
        while not traffic.over:
            done = watch.full_steps if watch is not None else counters.steps
            if done >= most > 0:
                break
            if cut := time.monotonic() > args.until:
                break
            traffic.look()
            run.before(traffic, run.rows)
            engine.step()
        traffic.look()
        said = Said.of(traffic)
        aborted = sum(request.reason == "abort" for request in traffic.requests)
        for request in traffic.live:
            engine.abort(request)
        engine.run()
    except Exception as error:  # the record says so, too
        traceback.print_exc()
        raised = f"{type(error).__name__}: {error}"
    took = time.perf_counter() - begin
    requests = traffic.requests
    case: dict[str, Any] = {
        "run": name,
        "shape": args.shape,
        "device": args.device,
        "planning": planning,
        "seed": args.seed,
        "rows": run.rows,
        "full": run.full,
        "steps": counters.steps,
        "decode_steps": counters.decode_steps,
        "requests": len(requests),
        "aborted": aborted,
        "storms": traffic.storms,
        "failed": sum(request.reason == "error" for request in requests) + counters.failed_steps + bool(raised),
        "refused": counters.refused,
        "offloads": counters.offloads,
        "reloads": counters.reloads,
        "prefix_pages": counters.prefix_pages,
        "tokens": sum(len(request.outputs) for request in requests),
        "run_s": round(took, 1),
        "cut": cut,
    }
    if raised:
        case["raised"] = raised
    if watch is not None and engine.planner is not None:
        stats = engine.planner.stats()
        case |= {
            "check": args.check,
            "resident_steps": counters.resident_steps,
            "full_steps": watch.full_steps,
            "steps_shadowed": engine.shadow.steps if engine.shadow is not None else 0,
            "rows_shadowed": engine.shadow.rows if engine.shadow is not None else 0,
            "rows_checked": counters.rows_checked,
            "mismatches": len(counters.mismatches),
            "waits": watch.waits,
            "compiled_on_path": watch.compiled,
            "compiled_while_serving": watch.compilations.count,
            "allocations_on_path": watch.allocations,
            "bytes_grown": watch.memory.grown(),
            "memory_samples": watch.memory.count,
            "slot_releases": watch.slot_releases,
            "slots_kept": watch.slots_kept,
            "least_chunks": watch.least_chunks or 0,
            "displaced": stats.displaced,
            "whole_rows": stats.whole_rows,
            "crossings": stats.crossings,
            "ring_waits": stats.ring_waits,
        }
        for found in counters.mismatches[:10]:
            print(found, file=sys.stderr)
    if watch is not None:
        watch.compilations.end()
    return case, said


def compare(said: Said, expected: Said, again: Said | None = None, first: int = 0) -> dict[str, Any]:
    """Compare what the arms said, wherever the host-planned arm repeats itself.

    ``expected`` ends sooner, somewhere in an answer: that much of it is compared.
    """
    found = dict.fromkeys(("asked", "compared", "equal", "complete", "fresh_compared", "fresh_equal"), 0)
    found["other_schedule"] = 0
    distinct = []
    for i in range(first, min(len(said.tokens), len(expected.tokens))):
        ours, theirs = said.tokens[i], expected.tokens[i]
        length = min(len(ours), len(theirs))
        whole = said.complete[i] and expected.complete[i]
        if length < LEAST_TOKENS and not whole:
            continue
        found["asked"] += 1
        found["other_schedule"] += bool(expected.finished[i]) and said.finished[i] not in (0, expected.finished[i])
        if again is not None and again.tokens[i][:length] != theirs[:length]:
            continue
        same = ours[:length] == theirs[:length]
        found["compared"] += 1
        found["equal"] += same
        found["complete"] += whole
        if said.fresh[i]:
            found["fresh_compared"] += 1
            found["fresh_equal"] += same
        distinct.append(len(set(ours[:length])))
    found["distinct_tokens"] = sorted(distinct)[len(distinct) // 2] if distinct else 0
    found["host_runs"] = 1 if again is None else 2
    return found


def unmet(run: Run, case: dict[str, Any]) -> list[str]:
    """Return what the run is for and did not happen, and what must not happen and did."""
    found = [f"{name}: {case[name]}" for name in NEVER if case.get(name)]
    if case["planning"] != "resident" or "resident_steps" not in case:
        return found
    steps = case["resident_steps"]
    if steps < case["decode_steps"] or not steps:
        found.append(f"resident_steps: {steps} of {case['decode_steps']} decode steps")
    found += [
        f"{name}: {case[name]} of {share * steps:.0f}"
        for name, share in run.least.items()
        if case[name] < share * steps
    ]
    found += [f"{name}: {case[name]}, at most {most}" for name, most in run.most.items() if case[name] > most]
    if case["least_chunks"] < run.chunks:
        found.append(f"least_chunks: {case['least_chunks']} of {run.chunks}")
    if case["check"] in ("shadow", "both") and case["steps_shadowed"] != steps:
        found.append(f"steps_shadowed: {case['steps_shadowed']} of {steps}")
    if case["check"] in ("row", "both") and not case["rows_checked"]:
        found.append("rows_checked: 0")
    if case["device"] != "cpu" and case["compiled_on_path"] is None:
        found.append("compiled_on_path: this Triton does not tell")
    if "equal" in case and (not case["compared"] or case["equal"] < case["compared"]):
        found.append(f"equal answers: {case['equal']} of {case['compared']}")
    return found


def freed() -> None:
    """Give back what an arm that is over held."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def main() -> int:
    """Run one soak and print a line per arm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "run", choices=sorted(RUNS), help="; ".join(f"{name}: {run.text}" for name, run in RUNS.items())
    )
    parser.add_argument("--shape", help="another shape of the run's kind; tiny or tiny-hybrid for a CPU")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=0, help="resident steps of full rows (default: the run's own)")
    parser.add_argument("--compare", type=int, help="engine steps of the host-planned arm, 0 for no such arm")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", default="both", choices=["both", "row", "shadow", "none"])
    parser.add_argument("--limit", type=float, default=460, help="seconds after which the run is cut short")
    parser.add_argument("--json")
    args = parser.parse_args()
    check_writable(args.json)
    run = RUNS[args.run]
    args.shape = args.shape or run.shape
    args.compare = run.compare if args.compare is None else args.compare
    args.until = time.monotonic() + args.limit
    weights = decoder(run, args.shape, args.seed, args.device)

    def served(planning: str) -> tuple[dict[str, Any], Said]:
        freed()
        return soak(args.run, args, twin(weights), planning)

    host, expected = served("host") if args.compare else ({}, Said())
    case, said = served("resident")
    cases = [case, host] if host else [case]
    if host:
        found = compare(said, expected, first=run.compare_from)
        if found["equal"] < found["compared"]:
            cases.append((repeated := served("host"))[0])
            found = compare(said, expected, repeated[1], first=run.compare_from)
        case |= found
    for one in cases:
        one["unmet"] = unmet(run, one)
        print(one, flush=True)
    if args.json:
        write_json(args.json, "soak", cases)
    return 1 if any(one["unmet"] for one in cases) else 0


if __name__ == "__main__":
    sys.exit(main())
