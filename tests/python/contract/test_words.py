"""The project speaks of itself alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SKIPPED = {"Cargo.lock", "LICENSE", Path(__file__).name}
TEXT = {".md", ".py", ".pyi", ".rs", ".toml", ".sh", ".txt", ".csv", ".json", ".yml", ""}

FORBIDDEN = {
    "a path of one machine": r"(?<![\w.{}])/(?:work|opt|root|home/\w+)/|/tmp/\w",
    "a registry's host": r"pypi\.org|pythonhosted\.org|(?:index|static)\.crates\.io|registry\.npmjs",
    "an issue's number": r"\bissues? #?\d+",
    "how the work was organised": r"\b(?:sub-?agents?|co-?worker|(?:this|other) sessions?|the lead)\b",
    "a page that readers do not have": (
        r"\bshared/|\bnotes/contract|\b(?:glossary|edge_cases|bug_cases|targets|resident-pr)\.md\b"
    ),
    "a section of such a page": r"\bspec(?:ification)? ?§|§ ?\d",
    "a rule or case by number": r"(?<![\w\"'-])(?:I[1-9]|I10|T[1-9]|T10|E[0-5]\d|A[0-5]\d)(?![\w-])",
    "the file that it is copied from": r"\bcopied from\b",
}


@pytest.mark.parametrize("what", sorted(FORBIDDEN))
def test_no_file_names(what: str, root: Path, tracked: list[Path]) -> None:
    pattern = re.compile(FORBIDDEN[what], re.IGNORECASE if what != "a rule or case by number" else 0)
    found = []
    for path in tracked:
        if path.name in SKIPPED or path.suffix not in TEXT:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if hit := pattern.search(line):
                found.append(f"{path.relative_to(root)}:{number}: {hit[0]!r} in {line.strip()[:100]}")
    assert not found, "\n".join(found)
