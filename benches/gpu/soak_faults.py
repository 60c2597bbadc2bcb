"""Inject every fault there is, each in a process of its own: each must end in exit 1 and name what caught it.

python3 benches/gpu/soak_faults.py --json FILE
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mstar_resident.cli.exits import MISMATCH
from mstar_resident.cli.record import check_writable, write_json
from mstar_resident.engine.scenarios import FAULTS
from mstar_resident.engine.scenarios.fault import KINDS

#: Scenarios with the steps that a kind of fault can harm; for the others any will do.
SCENARIOS = {"recurrent": "recurrent", "group": "read_only_pool", "offload": "memory_pressure", "rank": "ranks"}


def inject(name: str, device: str) -> dict[str, Any]:
    """Run a scenario with a fault; return what became of it."""
    kind = FAULTS[name].kind
    scenario = SCENARIOS.get(kind, "join_leave")
    command = [sys.executable, "-m", "mstar_resident.cli", "check", "--device", device]
    command += ["--scenario", scenario, "--inject", name]
    ended = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    by = re.search(r"caught by: (.*)", ended.stdout + ended.stderr)
    caught = ended.returncode == MISMATCH and by is not None
    if not caught:
        print(ended.stdout + ended.stderr, file=sys.stderr)
    found: dict[str, Any] = {"fault": name, "kind": kind, "scenario": scenario, "exit": ended.returncode}
    return {**found, "caught_by": by.group(1) if by else "", "caught": caught}


def main(faults: Sequence[str] = tuple(FAULTS)) -> int:
    """Inject the faults and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=3, help="processes side by side")
    parser.add_argument("--json")
    args = parser.parse_args()
    check_writable(args.json)
    begin = time.perf_counter()
    injected = []
    with ThreadPoolExecutor(args.jobs) as pool:
        for one in pool.map(lambda name: inject(name, args.device), faults):
            print(f"{one['fault']}: exit {one['exit']}, caught by: {one['caught_by']}", flush=True)
            injected.append(one)
    case = {
        "run": "faults",
        "shape": "toy",
        "device": args.device,
        "faults": len(injected),
        "caught": sum(one["caught"] for one in injected),
        "kinds": len({one["kind"] for one in injected if one["caught"]}),
        "injected": injected,
        "run_s": round(time.perf_counter() - begin, 1),
    }
    case["unmet"] = [f"{one['fault']}: exit {one['exit']}" for one in injected if not one["caught"]]
    if len(injected) == len(FAULTS) and case["kinds"] < len(KINDS):
        case["unmet"].append(f"kinds: {case['kinds']} of {len(KINDS)}")
    if args.json:
        write_json(args.json, "soak", [case])
    return 1 if case["unmet"] else 0


if __name__ == "__main__":
    sys.exit(main())
