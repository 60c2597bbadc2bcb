"""Links lead somewhere, examples run, commands exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def _pages(tracked: list[Path]) -> list[Path]:
    return [path for path in tracked if path.suffix == ".md"]


def test_every_relative_link_leads_to_a_file_and_heading(root: Path, tracked: list[Path]) -> None:
    broken = []
    for page in _pages(tracked):
        text = FENCE.sub("", page.read_text())
        for link in LINK.findall(text):
            if link.startswith(("http://", "https://", "mailto:")):
                continue
            target, _, anchor = link.partition("#")
            path = (page.parent / target).resolve() if target else page
            headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE) if path.suffix == ".md" else []
            if not path.exists() or (anchor and anchor not in map(_anchor, headings)):
                broken.append(f"{page.relative_to(root)}: {link}")
    assert broken == []


def test_the_readme_shows_sentence_example_and_commands_on_its_first_screen(root: Path) -> None:
    first = "\n".join((root / "README.md").read_text().splitlines()[:50])
    assert "```python" in first
    assert "make demo" in first
    assert "make test" in first


def test_the_examples_of_readme_run_as_they_stand(root: Path, tmp_path: Path) -> None:
    blocks = [code for language, code in FENCE.findall((root / "README.md").read_text()) if language == "python"]
    assert blocks
    for number, code in enumerate(blocks):
        script = tmp_path / f"readme_{number}.py"
        script.write_text(code)
        ran = subprocess.run(
            [sys.executable, "-W", "error", str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_every_command_of_make_is_a_script_that_runs_without_it(page: str, root: Path) -> None:
    targets = set(re.search(r"^TARGETS := (.+)$", (root / "Makefile").read_text(), re.MULTILINE)[1].split())  # type: ignore[index]
    text = (root / page).read_text()
    shown = "\n".join([*re.findall(r"`[^`]+`", FENCE.sub("", text)), *(code for _, code in FENCE.findall(text))])
    named = set(re.findall(r"(?:^|`)make ([a-z][a-z-]+)", shown, re.MULTILINE))
    assert named
    assert named <= targets, named - targets
    for target in targets:
        script = root / "scripts" / target
        assert os.access(script, os.X_OK), f"scripts/{target} cannot be executed"


def test_ci_runs_the_test_command_of_readme(root: Path) -> None:
    assert "make test" in (root / ".ci/run").read_text()
    assert os.access(root / ".ci/run", os.X_OK)


def test_every_test_that_the_map_names_exists(root: Path, tracked: list[Path]) -> None:
    page = (root / "tests/README.md").read_text()
    named = set(re.findall(r"`((?:test_)?[a-z]+(?:_[a-z0-9]+){3,})`", page))
    assert len(named) > 30
    sources = "\n".join(p.read_text() for p in tracked if p.suffix in {".py", ".rs"} and p.name != Path(__file__).name)
    missing = [name for name in sorted(named) if not re.search(rf"\b(?:fn|def) {name}\b", sources)]
    assert missing == []


def test_every_rule_is_in_the_map(root: Path) -> None:
    rules = re.findall(r"^\*\*(.+?)\.\*\*", (root / "docs/invariants.md").read_text(), re.MULTILINE)
    assert len(rules) == 10
    page = (root / "tests/README.md").read_text()
    assert [rule for rule in rules if f"| {rule} |" not in page] == []
