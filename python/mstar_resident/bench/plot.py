"""Draw what the decode bench found, as an SVG written by hand: gain over the baseline, and time beyond the graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

COLOURS = {"resident": "#1f77b4", "host": "#8c8c8c", "off": "#c9c9c9"}
WIDTH, HEIGHT, TOP = 520, 300, 64
LEFT, RIGHT, UNDER, ABOVE = 56, 16, 44, 40

Case = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Bar:
    """Hold one bar: its value, the least and the greatest of it, and what stands at its end."""

    arm: str
    value: float
    least: float
    most: float
    text: str


Groups = dict[int, list[Bar]]


def draw(cases: Sequence[Case], title: str) -> str:
    """Return the SVG of cases as :class:`~mstar_resident.bench.decode.DecodeBench` gives them: a row per shape."""
    shapes = list(dict.fromkeys(case["shape"] for case in cases))
    parts = []
    for row, shape in enumerate(shapes):
        here = [case for case in cases if case["shape"] == shape]
        top = TOP + row * HEIGHT
        baseline = here[0]["ratio_to"]
        parts += panel(0, top, f"{shape}: tokens per second against {baseline}, %", gains(here))
        parts += panel(WIDTH, top, f"{shape}: step's wall time beyond its graph's, µs", beyond_graph(here))
    first = cases[0]
    conditions = (
        f"prompt {first['prompt']}, {first['new']} new tokens, {first['rounds']} paired rounds: median, "
        f"whiskers from least to greatest; {first['dtype']} on {first['device']}"
    )
    width, height = 2 * WIDTH, TOP + len(shapes) * HEIGHT
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            label(16, 24, title, size=16),
            label(16, 44, conditions, colour="#555"),
            *parts,
            "</svg>\n",
        ]
    )


def gains(cases: Sequence[Case]) -> Groups:
    """Return per concurrency the gain of every arm but the baseline, in percent."""
    groups: Groups = {}
    for case in cases:
        if case["arm"] != case["ratio_to"]:
            median, least, most = (100 * (case["ratio"][name] - 1) for name in ("median", "min", "max"))
            bar = Bar(case["arm"], median, least, most, f"{median:+.1f}")
            groups.setdefault(case["concurrency"], []).append(bar)
    return groups


def beyond_graph(cases: Sequence[Case]) -> Groups:
    """Return per concurrency and arm what a step takes beyond its graph's time on the device, in microseconds."""
    groups: Groups = {}
    for case in cases:
        graph = case["graph_us"]["median"]
        median, least, most = (case["step_us"][name] - graph for name in ("median", "min", "max"))
        bar = Bar(case["arm"], median, least, most, f"{median:.0f}")
        groups.setdefault(case["concurrency"], []).append(bar)
    return groups


def panel(x: float, y: float, title: str, groups: Groups) -> list[str]:
    """Return one panel: a group of bars per concurrency, on a scale that holds every value and 0."""
    parts = [label(x + LEFT, y + 16, title, size=13)]
    bars = [bar for group in groups.values() for bar in group]
    if not bars:
        return [*parts, label(x + LEFT, y + HEIGHT / 2, "one arm: nothing to compare", colour="#555")]
    low, high, step = scale(min(bar.least for bar in bars), max(bar.most for bar in bars))
    bottom, height = y + HEIGHT - UNDER, HEIGHT - UNDER - ABOVE

    def at(value: float) -> float:
        return bottom - height * (value - low) / (high - low)

    for number in range(round((high - low) / step) + 1):
        value = low + number * step
        colour = "#333" if abs(value) < step / 2 else "#ddd"
        parts.append(line(x + LEFT, at(value), x + WIDTH - RIGHT, at(value), colour))
        parts.append(label(x + LEFT - 6, at(value) + 4, f"{value:g}", anchor="end", colour="#555"))
    wide = (WIDTH - LEFT - RIGHT) / len(groups)
    for number, (concurrency, group) in enumerate(groups.items()):
        left = x + LEFT + number * wide
        parts.append(label(left + wide / 2, bottom + 16, str(concurrency), anchor="middle"))
        each = min(0.8 * wide / len(group), 44)
        for place, bar in enumerate(group):
            middle = left + wide / 2 + (place - (len(group) - 1) / 2) * each
            top, foot = sorted((at(bar.value), at(0)))
            parts.append(
                f'<rect x="{middle - each * 0.4:.1f}" y="{top:.1f}" width="{each * 0.8:.1f}" height="{foot - top:.1f}" '
                f'fill="{COLOURS.get(bar.arm, "#2ca02c")}"/>'
            )
            parts.append(line(middle, at(bar.least), middle, at(bar.most), "#000"))
            parts.append(label(middle, at(max(bar.most, 0)) - 4, bar.text, anchor="middle", size=11))
    parts.append(label(x + LEFT, y + HEIGHT - 10, "requests at once", colour="#555"))
    for place, arm in enumerate(dict.fromkeys(bar.arm for bar in bars)):
        right = x + WIDTH - RIGHT - 90 * place
        parts.append(f'<rect x="{right - 80}" y="{y + HEIGHT - 20}" width="10" height="10" fill="{COLOURS[arm]}"/>')
        parts.append(label(right - 66, y + HEIGHT - 11, arm))
    return parts


def scale(least: float, most: float) -> tuple[float, float, float]:
    """Return a round scale's ends and step: it covers both values and 0 with four to ten steps."""
    least, most = min(least, 0.0), max(most, 0.0)
    rough = (most - least or 1.0) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = max(power * factor for factor in (1, 2, 5) if power * factor <= rough * (1 + 1e-9))
    return math.floor(least / step) * step, math.ceil(most / step) * step or step, step


def line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    """Return a line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def label(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", colour: str = "#111") -> str:
    """Return a text."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
    )
