"""Time a kernel as a layer of a captured graph, each layer with memory of its own."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what decides how long and how well a kernel is timed."""
    parser.add_argument("--touch-mib", type=int, default=256, help="MiB that a graph touches")
    parser.add_argument("--bandwidth", type=float, default=4.3, help="TB/s of the floor")
    parser.add_argument("--replays", type=int, default=10, help="replays timed at once")
    parser.add_argument("--rounds", type=int, default=20, help="rounds")
    parser.add_argument("--json", help="file for the records")


def count(bytes_each: int, touch_mib: int) -> int:
    """Return how many layers touch so much memory that a layer finds nothing of its own in the cache, and fit."""
    wanted = max(8, -(-(touch_mib << 20) // bytes_each))
    return max(1, min(wanted, 64, (40 << 30) // bytes_each))


def time_graph(body: Callable[[], None], layers: int, replays: int, rounds: int) -> tuple[float, float, float]:
    """Return median, p10 and p90 of µs per layer over rounds of back-to-back replays."""
    body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    figures = []
    for _ in range(rounds + 2):
        start.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        figures.append(start.elapsed_time(end) * 1000 / replays / layers)
    figures = sorted(figures[2:])
    return statistics.median(figures), figures[len(figures) // 10], figures[len(figures) * 9 // 10]
