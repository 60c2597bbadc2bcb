"""The decode bench's plot holds every value, and its scale is round."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from mstar_resident.bench.plot import beyond_graph, draw, gains, scale


def case(arm: str, concurrency: int, ratio: float, step: float, shape: str = "0.8b") -> dict[str, Any]:
    return {
        "shape": shape,
        "arm": arm,
        "concurrency": concurrency,
        "ratio_to": "host",
        "ratio": {"median": ratio, "min": ratio - 0.01, "max": ratio + 0.02},
        "step_us": {"median": step, "min": step - 1, "max": step + 1},
        "graph_us": {"median": 400.0, "min": 399.0, "max": 401.0},
        "prompt": 512,
        "new": 256,
        "rounds": 5,
        "dtype": "bfloat16",
        "device": "cuda",
    }


CASES = [
    case("host", 1, 1.0, 480),
    case("resident", 1, 1.19, 404),
    case("host", 8, 1.0, 480),
    case("resident", 8, 0.97, 495),
]


def test_the_gain_is_the_paired_ratio_in_percent_and_the_baseline_has_none() -> None:
    assert {rows: [(bar.arm, bar.text) for bar in bars] for rows, bars in gains(CASES).items()} == {
        1: [("resident", "+19.0")],
        8: [("resident", "-3.0")],
    }


def test_time_beyond_the_graph_is_the_steps_less_the_graphs() -> None:
    assert [(bar.value, bar.least, bar.most) for bar in beyond_graph(CASES)[1]] == [(80, 79, 81), (4, 3, 5)]


def test_the_drawing_is_xml_with_a_bar_for_every_value() -> None:
    cases = [*CASES, case("host", 1, 1.0, 900, "2b"), case("resident", 1, 1.01, 880, "2b")]
    root = ElementTree.fromstring(draw(cases, "<a & b>"))
    said = ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "<a & b>" in said
    for text in ("+19.0", "-3.0", "80", "4", "95", "500", "480", "0.8b: tokens per second against host, %"):
        assert text in said
    for bar in root.iter("{http://www.w3.org/2000/svg}rect"):
        assert float(bar.get("height", "")) >= 0


def test_one_arm_alone_is_drawn_too() -> None:
    assert "nothing to compare" in draw([case("host", 1, 1.0, 480)], "one")


@pytest.mark.parametrize(
    ("least", "most"), [(0, 0), (0, 1), (-3, 34.5), (2, 2), (-0.7, -0.1), (0, 99_999), (1e-3, 2e-3)]
)
def test_a_scale_holds_its_values_and_zero_in_a_few_round_steps(least: float, most: float) -> None:
    low, high, step = scale(least, most)
    assert low <= min(least, 0)
    assert high >= max(most, 0)
    assert high > low
    assert 1 <= round((high - low) / step) <= 11
