"""The map of rules to tests: every file and every test that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mstar_resident.engine.scenarios import KINDS, SCENARIOS

HEADING = "## Every rule and its test"
#: The theme of each kind of fault; two themes a fault cannot tell apart would be one.
THEMES = {
    "stale": "Stale rows",
    "in flight": "Steps in flight",
    "padding": "Padding",
    "staging": "Staging",
    "length": "Lengths",
    "width": "Widths",
    "edge": "Page edges",
    "recurrent": "Recurrent state",
    "group": "Several pools",
    "sampler": "Sampler",
    "position": "Positions",
    "graph": "Graphs",
    "rank": "Ranks",
    "offload": "Offload",
    "integer": "Integers",
    "cost": "Host cost",
    "life": "Life",
}
TEST = re.compile(r"`([a-z0-9_]+)(?:\[([a-z_]+)\])?`")


def rows(page: str) -> dict[str, list[list[str]]]:
    """Return the cells of every row of the map, by theme."""
    _, _, section = page.partition(HEADING)
    themes: dict[str, list[list[str]]] = {}
    for part in re.split(r"^### ", section, flags=re.MULTILINE)[1:]:
        theme, _, text = part.partition("\n")
        lines = [line for line in text.splitlines() if line.startswith("|")]
        themes[theme.strip()] = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return themes


def problems(page: str, root: Path) -> list[str]:
    """Return what the map names and is not there."""
    found = []
    for theme, listed in rows(page).items():
        for row in listed:
            name = TEST.fullmatch(row[-1])
            file = root / row[1].strip("`") if len(row) == 3 else root
            if len(row) != 3 or not row[0].endswith(".") or name is None:
                found.append(f"{theme}: expected a rule, a file and a test, got {row}")
            elif not file.is_file():
                found.append(f"{theme}: there is no file {row[1]}")
            elif not re.search(rf"^\s*(?:fn|def) {name[1]}\(", file.read_text(), re.MULTILINE):
                found.append(f"{theme}: {row[1]} has no test {name[1]}")
            elif name[2] and name[2] not in SCENARIOS:
                found.append(f"{theme}: there is no scenario {name[2]}")
    return found


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / "tests/README.md").read_text()


def test_every_theme_has_rules_and_every_kind_of_fault_a_theme(page: str) -> None:
    assert set(THEMES) == set(KINDS)
    assert list(rows(page)) == list(THEMES.values())
    assert all(rows(page).values())
    assert sum(map(len, rows(page).values())) > 150


def test_every_rule_names_a_file_and_a_test_that_is_in_it(page: str, root: Path) -> None:
    assert problems(page, root) == []


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("`a_row_that_enters_a_page_is_sent_one_column`", "`a_row_that_enters_a_page_is_sent_two`", "has no test"),
        ("`tests/rules/read_only.rs`", "`tests/rules/write_only.rs`", "there is no file"),
        ("[memory_pressure]`", "[memory_plenty]`", "there is no scenario memory_plenty"),
        ("| `tests/rules/pools.rs` |", "|", "expected a rule, a file and a test"),
    ],
)
def test_a_wrong_name_in_the_map_is_found(right: str, wrong: str, said: str, page: str, root: Path) -> None:
    section = page.index(HEADING)
    changed = page[:section] + page[section:].replace(right, wrong, 1)
    (only,) = problems(changed, root)[:1]
    assert said in only


def test_no_test_of_the_map_is_listed_twice_for_one_theme(page: str) -> None:
    for theme, listed in rows(page).items():
        tests = [row[-1] for row in listed]
        assert len(set(tests)) == len(tests), theme
