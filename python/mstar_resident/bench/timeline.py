"""Read a profile's events: when the device was idle between steps, what was copied, and a trace that a person opens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

Event = Mapping[str, Any]
Interval = tuple[float, float]

KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
HOST = ("user_annotation", "cuda_runtime", "cuda_driver")
#: What a trace keeps of an event's arguments and of its name: there are tens of thousands of events.
SHOWN, MOST_NAME = ("correlation", "bytes"), 120


def gaps(steps: Iterable[Sequence[Interval]]) -> list[Interval]:
    """Return the idle time between each step and the next: from its last end to the next one's first begin.

    ``steps`` hold what the device ran in each, as (begin, end) in any order and maybe at once; a step without anything
    is left out. Where a step begins before the one before has ended, the interval is empty.
    """
    spans = sorted((min(begin for begin, _ in step), max(end for _, end in step)) for step in steps if step)
    found: list[Interval] = []
    for (_, end), (begin, _) in pairwise(spans):
        found.append((end, max(begin, end)))
    return found


def covered(within: Interval, others: Iterable[Interval]) -> float:
    """Return how much of an interval others cover, counted once where they overlap."""
    total, reached = 0.0, within[0]
    for begin, end in sorted(others):
        begin, end = max(begin, reached), min(end, within[1])
        if end > begin:
            total, reached = total + end - begin, end
    return total


def launches(events: Iterable[Event]) -> tuple[list[list[Event]], list[Event]]:
    """Split a profile's device events into graphs, each the events of one launch, and the rest.

    All that a graph launch runs carries the launch's correlation; another launch or copy runs one thing alone.
    """
    by_launch: dict[int, list[Event]] = {}
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in KERNELS:
            by_launch.setdefault(event["args"]["correlation"], []).append(event)
    graphs = [group for group in by_launch.values() if len(group) > 1]
    return graphs, [group[0] for group in by_launch.values() if len(group) == 1]


def device_times(events: Iterable[Event], skip: int = 0) -> dict[str, list[float]] | None:
    """Return per pair of consecutive graphs, in microseconds or bytes, what the device did.

    ``span_us`` from the first graph's first begin to its last end, ``idle_us`` from there to the next one's first
    begin, ``busy_us`` of that with copies and kernels of other launches, ``h2d_copies`` and ``h2d_bytes`` that began
    from the first graph's begin to the next one's. The first ``skip`` graphs are left out. None if fewer than two
    graphs are left, as on a CPU.
    """
    graphs, others = launches(events)
    graphs = sorted(graphs, key=lambda graph: min(event["ts"] for event in graph))[skip:]
    if len(graphs) < 2:
        return None
    begins = [min(event["ts"] for event in graph) for graph in graphs]
    between = gaps([[interval(event) for event in graph] for graph in graphs])
    rest = [interval(event) for event in others]
    sent = [event for event in others if event["cat"] == "gpu_memcpy" and "HtoD" in event["name"]]
    steps = [[event for event in sent if begin <= event["ts"] < end] for begin, end in pairwise(begins)]
    return {
        "span_us": [end - begin for begin, (end, _) in zip(begins, between, strict=False)],
        "idle_us": [end - begin for begin, end in between],
        "busy_us": [covered(gap, rest) for gap in between],
        "h2d_copies": [float(len(step)) for step in steps],
        "h2d_bytes": [float(sum(event["args"].get("bytes", 0) for event in step)) for step in steps],
    }


def tracks(events: Iterable[Event], name: str, number: int, main_thread: int) -> list[dict[str, Any]]:
    """Return a profile's events as two processes of a Chrome trace, ``name: host`` and ``name: device``, from time 0.

    Kept are the host's phases and its CUDA calls by thread, and what the device ran by cuda_stream.
    """
    kept = [event for event in events if event.get("ph") == "X" and event.get("cat") in (*HOST, *KERNELS)]
    if not kept:
        return []
    zero = min(event["ts"] for event in kept)
    out: list[dict[str, Any]] = []
    threads: set[tuple[int, int, str]] = set()
    for event in kept:
        device = event["cat"] in KERNELS
        pid, tid = 2 * number + 1 + device, int(event["tid"])
        if device:
            threads.add((pid, tid, f"cuda_stream {tid}"))
        else:
            threads.add((pid, tid, "engine" if tid == main_thread else f"thread {tid}"))
        out.append(
            {
                "ph": "X",
                "pid": pid,
                "tid": tid,
                "ts": round(event["ts"] - zero, 3),
                "dur": event["dur"],
                "name": event["name"][:MOST_NAME],
                "args": {key: value for key, value in event.get("args", {}).items() if key in SHOWN},
            }
        )
    for pid in sorted({pid for pid, _, _ in threads}):
        side = "host" if pid % 2 else "device"
        out.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"{name}: {side}"}})
    for pid, tid, text in sorted(threads):
        out.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": text}})
    return out


def interval(event: Event) -> Interval:
    """Return when an event began and ended."""
    return event["ts"], event["ts"] + event["dur"]
