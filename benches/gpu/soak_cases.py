"""Run the tests that only a GPU can: held cuda_streams, full rings, allocators that churn, sources overwritten early.

python3 benches/gpu/soak_cases.py --json FILE
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from mstar_resident.cli.record import check_writable, write_json

FOLDER = Path(__file__).parents[2] / "tests" / "python" / "gpu"
FILES = ("test_order.py", "test_stager.py", "test_engine.py", "test_churn.py")


def main() -> int:
    """Run the tests and print what pytest does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json")
    args = parser.parse_args()
    check_writable(args.json)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        status = subprocess.run([*command, *(str(FOLDER / name) for name in FILES)], check=False).returncode
        tests = cases(report) if report.is_file() else {}
    counts: dict[str, Any] = {
        verdict: list(tests.values()).count(verdict) for verdict in ("passed", "failed", "skipped")
    }
    case = {
        "run": "gpu_cases",
        "shape": "small",
        "device": "cuda",
        **counts,
        "files": list(FILES),
        "run_s": round(time.perf_counter() - begin, 1),
        "unmet": [f"{name}: {verdict}" for name, verdict in tests.items() if verdict != "passed"],
    }
    if status and not case["unmet"]:
        case["unmet"] = [f"pytest: exit {status}"]
    if args.json:
        write_json(args.json, "soak", [case])
    return 1 if case["unmet"] else 0


def cases(report: Path) -> dict[str, str]:
    """Read the verdict of every test in pytest's report: passed, failed or skipped."""
    found = {}
    for one in ElementTree.parse(report).iter("testcase"):
        tags = {child.tag for child in one}
        verdict = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
        found[f"{one.get('classname')}.{one.get('name')}"] = verdict
    return found


if __name__ == "__main__":
    sys.exit(main())
