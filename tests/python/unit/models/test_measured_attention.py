"""Attention by the backend that measures fastest in a bucket."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mstar_resident.attention.measured import MeasuredAttention
from mstar_resident.attention.torch_paged import TorchAttention
from mstar_resident.attention.torch_planned import PlannedTorchAttention
from mstar_resident.engine.config import EngineConfig, PoolConfig
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.inputs import PagedKV
from mstar_resident.engine.request import Request
from mstar_resident.errors import LayoutError
from mstar_resident.models.config import LlamaConfig
from mstar_resident.models.kernels import Kernels
from mstar_resident.models.llama import Llama
from mstar_resident.models.rope import RopeConfig

CONFIG = LlamaConfig(61, 32, 2, 4, 2, 16, 64, RopeConfig(theta=1e4, rotary_dim=16))
PAGE = 4


class Named(TorchAttention):
    """Count the decodes of a backend that has a name."""

    def __init__(self, name: str) -> None:
        self.name, self.decodes = name, 0

    def decode(self, layer: Tensor, q: Tensor, paged: PagedKV) -> Tensor:
        self.decodes += 1
        return super().decode(layer, q, paged)


def step(rows: int, columns: int = 5) -> tuple[Tensor, Tensor, PagedKV]:
    layer = torch.randn(rows * columns + 1, 2, PAGE, 2, 16)
    table = torch.zeros(2 * rows + 1, columns, dtype=torch.int32)
    table[1 : rows + 1] = torch.arange(1, rows * columns + 1).view(rows, columns)
    lengths = torch.full((rows,), 7, dtype=torch.int32)
    return layer, torch.randn(rows, 4, 16), PagedKV(table, torch.arange(1, rows + 1), lengths, None, PAGE)


def times(wanted: dict[str, dict[int, float]]) -> Any:
    """Return a measure by name and rows, which runs nothing."""
    return lambda backend, layer, q, paged: wanted[backend.name][len(q)]


def test_each_bucket_decodes_with_what_was_fastest_there(caplog: pytest.LogCaptureFixture) -> None:
    made: list[Named] = []

    def maker(name: str) -> Any:
        def make() -> Named:
            made.append(Named(name))
            return made[-1]

        return make

    wanted = {"a": {1: 5.0, 4: 30.0}, "b": {1: 9.0, 4: 20.0}}
    measured = MeasuredAttention({"a": maker("a"), "b": maker("b")}, times(wanted))
    a, b = made
    with caplog.at_level(logging.INFO, "mstar_resident"):
        for rows in (1, 4, 4, 1):
            layer, q, paged = step(rows)
            measured.begin(layer, 4, paged)
            assert torch.equal(measured.decode(layer, q, paged), TorchAttention().decode(layer, q, paged))
    assert (a.decodes, b.decodes) == (2, 2)
    assert len(made) == 2 + 2 * 2  # each bucket was timed on backends of its own: they keep what they timed
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "attention of 1 rows, 4 heads",
        "attention of 4 rows, 4 heads",
    ]
    assert measured.backend(1).startswith("a (a 5.0")
    assert measured.backend(4).startswith("b (")
    assert measured.backend(2) == ""


def test_short_rows_count_as_much_as_long_ones() -> None:
    def measure(backend: Any, layer: Tensor, q: Tensor, paged: PagedKV) -> float:
        short = int(paged.lengths[0]) == 1024
        return {"a": (4.0, 110.0), "b": (8.0, 100.0)}[backend.name][not short]

    measured = MeasuredAttention({"a": lambda: Named("a"), "b": lambda: Named("b")}, measure)
    layer, _, paged = step(1, columns=2100)
    measured.begin(layer, 4, paged)
    assert measured.backend(1) == "a (a 4.0 / 110.0 us, b 8.0 / 100.0 us)"


def test_every_shape_is_timed_at_lengths_that_its_table_holds() -> None:
    seen: list[tuple[int, int, int]] = []

    def measure(backend: Any, layer: Tensor, q: Tensor, paged: PagedKV) -> float:
        seen.append((q.shape[1], int(paged.lengths[0]), paged.table.shape[1]))
        return 1.0

    measured = MeasuredAttention({"torch": TorchAttention}, measure)
    for heads, columns, page_size in ((4, 5, PAGE), (2, 5, PAGE), (4, 6, PAGE), (4, 30, 48), (4, 30, 48)):
        layer, _, paged = step(1, columns)
        measured.begin(layer, heads, replace(paged, page_size=page_size))
    assert seen == [(4, 20, 5), (2, 20, 5), (4, 24, 6), (4, 1024, 22), (4, 1440, 30)]


def test_timing_runs_the_backends_on_pages_of_the_pool_and_leaves_torch_s_generators_alone() -> None:
    layer, q, paged = step(3)
    before, content = torch.get_rng_state(), layer.clone()
    measured = MeasuredAttention({"torch": TorchAttention, "again": TorchAttention})
    measured.begin(layer, 4, paged)
    assert measured.backend(3)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(layer, content)
    assert torch.equal(measured.decode(layer, q, paged), TorchAttention().decode(layer, q, paged))


def test_decode_before_begin_and_backends_with_a_host_plan_are_refused() -> None:
    layer, q, paged = step(1)
    with pytest.raises(LayoutError, match="begin before the first layer"):
        MeasuredAttention({"torch": TorchAttention}).decode(layer, q, paged)
    with pytest.raises(LayoutError, match="without a host plan"):
        MeasuredAttention({"planned": PlannedTorchAttention})
    with pytest.raises(LayoutError, match="at least one backend"):
        MeasuredAttention({})


def test_an_engine_reports_the_choice_of_every_bucket() -> None:
    attention = MeasuredAttention({"torch": TorchAttention})
    model = Llama.seeded(CONFIG, 0, kernels=Kernels(attention=attention))
    engine = Engine(model, EngineConfig(max_batch=2, max_requests=2, pools={"kv": PoolConfig(4, 20, 64)}))
    engine.add(Request("0", torch.arange(1, 9).numpy(), 4))
    engine.run()
    assert engine.capture().buckets[0].attention["kv"].startswith("torch (torch ")
