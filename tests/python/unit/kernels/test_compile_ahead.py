"""The compiler takes every kernel, for GPUs of two makers, though there is none here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("compile_ahead.py")
SOURCES = Path(__file__).parents[4] / "kernels"
KERNELS = {name for file in SOURCES.glob("*.py") for name in re.findall(r"def (\w+_kernel)\(", file.read_text("utf-8"))}
#: Shared memory of one program, in bytes.
MOST_SHARED = {"cuda": 227 * 1024, "hip": 64 * 1024}


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "arch"), [("cuda", "90"), ("hip", "gfx942")])
def test_every_kernel_compiles(backend, arch, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, str(SCRIPT), backend, arch]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert {name for name, _, _ in lines} == KERNELS
    assert max(int(shared) for _, _, shared in lines) <= MOST_SHARED[backend]
