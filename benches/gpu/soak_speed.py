"""Time slot pressure: the resident arm, with the shadow and without, beside the host-planned arm. Run it alone.

    python3 benches/gpu/soak_speed.py --json FILE

64 requests take turns on eight rows, so that every resident step displaces eight rows. All decode from the first timed
step to the last. The arms take turns, ``--steps`` each; a ratio is the median over ``--rounds`` of tokens a second over
those of the host-planned arm in the same round. Exit 1 if one is below 0.97, a row differed, or the answers did.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import torch
from soak_models import build, decoder
from soak_runs import RUNS
from soak_traffic import Traffic

from mstar_resident.bench.shapes import twin
from mstar_resident.cli.record import check_writable, write_json
from mstar_resident.engine.request import State

ARMS = {"host": ("host", "none"), "resident": ("resident", "none"), "resident_checked": ("resident", "shadow")}
LEAST_RATIO = 0.97
#: Steps between the last prefill and the first timed step.
SETTLE = 100


class Arm:
    """Hold an arm's engine and requests, all of which decode until the last round is over."""

    def __init__(self, name: str, weights: Any, args: argparse.Namespace) -> None:
        run = RUNS["slot_pressure"]
        planning, check = ARMS[name]
        self.engine = build(run, twin(weights), args.device, planning, check)
        self.traffic = Traffic(self.engine, args.seed)
        new = -(-(args.rounds * args.steps + 2 * SETTLE) * run.rows // run.config["max_requests"]) + 16
        for _ in range(run.config["max_requests"]):
            self.traffic.submit(self.traffic.between(5, 30), new)
        while any(request.state is not State.DECODE for request in self.traffic.requests):
            self.engine.step()
        self.tokens_per_s: list[float] = []
        self._cuda = args.device != "cpu"
        self.serve(SETTLE)
        self.displaced = self._displaced()

    def serve(self, steps: int) -> float:
        """Run steps; return the seconds that they took on host and device."""
        self._wait()
        begin = time.perf_counter()
        for _ in range(steps):
            self.engine.step()
        self._wait()
        return time.perf_counter() - begin

    def time(self, steps: int) -> None:
        """Time a round."""
        self.tokens_per_s.append(steps * self.engine.config.max_batch / self.serve(steps))

    def end(self) -> dict[str, int]:
        """End the requests; return what was counted."""
        displaced = self._displaced() - self.displaced
        for request in self.traffic.requests:
            if request.state is not State.DONE:
                self.engine.abort(request)
        self.engine.run()
        counters = self.engine.counters
        return {"displaced": displaced, "mismatches": len(counters.mismatches), "failed": counters.failed_steps}

    def _displaced(self) -> int:
        return self.engine.planner.stats().displaced if self.engine.planner is not None else 0

    def _wait(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()


def main() -> int:
    """Time the arms and print a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="0.8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=1200, help="of a round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json")
    args = parser.parse_args()
    check_writable(args.json)
    run = RUNS["slot_pressure"]
    weights = decoder(run, args.shape, args.seed, args.device)
    arms = {name: Arm(name, weights, args) for name in ARMS}
    order = list(arms)
    for number in range(args.rounds):
        for name in order[number % 3 :] + order[: number % 3]:
            arms[name].time(args.steps)
    said = {name: [list(request.outputs) for request in arm.traffic.requests] for name, arm in arms.items()}
    case: dict[str, Any] = {
        "run": "slot_pressure_speed",
        "shape": args.shape,
        "device": args.device,
        "seed": args.seed,
        "rows": run.rows,
        "rounds": args.rounds,
        "steps": args.steps,
        "timed_steps": args.rounds * args.steps,
    }
    host = arms["host"].tokens_per_s
    case["unmet"] = found = []
    for name, arm in arms.items():
        counted = arm.end()
        case[f"{name}_tokens_per_s"] = round(statistics.median(arm.tokens_per_s), 1)
        found += [f"{name}: {key} {counted[key]}" for key in ("mismatches", "failed") if counted[key]]
        if name == "host":
            continue
        ratios = [ours / theirs for ours, theirs in zip(arm.tokens_per_s, host, strict=True)]
        case[f"{name}_ratio"] = round(statistics.median(ratios), 4)
        case[f"{name}_ratios"] = [round(ratio, 4) for ratio in ratios]
        case[f"{name}_displaced"] = counted["displaced"]
        case[f"{name}_equal"] = sum(a == b for a, b in zip(said[name], said["host"], strict=True))
        if counted["displaced"] < args.rounds * args.steps * run.rows * 0.99:
            found.append(f"{name}: displaced {counted['displaced']}")
        if args.device != "cpu" and case[f"{name}_ratio"] < LEAST_RATIO:
            found.append(f"{name}: ratio {case[f'{name}_ratio']}")
        if case[f"{name}_equal"] < len(said["host"]):
            found.append(f"{name}: equal answers {case[f'{name}_equal']} of {len(said['host'])}")
    print(case, flush=True)
    if args.json:
        write_json(args.json, "soak", [case])
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
