"""Each injected fault is caught: by the row check, or because tokens change."""

from __future__ import annotations

import pytest

from mstar_resident.engine.scenarios import FAULTS, SCENARIOS

SHAPES = ("steady", "ragged_crossings", "slot_pressure", "two_pools", "no_table")


def test_the_six_faults_have_names() -> None:
    assert set(FAULTS) == {
        "stale-cell",
        "wrong-slot",
        "lost-advance",
        "dropped-stage-sent",
        "wrong-page",
        "padding-write",
    }


@pytest.mark.parametrize("scenario", SHAPES)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_caught(fault: str, scenario: str) -> None:
    harm = FAULTS[fault]()
    outcome = SCENARIOS[scenario]().run(0, 30, harm)
    assert harm.done
    assert outcome.mismatches >= 1
    assert not outcome.good


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("scenario", sorted(set(SCENARIOS) - set(SHAPES)))
@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_caught_in_every_scenario(fault: str, scenario: str) -> None:
    test_the_fault_is_caught(fault, scenario)


@pytest.mark.parametrize("fault", ["stale-cell", "wrong-slot", "wrong-page"])
def test_the_fault_changes_tokens_and_not_only_cells(fault: str) -> None:
    outcome = SCENARIOS["ragged_crossings"]().run(0, 30, FAULTS[fault]())
    assert any(found.startswith("token ") for found in outcome.found)
