"""The shape of the tree: small files, a core without Python, unsafe code in one place."""

from __future__ import annotations

import re
import statistics
import tomllib
from pathlib import Path

WRITTEN = {".py", ".rs", ".pyi"}


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_no_source_file_is_longer_than_four_hundred_lines(root: Path, tracked: list[Path]) -> None:
    long = {str(p.relative_to(root)): _lines(p) for p in tracked if p.suffix in WRITTEN and _lines(p) > 400}
    assert long == {}


def test_the_median_source_file_has_at_most_150_lines(root: Path, tracked: list[Path]) -> None:
    sources = [p for p in tracked if p.suffix in WRITTEN and not p.is_relative_to(root / "tests")]
    assert statistics.median(map(_lines, sources)) <= 150


def test_the_core_knows_no_python_and_forbids_unsafe_code(root: Path) -> None:
    assert "#![forbid(unsafe_code)]" in (root / "rust/core/src/lib.rs").read_text()
    needs = set(tomllib.loads((root / "Cargo.toml").read_text())["dependencies"])
    assert needs.isdisjoint({"pyo3", "pyo3-ffi", "numpy", "tch", "libloading"}), needs
    for path in (root / "rust/core").rglob("*.rs"):
        assert not re.search(r"\bpyo3\b|\bunsafe (?:fn|impl|\{)", path.read_text()), path


def test_unsafe_code_is_in_one_file_and_each_block_says_why(root: Path) -> None:
    holders = []
    for path in (root / "rust/python").rglob("*.rs"):
        lines = path.read_text().splitlines()
        blocks = [
            n
            for n, line in enumerate(lines)
            if re.search(r"\bunsafe (?:\{|impl|fn \w|extern [^ ]+ (?:fn \w|\{))", line.split("//")[0])
        ]
        if blocks:
            holders.append(path.name)
        for number in blocks:
            before = "\n".join(lines[max(0, number - 6) : number + 1])
            assert "SAFETY:" in before or "# Safety" in before, f"{path.name}:{number + 1}"
    assert len(holders) <= 1, holders


def test_every_kernel_file_is_linked_into_the_package_one_by_one(root: Path) -> None:
    links = root / "python/mstar_resident/kernels"
    assert not links.is_symlink(), "a linked folder is left out of the wheel"
    for source in (root / "kernels").iterdir():
        if source.is_file() and source.suffix != ".pyc":
            link = links / source.name
            assert link.is_symlink(), f"{link.name} is not linked"
            assert link.resolve() == source.resolve()
            assert not link.readlink().is_absolute()
