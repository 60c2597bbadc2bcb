"""Add the soak's records up, and say per line of its table what is required, what was got, and whether that is enough.

    python3 benches/gpu/soak_table.py FOLDER --json soak.json --markdown soak.md

Volumes of a line add up over calls and seeds, all of one commit, which the line names. A case counts only in the line's
own shape and on a GPU; one in which anything went wrong fails its line. Exit 1 if a line is not met.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mstar_resident.cli.record import check_writable
from mstar_resident.engine.scenarios import FAULTS
from mstar_resident.engine.scenarios.fault import KINDS

#: Figures that are zero in every case of a resident engine: a figure that is missing was not looked at.
NEVER = (
    *("mismatches", "failed", "waits", "compiled_on_path", "compiled_while_serving", "allocations_on_path"),
    *("bytes_grown", "slots_kept", "other_schedule"),
)
#: Figures that show that the checks were on and the memory was looked at.
LOOKED = ("rows_shadowed", "rows_checked", "memory_samples")


@dataclass(frozen=True, slots=True)
class Line:
    """Describe one line of the table: the run, its shape, and the least that its cases add up to, per figure.

    Attributes:
        engine: whether its cases are of the resident engine under both checks, and must be quiet in every respect.
        ratios: figures of which each case must have the least, such as a throughput's.
        equal: pairs of figures that must be equal, such as answers compared and answers equal.
    """

    text: str
    run: str
    least: dict[str, float]
    shape: str = "0.8b"
    engine: bool = True
    ratios: tuple[str, ...] = ()
    equal: tuple[tuple[str, str], ...] = (("compared", "equal"),)


LINES = (
    Line("chunked prefill, budget 200, minimum 64", "chunked_prefill", {"full_steps": 50_000, "compared": 16}),
    Line(
        "KV pressure",
        "kv_pressure",
        {"full_steps": 6000, "refused": 250, "offloads": 300, "slot_releases": 300, "compared": 16},
    ),
    Line("slot pressure", "slot_pressure", {"displaced": 2_000_000, "compared": 32}),
    Line(
        "slot pressure, tokens a second to the host-planned arm's",
        "slot_pressure_speed",
        {"resident_checked_ratio": 0.97, "resident_ratio": 0.97},
        engine=False,
        ratios=("resident_checked_ratio", "resident_ratio"),
        equal=(),
    ),
    Line("prefix cache off", "prefix_off", {"asked": 32, "compared": 24}, shape="qwen3-0.6b"),
    Line("prefix cache on", "prefix_on", {"asked": 32, "compared": 24, "prefix_pages": 1}, shape="qwen3-0.6b"),
    Line(
        "prefix cache on, the same prompts again",
        "prefix_again",
        {"asked": 32, "compared": 24, "prefix_pages": 1},
        shape="qwen3-0.6b",
    ),
    Line("256 requests, 128 rows, nothing displaced", "wide", {"full_steps": 10_000, "compared": 128}),
    Line(
        "abort storm, 24 dropped and 16 fresh",
        "abort_storm",
        {"storms": 100, "aborted": 2400, "fresh_compared": 1500},
        equal=(("compared", "equal"), ("fresh_compared", "fresh_equal")),
    ),
    Line("Whisper large-v3 decoder, two pools", "whisper", {"full_steps": 50_000, "complete": 200}, shape="large-v3"),
    Line("image-like positions", "images", {"full_steps": 5000, "complete": 32}),
    Line(
        "a fault of each kind",
        "faults",
        {"kinds": len(KINDS), "caught": len(FAULTS)},
        shape="toy",
        engine=False,
        equal=(("faults", "caught"),),
    ),
    Line("tests of a held cuda_stream", "gpu_cases", {"passed": 30}, shape="small", engine=False, equal=()),
)


def verdict(line: Line, cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what a line's cases add up to, and what is missing."""
    ours = [case for case in cases if case["run"] == line.run and case.get("planning", "resident") == "resident"]
    counted = [case for case in ours if case["shape"] == line.shape and case["device"] != "cpu"]
    got = {name: sum(case.get(name) or 0 for case in counted) for name in line.least}
    got |= {name: min((case.get(name) or 0 for case in counted), default=0) for name in line.ratios}
    lacks = [f"{name} {got[name]} of {least}" for name, least in line.least.items() if got[name] < least]
    commits = sorted({case["commit"] for case in ours})
    if len(commits) != 1 or commits[0] == "unknown" or commits[0].endswith("+"):
        lacks.append(f"one known commit, has {commits}")
    for case in ours:
        seed = f"seed {case.get('seed', '-')}"
        lacks += [f"{seed}: {text}" for text in case["unmet"]]
        lacks += [f"{seed}: {a} {case.get(a)}, {b} {case.get(b)}" for a, b in line.equal if case.get(a) != case.get(b)]
        if line.engine:
            lacks += [f"{seed}: {name} {case.get(name)}" for name in NEVER if case.get(name) != 0]
            lacks += [f"{seed}: {name} {case.get(name)}" for name in LOOKED if not case.get(name)]
    return {
        "line": line.text,
        "run": line.run,
        "shape": line.shape,
        "commits": commits,
        "seeds": sorted({case["seed"] for case in counted if "seed" in case}),
        "rows_shadowed": sum(case.get("rows_shadowed") or 0 for case in counted),
        "rows_checked": sum(case.get("rows_checked") or 0 for case in counted),
        "required": line.least,
        "got": got,
        "met": not lacks,
        "lacks": list(dict.fromkeys(lacks)),
    }


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the records of runs in a folder, those of arms and parts as they are; each case names its commit."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("soak_*.json"))]
    records = [record for record in found if record["schema"].startswith("mstar-resident/soak/")]
    for record in records:
        record["cases"] = [case | {"commit": record["commit"]} for case in record["cases"]]
    return records


def table(lines: Iterable[dict[str, Any]], machines: Sequence[str]) -> str:
    """Return the Markdown."""
    rows = [f"{'; '.join(machines)}.", ""]
    rows += ["| run | shape, seeds | commit | at least | got | rows compared | |", "| --- " * 7 + "|"]
    for line in lines:
        seeds = f", {', '.join(map(str, line['seeds']))}" if line["seeds"] else ""
        required, got = (
            ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in line[key].items())
            for key in ("required", "got")
        )
        said = "met" if line["met"] else "NOT MET: " + "; ".join(line["lacks"][:5] or ["no record"])
        rows.append(
            f"| {line['line']} | {line['shape']}{seeds} | {', '.join(line['commits'])} | {required} | {got} "
            f"| {line['rows_shadowed']:,} | {said} |"
        )
    return "\n".join(rows) + "\n"


def main() -> int:
    """Write the table and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", help="only these lines, as names with blanks between (default: all)")
    parser.add_argument("--json")
    parser.add_argument("--markdown")
    args = parser.parse_args()
    check_writable(args.json)
    check_writable(args.markdown, "--markdown")
    records = read(args.folder)
    cases = [case for record in records for case in record["cases"]]
    wanted = args.runs.split() if args.runs else [line.run for line in LINES]
    lines = [verdict(line, cases) for line in LINES if line.run in wanted]
    commits, machines = (sorted({record[key] for record in records}) for key in ("commit", "machine"))
    text = table(lines, machines)
    print(text)
    if args.json:
        record = {"schema": "mstar-resident/soak-table/1", "machine": "; ".join(machines), "commit": ", ".join(commits)}
        Path(args.json).write_text(json.dumps({**record, "cases": lines}, indent=2) + "\n", encoding="utf-8")
    if args.markdown:
        Path(args.markdown).write_text(text, encoding="utf-8")
    return 0 if lines and all(line["met"] for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
