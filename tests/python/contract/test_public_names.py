"""Few public names, each documented."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mstar_resident

NAMES = sorted(mstar_resident.__all__)


def test_there_are_at_most_twelve_public_names() -> None:
    assert 0 < len(NAMES) <= 12
    assert len(set(NAMES)) == len(NAMES)


def test_nothing_public_is_left_out_of_all() -> None:
    extra = [
        name
        for name, value in vars(mstar_resident).items()
        if not name.startswith("_") and not inspect.ismodule(value) and name not in NAMES and name != "annotations"
    ]
    assert extra == []


def test_the_package_run_as_a_program_is_the_command_line() -> None:
    command = [sys.executable, "-m", "mstar_resident", "--help"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout.startswith("usage: mstar-resident ")
    assert re.search(r"bench +time plans, whole decode steps and kernels$", said.stdout, re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_in_the_docs_and_has_a_docstring(name: str, root: Path) -> None:
    docs = "".join(path.read_text() for path in [root / "README.md", *sorted((root / "docs").glob("*.md"))])
    assert f"`{name}" in docs or f"{name}(" in docs, f"{name} is in no page of docs/"
    assert (inspect.getdoc(getattr(mstar_resident, name)) or "").strip()


def test_every_call_of_the_planner_is_on_the_integration_page(root: Path) -> None:
    page = (root / "docs/integration.md").read_text()
    calls = [name for name in dir(mstar_resident.ResidentPlanner) if not name.startswith("_")]
    assert len(calls) > 20
    missing = [name for name in [*calls, "flush", "commit", "fail", "drop"] if not re.search(rf"\b{name}\b", page)]
    assert missing == []
