"""A run of the soak in which something happened that never may is not met, and names it."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[4] / "benches" / "gpu"
NEVER = (
    *("mismatches", "failed", "waits", "compiled_while_serving", "allocations_on_path", "bytes_grown"),
    "other_schedule",
)


@pytest.mark.parametrize("planning", ["resident", "host"])
def test_what_must_never_happen_is_named(planning: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    soak = importlib.import_module("soak")
    case = {"planning": planning, **dict.fromkeys(NEVER, 0)}
    assert soak.unmet(None, case) == []
    for name in NEVER:
        assert soak.unmet(None, case | {name: 3}) == [f"{name}: 3"]
