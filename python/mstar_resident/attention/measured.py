"""Decode attention by whichever backend measures fastest in a bucket."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mstar_resident.attention.base import Attention
from mstar_resident.errors import LayoutError
from mstar_resident.recording import recording

if TYPE_CHECKING:
    from mstar_resident.engine.inputs import PagedKV

logger = logging.getLogger("mstar_resident")

#: Tokens a row at which backends are compared, as far as the table holds them.
LENGTHS = (1024, 8192)
CALLS, REPLAYS = 10, 7

Measure = Callable[[Attention, Tensor, Tensor, "PagedKV"], float]


@dataclass(frozen=True, slots=True)
class Choice:
    """Say what a bucket decodes with, and what each backend took there."""

    backend: str
    times_us: Mapping[str, tuple[float, ...]]
    """Microseconds of one layer at each of the lengths."""

    def __str__(self) -> str:
        """Name the backend, and all times beside it."""
        times = (f"{name} {' / '.join(f'{us:.1f}' for us in of)} us" for name, of in self.times_us.items())
        return f"{self.backend} ({', '.join(times)})"


class MeasuredAttention:
    """Be an :class:`~mstar_resident.attention.base.Attention`: in each bucket the fastest of several.

    A bucket's backends are timed when the bucket first runs, which is before its capture: on the pool's own layer, over
    random pages, in graphs of their own. Nothing is timed on the step path. Both arms of a node, and all layers, decode
    a bucket with the same choice; another start may choose otherwise where two backends are as fast, and their results
    differ by rounding. Writes and prefill are the first backend's.

    Args:
        makers: per name, what makes a backend whose decode is host-plan-free.
        measure: microseconds of one layer's decode of ``q`` by a backend.
    """

    #: Only backends that read pages and lengths on the device are compared.
    host_plan_free = True

    def __init__(self, makers: Mapping[str, Callable[[], Attention]], measure: Measure | None = None) -> None:
        if not makers:
            raise LayoutError.of("makers", expected="at least one backend", got="none")
        self._makers = dict(makers)
        self._backends = {name: make() for name, make in makers.items()}
        planned = [name for name, backend in self._backends.items() if not backend.host_plan_free]
        if planned:
            raise LayoutError.of("makers", expected="backends without a host plan", got=planned)
        self._first = next(iter(self._backends.values()))
        self._measure = measure or time_decode
        self._choices: dict[tuple[object, ...], Choice] = {}

    def backend(self, rows: int) -> str:
        """Name what a bucket of so many rows decodes with, and the times that say so."""
        return ", ".join(dict.fromkeys(str(choice) for key, choice in self._choices.items() if key[0] == rows))

    def write(self, layer: Tensor, k: Tensor, v: Tensor, paged: PagedKV) -> None:
        """Store ``k`` and ``v``, ``[t, kv_heads, head_dim]`` each, at ``paged.write_loc``."""
        self._first.write(layer, k, v, paged)

    def begin(self, layer: Tensor, heads: int, paged: PagedKV) -> None:
        """Prepare a decode step; the first one of a bucket chooses its backend, and waits for the device."""
        key = _key(layer, heads, paged)
        if key not in self._choices:
            self._choices[key] = choice = self._choose(layer, heads, paged)
            logger.info("attention of %d rows, %d heads: %s", key[0], heads, choice)
        self._chosen(key).begin(layer, heads, paged)

    def decode(self, layer: Tensor, q: Tensor, paged: PagedKV) -> Tensor:
        """Attend with one token a row: ``q`` and the result are ``[b, heads, head_dim]``.

        Raises:
            LayoutError: the step did not :meth:`begin`.
        """
        return self._chosen(_key(layer, q.shape[1], paged)).decode(layer, q, paged)

    def prefill(self, layer: Tensor, q: Tensor, paged: PagedKV, query_start: Tensor) -> Tensor:
        """Attend with ranges of tokens: ``q`` and the result are ``[t, heads, head_dim]``."""
        return self._first.prefill(layer, q, paged, query_start)

    def _chosen(self, key: tuple[object, ...]) -> Attention:
        choice = self._choices.get(key)
        if choice is None:
            raise LayoutError.of("decode", expected="begin before the first layer", got=None)
        return self._backends[choice.backend]

    def _choose(self, layer: Tensor, heads: int, paged: PagedKV) -> Choice:
        b, head_dim = paged.rows.shape[0], layer.shape[-1]
        draw = torch.Generator(layer.device).manual_seed(0)  # torch's own generators are the node's
        q = torch.randn(b, heads, head_dim, device=layer.device, generator=draw).to(layer.dtype)
        most = paged.table.shape[1] * paged.page_size
        tokens = sorted({min(length, most) for length in LENGTHS})
        steps = [_random_step(layer, paged, length, draw) for length in tokens]
        times: dict[str, tuple[float, ...]] = {}
        for name, make in self._makers.items():
            backend = make()  # another one: what is kept belongs to the node's own tables
            times[name] = tuple(self._measure(backend, layer, q, step) for step in steps)
        # By ratios, so that short rows count as much as long ones.
        return Choice(min(times, key=lambda name: math.prod(times[name])), times)


def _key(layer: Tensor, heads: int, paged: PagedKV) -> tuple[object, ...]:
    return (paged.rows.shape[0], heads, layer.shape[2:], layer.dtype, paged.table.shape[1])


def _random_step(layer: Tensor, paged: PagedKV, tokens: int, draw: torch.Generator) -> PagedKV:
    """Return a step of the same rows, each attending so many tokens of random pages of the pool."""
    from mstar_resident.engine.inputs import PagedKV

    b, device = paged.rows.shape[0], layer.device
    columns = max(2, -(-tokens // paged.page_size))
    size = (b + 1, columns)
    table = torch.randint(0, layer.shape[0], size, dtype=torch.int32, device=device, generator=draw)
    rows = torch.arange(1, b + 1, device=device)
    return PagedKV(table, rows, torch.full((b,), tokens, dtype=torch.int32, device=device), None, paged.page_size)


def time_decode(backend: Attention, layer: Tensor, q: Tensor, paged: PagedKV) -> float:
    """Return the microseconds of one decode: replayed from a graph on cuda, else as the host sees it."""
    backend.begin(layer, q.shape[1], paged)
    backend.decode(layer, q, paged)  # compiles
    if layer.device.type != "cuda":
        return statistics.median(_host_us(lambda: backend.decode(layer, q, paged)) for _ in range(REPLAYS))
    graph = torch.cuda.CUDAGraph()
    with recording(graph):
        for _ in range(CALLS):
            backend.decode(layer, q, paged)
    times: list[float] = []
    for _ in range(REPLAYS + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / CALLS)
    return statistics.median(times[1:])


def _host_us(call: Callable[[], object]) -> float:
    begin = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - begin) / 1000
