"""``mstar-resident check``: scenarios under the row check, with or without a fault; operation logs."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from contextlib import nullcontext
from itertools import chain
from pathlib import Path

from mstar_resident import _core
from mstar_resident.cli.exits import ERROR, GOOD, MISMATCH, UsageError
from mstar_resident.cli.lists import chosen
from mstar_resident.cli.record import check_writable, write_json
from mstar_resident.device import check_device
from mstar_resident.engine.scenarios import FAULTS, SCENARIOS, Outcome
from mstar_resident.errors import ReplayError
from mstar_resident.journal import recording

#: Differences shown per scenario; the rest is counted.
SHOWN = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--scenario", metavar="NAME[,NAME]|all", help="which scenarios; --list names them")
    parser.add_argument("--seed", default="0", metavar="S[,S]", help="seeds; A-B is a range (default 0)")
    parser.add_argument("--steps", type=int, metavar="K", help="steps with traffic (default: the scenario's own)")
    parser.add_argument(
        "--inject",
        metavar="FAULT",
        help="do this harm once; exit 1: it was caught, 0: it was missed, 3: it never acted",
    )
    parser.add_argument("--device", default="cpu", help="cpu, or cuda: decode steps are then captured")
    parser.add_argument("--json", metavar="FILE", help="write the cases as JSON")
    parser.add_argument("--record", metavar="FILE", help="write an operation log: every call of every planner")
    parser.add_argument("--replay", metavar="FILE", help="make the calls of a log again and compare; runs no scenario")
    parser.add_argument("--list", action="store_true", help="name scenarios and faults, and do nothing else")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    if arguments.list:
        print("scenarios")
        print(*(f"  {name:28}{scenario.text}" for name, scenario in SCENARIOS.items()), sep="\n")
        print("faults")
        print(*(f"  {name:28}{fault.kind:11}{fault.text}" for name, fault in FAULTS.items()), sep="\n")
        return GOOD
    if arguments.replay is not None:
        return _replay(arguments)
    if arguments.scenario is None:
        raise UsageError("check: --scenario NAME, a comma-separated list, or all; --list names them")
    known = tuple(SCENARIOS)
    names = known if arguments.scenario == "all" else chosen("--scenario", arguments.scenario, known)
    if arguments.inject is not None and arguments.inject not in FAULTS:
        raise UsageError(f"no fault is called {arguments.inject!r}; there are {', '.join(FAULTS)}")
    if arguments.steps is not None and arguments.steps < 1:
        raise UsageError(f"--steps: expected at least 1, got {arguments.steps}")
    check_device(arguments.device)
    check_writable(arguments.json)
    check_writable(arguments.record, "--record")
    good, harmed, cases = True, False, []
    seeds = _seeds(arguments.seed)
    with recording(arguments.record) if arguments.record else nullcontext() as journal:
        for name in names:
            for seed in chain.from_iterable(seeds):
                outcome, acted = _run(name, seed, arguments)
                _show(outcome, seed)
                harmed = harmed or acted
                counts = acted or arguments.inject is None  # else only what went wrong without the fault
                good = good and (outcome.good if counts else not outcome.mismatches)
                cases.append(outcome.case())
    if journal is not None:
        print(f"{journal.calls()} calls recorded in {arguments.record}")
    if len(cases) > 1:
        total = Counter({key: 0 for key in cases[0] if key != "scenario"})
        for case in cases:
            total.update({key: case[key] for key in total})
        print(f"{len(cases)} runs: " + ", ".join(f"{key} {value}" for key, value in total.items()))
    if arguments.json:
        write_json(arguments.json, "check", cases)
    if arguments.inject is not None and not harmed:
        said = f"nothing was harmed, as {arguments.scenario} had no step that it could harm"
        print(f"mstar-resident: --inject {arguments.inject}: {said}", file=sys.stderr)
        return ERROR
    return GOOD if good else MISMATCH


def _replay(arguments: argparse.Namespace) -> int:
    others = [
        name for name in ("scenario", "inject", "steps", "json", "record") if getattr(arguments, name) is not None
    ]
    if others:
        raise UsageError(f"--replay: expected no other argument, got --{others[0]}")
    if Path(arguments.replay).is_dir():
        raise UsageError(f"--replay: {arguments.replay} is a folder, not an operation log")
    try:
        planners, calls = _core.replay(arguments.replay)
    except OSError as error:
        raise UsageError(f"--replay {arguments.replay}: {error}") from None
    except ReplayError as error:
        print(f"mstar-resident: {error}", file=sys.stderr)
        return MISMATCH
    print(f"good {calls} calls of {planners} planners replayed: every answer and every byte sent is equal")
    return GOOD


def _run(name: str, seed: int, arguments: argparse.Namespace) -> tuple[Outcome, bool]:
    """Run a scenario; return what it came to, and whether a fault acted in it."""
    scenario = SCENARIOS[name](arguments.device)
    fault = FAULTS[arguments.inject]() if arguments.inject is not None else None
    outcome = scenario.run(seed, arguments.steps if arguments.steps is not None else scenario.steps, fault)
    if fault is not None and not fault.done:
        outcome.unmet.append(f"a step that {arguments.inject} could harm")
    return outcome, fault is not None and fault.done


def _show(outcome: Outcome, seed: int) -> None:
    numbers = ", ".join(f"{key} {value}" for key, value in outcome.case().items() if key != "scenario")
    print(f"{'good' if outcome.good else 'BAD '} {outcome.scenario:28}seed {seed}: {numbers}", flush=True)
    for found in outcome.found[:SHOWN]:
        print(f"     {found}", file=sys.stderr)
    if outcome.caught_by:
        caught = ", ".join(f"{check} {count}" for check, count in outcome.caught_by.items())
        print(f"     caught by: {caught}", file=sys.stderr)
    for unmet in outcome.unmet:
        print(f"     did not happen: {unmet}", file=sys.stderr)
    if not outcome.rows_checked:
        print("     no row was checked", file=sys.stderr)


def _seeds(text: str) -> list[range]:
    try:
        seeds = []
        for part in [part for part in text.split(",") if part.strip()] or [""]:
            first, _, last = part.partition("-")
            seeds.append(range(int(first), int(last or first) + 1))
            if not seeds[-1]:
                raise ValueError
    except ValueError:
        raise UsageError(f"--seed: expected numbers or ranges A-B, comma-separated, got {text!r}") from None
    return seeds
