"""One version, stated once; the toolchain that the metadata promises."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import mstar_resident


def test_the_version_is_one_in_cargo_package_and_changelog(root: Path, cargo: dict[str, Any]) -> None:
    version = cargo["workspace"]["package"]["version"]
    for manifest in (root / "Cargo.toml", root / "rust/python/Cargo.toml"):
        assert tomllib.loads(manifest.read_text())["package"]["version"] == {"workspace": True}, manifest
    assert importlib.metadata.version("mstar-resident") == version
    assert mstar_resident.__version__ == version
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[0] == version


def test_pyproject_takes_its_version_from_cargo(project: dict[str, Any]) -> None:
    assert "version" in project["project"]["dynamic"]
    assert "version" not in project["project"]


def test_the_changelog_has_a_place_for_what_is_not_released(root: Path) -> None:
    headings = re.findall(r"^## (.+)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "[Unreleased]"


def test_rust_version_is_the_toolchain_that_runs_the_tests(cargo: dict[str, Any]) -> None:
    said = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.match(r"rustc (\d+)\.(\d+)", said)
    assert found, said
    least = tuple(int(part) for part in cargo["workspace"]["package"]["rust-version"].split("."))
    assert (int(found[1]), int(found[2])) >= least[:2], f"{said} is older than rust-version {least}"


def test_readme_names_the_versions_that_the_metadata_asks_for(
    root: Path, cargo: dict[str, Any], project: dict[str, Any]
) -> None:
    readme = (root / "README.md").read_text()
    assert f"Rust ≥ {cargo['workspace']['package']['rust-version']}" in readme
    assert f"Python ≥ {project['project']['requires-python'].removeprefix('>=')}" in readme


def test_torch_is_pinned_for_the_set_up(root: Path) -> None:
    pins = re.findall(r"^torch==(\S+)$", (root / "scripts/constraints.txt").read_text(), re.MULTILINE)
    assert len(pins) == 1
    assert "+" not in pins[0], "a local version would refuse the other builds"
