"""The walk that valgrind runs also runs here: every native call, torch not imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_every_native_call_is_walked_without_torch_or_numpy(root: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(root / "tests/python/boundary_walk.py")], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
