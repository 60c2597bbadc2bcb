"""Idle time between steps, from intervals; what a profile's events are read as."""

from __future__ import annotations

from typing import Any

import pytest

from mstar_resident.bench.timeline import covered, device_times, gaps, launches, tracks


def event(cat: str, begin: float, end: float, launch: int = 0, name: str = "k", **args: Any) -> dict[str, Any]:
    args |= {"correlation": launch} if launch else {}
    return {"ph": "X", "cat": cat, "name": name, "ts": begin, "dur": end - begin, "pid": 0, "tid": 7, "args": args}


def graph(launch: int, *kernels: tuple[float, float]) -> list[dict[str, Any]]:
    return [event("kernel", begin, end, launch) for begin, end in kernels]


def test_idle_is_from_a_steps_last_end_to_the_next_ones_first_begin() -> None:
    assert gaps([[(0, 2), (3, 5)], [(9, 11), (12, 20)], [(20.5, 21)]]) == [(5, 9), (20, 20.5)]


def test_the_last_end_counts_and_not_the_last_kernel() -> None:
    side_branch = [(0, 30), (1, 2), (3, 4)]
    assert gaps([side_branch, [(33, 34)]]) == [(30, 33)]


def test_the_order_in_which_steps_and_kernels_are_given_does_not_matter() -> None:
    assert gaps([[(12, 20), (9, 11)], [(3, 5), (0, 2)]]) == [(5, 9)]


def test_a_step_that_begins_before_the_one_before_has_ended_leaves_no_idle_time() -> None:
    assert gaps([[(0, 10)], [(8, 12)]]) == [(10, 10)]


@pytest.mark.parametrize("steps", [[], [[]], [[(0, 1)]], [[], [(0, 1)], []]])
def test_fewer_than_two_steps_have_nothing_between_them(steps: list[list[tuple[float, float]]]) -> None:
    assert gaps(steps) == []


def test_what_covers_an_interval_twice_counts_once_and_what_lies_outside_not_at_all() -> None:
    assert covered((10, 20), [(8, 12), (11, 13), (18, 40), (0, 5), (30, 31)]) == 5
    assert covered((10, 20), []) == 0
    assert covered((10, 20), [(0, 99)]) == 10


def test_a_launch_of_one_thing_is_no_graph() -> None:
    graphs, others = launches([*graph(1, (0, 1), (1, 2)), event("gpu_memcpy", 2, 3, 2), event("cpu_op", 0, 9)])
    assert [len(found) for found in graphs] == [2]
    assert [found["cat"] for found in others] == ["gpu_memcpy"]


def test_what_lies_between_two_graphs_is_read_off_a_profile() -> None:
    events = [
        *graph(1, (0, 10), (10, 100)),
        event("gpu_memcpy", 101, 103, 11, "Memcpy DtoH (Device -> Pinned)", bytes=8),
        event("gpu_memcpy", 104, 105, 12, "Memcpy HtoD (Pinned -> Device)", bytes=64),
        *graph(2, (110, 120), (120, 200)),
        *graph(3, (201, 210), (210, 300)),
        event("cuda_runtime", 90, 95, 3, "cudaGraphLaunch"),
    ]
    assert device_times(events) == {
        "span_us": [100, 90],
        "idle_us": [10, 1],
        "busy_us": [3, 0],
        "h2d_copies": [1, 0],
        "h2d_bytes": [64, 0],
    }
    assert device_times(events, skip=1) == {
        "span_us": [90],
        "idle_us": [1],
        "busy_us": [0],
        "h2d_copies": [0],
        "h2d_bytes": [0],
    }
    assert device_times(events, skip=2) is None
    assert device_times([event("user_annotation", 0, 1)]) is None


def test_tracks_are_of_two_processes_begin_at_zero_and_name_their_threads() -> None:
    events = [event("user_annotation", 1000, 1005, name="flush"), *graph(4, (1004, 1006), (1006, 1009))]
    events[1]["args"]["grid"] = [1, 1, 1]
    found = tracks([*events, event("cpu_op", 900, 901), {"ph": "M", "name": "process_name"}], "arm", 3, main_thread=7)
    assert [e["args"] for e in found if e["ph"] == "X"] == [{}, {"correlation": 4}, {"correlation": 4}]
    spans = [(e["pid"], e["tid"], e["name"], e["ts"], e["dur"]) for e in found if e["ph"] == "X"]
    assert spans == [(7, 7, "flush", 0, 5), (8, 7, "k", 4, 2), (8, 7, "k", 6, 3)]
    named = [(e["name"], e["pid"], e["args"]["name"]) for e in found if e["ph"] == "M"]
    assert named == [
        ("process_name", 7, "arm: host"),
        ("process_name", 8, "arm: device"),
        ("thread_name", 7, "engine"),
        ("thread_name", 8, "cuda_stream 7"),
    ]
    assert tracks([], "arm", 0, main_thread=7) == []
