"""A fault of each kind is caught, by the row check or by what else holds a run to its word."""

from __future__ import annotations

import pytest

from mstar_resident.cli import main
from mstar_resident.engine.scenarios import FAULTS, KINDS, SCENARIOS

SHAPES = ("steady", "ragged_crossings", "slot_pressure", "two_pools", "no_table")
FIRST = ("stale-cell", "wrong-slot", "lost-advance", "dropped-stage-sent", "wrong-page", "padding-write")

#: Per kind: a fault of it, a scenario in which it acts, and the check that catches it.
CAUGHT = {
    "stale": ("stale-cell", "join_leave", "row check"),
    "in flight": ("reused-slot", "join_leave", "row check"),
    "padding": ("padding-write", "join_leave", "row check"),
    "staging": ("overwritten-source", "join_leave", "row check"),
    "length": ("lost-advance", "join_leave", "row check"),
    "width": ("stale-tail", "join_leave", "row check"),
    "edge": ("wrong-page", "ragged_crossings", "row check"),
    "recurrent": ("lost-state", "recurrent", "row check"),
    "group": ("mixed-pools", "read_only_pool", "row check"),
    "sampler": ("wrong-seat", "join_leave", "row check"),
    "position": ("lost-offset", "image_positions", "row check"),
    "graph": ("moved-buffer", "join_leave", "addresses"),
    "rank": ("slot-exchanged", "ranks", "ranks"),
    "offload": ("old-pages", "memory_pressure", "row check"),
    "integer": ("wrapped-page", "join_leave", "PageError"),
    "cost": ("resent-rows", "steady", "cost"),
    "life": ("lost-release", "join_leave", "left over"),
}

RECURRENT = {"recurrent", "recurrent_memory_pressure", "failed_recurrent_steps", "no_table", "off_by_knob"}
PRESSURE = {"memory_pressure", "recurrent_memory_pressure", "refused_pages", "planner_owned_pages"}
#: Faults that need what not every scenario has, in its first steps: where they act.
ONLY = {
    "stale-tail": set(SCENARIOS) - {"no_table"},
    "lost-offset": set(SCENARIOS) - {"no_table"},
    "lost-state": RECURRENT,
    "mixed-pools": {"two_pools", "read_only_pool", "refused_pages", "random"},
    "slot-exchanged": {"ranks"},
    "old-pages": PRESSURE,
    "wrapped-page": set(SCENARIOS) - {"no_table", "planner_owned_pages"},
}


def test_the_first_six_faults_keep_their_names() -> None:
    assert set(FIRST) <= set(FAULTS)


def test_every_kind_has_a_fault_and_every_fault_a_kind() -> None:
    assert len(KINDS) == 17
    assert set(CAUGHT) == set(KINDS) == {fault.kind for fault in FAULTS.values()}
    assert all(FAULTS[fault].kind == kind for kind, (fault, _, _) in CAUGHT.items())


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_of_the_kind_is_caught_by_the_check_that_is_there_for_it(kind: str) -> None:
    fault, scenario, check = CAUGHT[kind]
    harm = FAULTS[fault]()
    outcome = SCENARIOS[scenario]().run(0, 30, harm)
    assert harm.done
    assert outcome.caught_by[check] >= 1, outcome.caught_by
    assert outcome.mismatches == len(outcome.found) == outcome.caught_by.total()
    assert not outcome.good


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_ends_in_1_and_says_what_caught_the_fault(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    fault, scenario, check = CAUGHT[kind]
    assert main(["check", "--scenario", scenario, "--steps", "25", "--inject", fault]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "caught by: " in line]
    assert f"{check} " in line


@pytest.mark.parametrize("scenario", SHAPES)
@pytest.mark.parametrize("fault", FIRST)
def test_the_fault_is_caught(fault: str, scenario: str) -> None:
    harm = FAULTS[fault]()
    outcome = SCENARIOS[scenario]().run(0, 30, harm)
    assert harm.done
    assert outcome.mismatches >= 1
    assert not outcome.good


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_caught_in_every_scenario_in_which_it_acts(fault: str) -> None:
    acts = set()
    for scenario in SCENARIOS:
        harm = FAULTS[fault]()
        outcome = SCENARIOS[scenario]().run(0, 30, harm)
        if harm.done:
            acts.add(scenario)
            assert outcome.mismatches >= 1, scenario
    assert acts >= ONLY.get(fault, set(SCENARIOS))


@pytest.mark.parametrize("fault", ["stale-cell", "wrong-slot", "wrong-page", "wrong-seat", "lost-offset"])
def test_the_fault_changes_tokens_and_not_only_cells(fault: str) -> None:
    outcome = SCENARIOS["ragged_crossings"]().run(0, 30, FAULTS[fault]())
    assert any(found.startswith("token ") for found in outcome.found)


@pytest.mark.parametrize("fault", ["resent-rows", "lost-release"])
def test_what_no_row_shows_changes_no_token(fault: str) -> None:
    outcome = SCENARIOS["join_leave"]().run(0, 30, FAULTS[fault]())
    assert set(outcome.caught_by) == {CAUGHT[FAULTS[fault].kind][2]}
