"""What a scenario's run came to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mstar_resident.engine.engine import Engine


@dataclass(slots=True)
class Outcome:
    """Add up the engines of one scenario's run."""

    scenario: str
    steps: int = 0
    resident_steps: int = 0
    rows_checked: int = 0
    mismatches: int = 0
    displaced: int = 0
    whole_rows: int = 0
    crossings: int = 0
    dropped_stages: int = 0
    found: list[str] = field(default_factory=list)
    """What differed, in words."""
    caught_by: Counter[str] = field(default_factory=Counter)
    """How much of it each check found."""
    unmet: list[str] = field(default_factory=list)
    """What the scenario is for and did not happen."""

    def add(self, engine: Engine, found: Mapping[str, list[str]]) -> None:
        """Add an engine's counters, and what other checks than that of its rows found."""
        counters = engine.counters
        self.steps += counters.steps
        self.resident_steps += counters.resident_steps
        self.rows_checked += counters.rows_checked
        self.note("row check", counters.mismatches)
        for check, texts in found.items():
            self.note(check, texts)
        if engine.planner is not None:
            stats = engine.planner.stats()
            self.displaced += stats.displaced
            self.whole_rows += stats.whole_rows
            self.crossings += stats.crossings
            self.dropped_stages += stats.dropped

    def note(self, check: str, found: list[str]) -> None:
        """Note what a check found, in words."""
        self.found += found
        self.mismatches += len(found)
        if found:
            self.caught_by[check] += len(found)

    @property
    def good(self) -> bool:
        """Whether rows were checked, nothing differed, and what the scenario is for happened."""
        return self.rows_checked > 0 and not self.mismatches and not self.unmet

    def case(self) -> dict[str, Any]:
        """Return the JSON case."""
        return {
            "scenario": self.scenario,
            "steps": self.steps,
            "resident_steps": self.resident_steps,
            "rows_checked": self.rows_checked,
            "mismatches": self.mismatches,
            "displaced": self.displaced,
            "whole_rows": self.whole_rows,
            "crossings": self.crossings,
            "dropped_stages": self.dropped_stages,
        }
