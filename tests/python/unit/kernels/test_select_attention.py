"""Attention by name: what is taken where FlashInfer is missing, known, or plans otherwise."""

from __future__ import annotations

import logging
import sys

import numpy as np
import pytest
import torch

from mstar_resident.attention import flashinfer_fa2, measured
from mstar_resident.attention.flashinfer_fa2 import FlashInferAttention
from mstar_resident.attention.flashinfer_planned import PlannedFlashInferAttention
from mstar_resident.attention.measured import MeasuredAttention
from mstar_resident.attention.select import select_attention
from mstar_resident.attention.torch_paged import TorchAttention
from mstar_resident.attention.triton_split import TritonAttention
from mstar_resident.engine.config import EngineConfig, PoolConfig
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.request import Request
from mstar_resident.errors import LayoutError
from mstar_resident.models.config import LlamaConfig
from mstar_resident.models.kernels import Kernels
from mstar_resident.models.llama import Llama
from mstar_resident.models.rope import RopeConfig

from . import fake_flashinfer

SHAPE = (8, 2, 64, 16, torch.float32, "cpu")
CONFIG = LlamaConfig(101, 64, 2, 8, 2, 64, 96, RopeConfig(1e4, 64))


@pytest.fixture(autouse=True)
def flashinfer(monkeypatch, device):
    if device != "cpu":
        pytest.skip("where there is a CUDA device, FlashInfer itself is tested")
    wrapper = fake_flashinfer.BatchDecodeWithPagedKVCacheWrapper
    monkeypatch.setitem(sys.modules, "flashinfer", fake_flashinfer)
    monkeypatch.setattr(flashinfer_fa2, "installed", lambda: flashinfer_fa2.KNOWN[0])
    monkeypatch.setattr(flashinfer_fa2, "TESTED", (1, 7))
    monkeypatch.setattr(wrapper, "plans", 0)
    return wrapper


def chosen(name, caplog):
    """Return what is taken, and the lines that say so."""
    with caplog.at_level(logging.INFO, "mstar_resident"):
        attention = select_attention(name, *SHAPE)
    return attention, [record.message for record in caplog.records]


def test_a_known_release_is_planned_in_the_graph_and_measured_against_ours(caplog):
    attention, lines = chosen("flashinfer", caplog)
    assert type(attention) is FlashInferAttention
    assert not attention.gather
    measured_, _ = chosen("auto", caplog)
    assert type(measured_) is MeasuredAttention
    assert list(measured_._makers) == ["triton", "flashinfer"]
    assert type(chosen("triton", caplog)[0]) is TritonAttention
    assert lines == []
    with pytest.raises(LayoutError, match="attention"):
        select_attention("fa3", *SHAPE)


@pytest.mark.parametrize("release", ["0.9.0", "plans otherwise"])
def test_another_release_keeps_its_host_plan_and_auto_does_without_it(release, flashinfer, monkeypatch, caplog):
    if release == "plans otherwise":
        monkeypatch.setattr(flashinfer, "longer_chunks", 2)
    else:
        monkeypatch.setattr(flashinfer_fa2, "installed", lambda: release)
    attention, lines = chosen("flashinfer", caplog)
    assert type(attention) is PlannedFlashInferAttention
    assert not attention.host_plan_free
    assert len(lines) == 1
    assert lines[0].startswith("fa2 needs its host plan: ")
    assert type(chosen("auto", caplog)[0]) is TritonAttention


def test_a_release_that_cannot_read_pages_where_they_lie_has_them_copied(monkeypatch, caplog):
    refusal = flashinfer_fa2.refusal
    monkeypatch.setattr(
        flashinfer_fa2,
        "refusal",
        lambda *shape, gather=False: refusal(*shape, gather=True) if gather else "outputs differ, 1 rows",
    )
    attention, lines = chosen("flashinfer", caplog)
    assert type(attention) is FlashInferAttention
    assert attention.gather
    assert lines == []


def test_without_flashinfer_auto_is_ours_and_flashinfer_an_error(monkeypatch, caplog):
    monkeypatch.setattr(flashinfer_fa2, "installed", lambda: None)
    attention, lines = chosen("auto", caplog)
    assert type(attention) is TritonAttention
    assert lines == ["attention: triton in every bucket, FlashInfer is not installed"]
    with pytest.raises(LayoutError, match="installed"):
        select_attention("flashinfer", *SHAPE)


def test_what_our_kernel_does_not_take_is_flashinfers_and_without_it_an_error(monkeypatch):
    many = (40, 2, *SHAPE[2:])  # more query heads for a KV head than fa2 is planned for in the graph, too
    assert type(select_attention("auto", *many)) is PlannedFlashInferAttention
    with pytest.raises(LayoutError, match=r"heads: expected 1 to 16 .* got 40"):
        select_attention("triton", *many)
    monkeypatch.setattr(flashinfer_fa2, "refusal", lambda *shape, gather=False: None)
    assert type(select_attention("auto", *many)) is FlashInferAttention
    monkeypatch.setattr(flashinfer_fa2, "installed", lambda: None)
    with pytest.raises(LayoutError, match=r"heads: expected 1 to 16 .* got 40"):
        select_attention("auto", *many)


def answers(attention, planning, **settings):
    """Serve requests that come and go, some of them long enough to be split; return tokens, engine and report."""
    model = Llama.seeded(CONFIG, 1, kernels=Kernels(attention=attention) if attention else Kernels())
    pools = {"kv": PoolConfig(16, 120, 256)}
    engine = Engine(model, EngineConfig(max_batch=4, max_requests=6, pools=pools, planning=planning, **settings))
    report = engine.capture()
    draw = np.random.default_rng(2)
    requests = [Request(str(n), draw.integers(1, 101, 60 + 15 * n), 20 + 6 * n) for n in range(6)]
    for request in requests:
        engine.add(request)
    engine.run()
    return [request.outputs for request in requests], engine, report


class Compared(PlannedFlashInferAttention):
    """Compare every decode with torch's."""

    worst = 0.0

    def decode(self, layer, q, paged):
        got = super().decode(layer, q, paged)
        self.worst = max(self.worst, float((got - TorchAttention().decode(layer, q, paged)).abs().max()))
        return got


@pytest.mark.parametrize("planning", ["resident", "host"])
def test_the_host_plan_is_made_before_every_step(planning, flashinfer):
    attention = Compared()
    got, engine, report = answers(attention, planning, check=planning == "resident")
    assert got == answers(None, "host")[0]
    assert attention.worst < 1e-5
    assert flashinfer.plans >= engine.counters.decode_steps
    assert not report.host_plan_free
    assert report.buckets[0].attention == {"kv": "flashinfer, planned by the host"}
    assert engine.counters.mismatches == []


def test_a_step_whose_plan_was_not_heard_attends_wrongly(monkeypatch):
    attention = Compared()
    monkeypatch.setattr("mstar_resident.engine.planned.PlannedPages.listen", lambda self, hear: None)
    answers(attention, "resident")
    assert attention.worst > 1e-3, attention.worst


def test_an_engine_measures_both_in_every_bucket_and_answers_as_with_torch(flashinfer, monkeypatch):
    monkeypatch.setattr(measured, "LENGTHS", (32, 64))
    attention = select_attention("auto", *SHAPE)
    plans = flashinfer.plans
    expected, _, _ = answers(None, "resident")
    got, engine, _ = answers(attention, "resident")
    assert got == expected
    assert flashinfer.plans > plans  # it was timed, at least
    assert {engine.arm.bucket(n) for n in (1, 2, 4)} == {key[0] for key in attention._choices}
