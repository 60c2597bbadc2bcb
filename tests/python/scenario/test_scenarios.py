"""Every named scenario is clean, and does what it is for."""

from __future__ import annotations

import pytest

from mstar_resident.engine.scenarios import SCENARIOS

NAMES = [
    "steady",
    "ragged_crossings",
    "join_leave",
    "chunked_prefill",
    "mixed_steps",
    "image_positions",
    "recurrent",
    "aborts",
    "abort_storm",
    "recycled_handles",
    "slot_pressure",
    "memory_pressure",
    "preplan_abandoned",
    "overshoot",
    "failed_steps",
    "two_pools",
    "read_only_pool",
    "planner_owned_pages",
    "prefix_sharing",
    "off_by_knob",
]


def test_every_expected_scenario_has_a_name() -> None:
    assert set(NAMES) <= set(SCENARIOS)
    for name, scenario in SCENARIOS.items():
        assert scenario.name == name
        assert scenario.text


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_scenario_is_clean(name: str) -> None:
    scenario = SCENARIOS[name]()
    outcome = scenario.run(0, scenario.steps)
    assert outcome.found == []
    assert outcome.unmet == []
    assert outcome.rows_checked > 0
    assert outcome.good


@pytest.mark.parametrize("name", ["join_leave", "random"])
def test_equal_seeds_give_equal_runs(name: str) -> None:
    first, second = (SCENARIOS[name]().run(3, 60).case() for _ in range(2))
    assert first == second
    assert first != SCENARIOS[name]().run(4, 60).case()
