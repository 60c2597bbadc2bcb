"""FlashInfer's fa2 behind our plan, against a stand-in that knows a step only by its plan's arrays."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from mstar_resident.attention import flashinfer_fa2
from mstar_resident.attention.flashinfer_fa2 import FlashInferAttention
from mstar_resident.attention.torch_paged import TorchAttention
from mstar_resident.engine.inputs import PagedKV
from mstar_resident.errors import LayoutError
from mstar_resident.models.config import LlamaConfig
from mstar_resident.models.kernels import Kernels
from mstar_resident.models.llama import Llama
from mstar_resident.models.rope import RopeConfig

from ..models.steps import Steps, relative_error
from . import fake_flashinfer

HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE = 8, 2, 16, 16
CUDA_CORES = [(6, 2), (3, 3)]
"""Heads and KV heads of pools that decode on CUDA cores: 5 rows of 3 KV heads are split there, 8 fill the device."""


@pytest.fixture(autouse=True)
def flashinfer(monkeypatch, device):
    if device != "cpu":
        pytest.skip("where there is a CUDA device, FlashInfer itself is tested")
    monkeypatch.setitem(sys.modules, "flashinfer", fake_flashinfer)
    monkeypatch.setattr(flashinfer_fa2, "installed", lambda: flashinfer_fa2.KNOWN[0])
    monkeypatch.setattr(fake_flashinfer.BatchDecodeWithPagedKVCacheWrapper, "plans", 0)
    monkeypatch.setattr(fake_flashinfer.BatchDecodeWithPagedKVCacheWrapper, "asked", frozenset())
    return fake_flashinfer.BatchDecodeWithPagedKVCacheWrapper


@pytest.mark.parametrize("gather", [False, True])
@pytest.mark.parametrize("b", [5, 8])
@pytest.mark.parametrize(("heads", "kv_heads"), [(HEADS, KV_HEADS), *CUDA_CORES])
def test_steps_follow_their_own_lengths_though_the_host_planned_once(heads, kv_heads, b, gather, flashinfer):
    generator = np.random.default_rng(5)
    attention = FlashInferAttention(gather=gather)
    table = torch.from_numpy(generator.permutation(9 * 40).reshape(9, 40).astype(np.int32))
    table[0] = 0  # the trash row names the sink alone
    layer = torch.randn(9 * 40, 2, PAGE_SIZE, kv_heads, HEAD_DIM)
    for step in range(4):
        lengths = torch.from_numpy(generator.integers(1, 40 * PAGE_SIZE, b).astype(np.int32))
        rows = torch.from_numpy(generator.permutation(8)[:b] + 1)
        lengths[b - 2 :], rows[b - 2 :] = 1, 0  # padding
        lengths[0] = PAGE_SIZE * (3 + step)  # a full last page, and the next step a page more
        paged = PagedKV(table, rows, lengths, None, PAGE_SIZE)
        q = torch.randn(b, heads, HEAD_DIM)
        attention.begin(layer, heads, paged)
        got = attention.decode(layer, q, paged)
        torch.testing.assert_close(got, TorchAttention().decode(layer, q, paged))
    assert flashinfer.plans == 1
    (bucket,) = attention._buckets.values()
    assert bucket.plan.tensor_cores == (heads == HEADS)
    assert bucket.plan.split == ((heads, kv_heads, b) != (3, 3, 8))


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("given", [None, False, True])
def test_groups_too_small_for_tensor_cores_decode_on_cuda_cores_unless_told(group, given):
    attention = FlashInferAttention(tensor_cores=given)
    table, layer = torch.zeros(3, 4, dtype=torch.int32), torch.zeros(9, 2, PAGE_SIZE, 2, HEAD_DIM)
    ones = torch.ones(1, dtype=torch.int32)
    paged = PagedKV(table, ones.long(), ones, None, PAGE_SIZE)
    if given is False and group > 4:
        with pytest.raises(LayoutError, match="heads: expected 1, 2, 3, 4, 6, 8, 16 "):
            attention.begin(layer, 2 * group, paged)
        return
    attention.begin(layer, 2 * group, paged)
    (bucket,) = attention._buckets.values()
    assert bucket.plan.tensor_cores == bucket.wrapper.tensor_cores == (group >= 4 if given is None else given)


def test_a_step_that_was_not_begun_attends_the_lengths_of_the_one_before():
    attention = FlashInferAttention()
    table, layer = torch.arange(1, 9, dtype=torch.int32)[None].repeat(2, 1), torch.randn(9, 2, PAGE_SIZE, 2, HEAD_DIM)
    q, short = torch.randn(1, HEADS, HEAD_DIM), torch.tensor([5], dtype=torch.int32)
    paged = PagedKV(table, torch.tensor([1]), short, None, PAGE_SIZE)
    attention.begin(layer, HEADS, paged)
    first = attention.decode(layer, q, paged)
    longer = PagedKV(table, torch.tensor([1]), short + 20, None, PAGE_SIZE)
    assert torch.equal(attention.decode(layer, q, longer), first)
    attention.begin(layer, HEADS, longer)
    assert not torch.equal(attention.decode(layer, q, longer), first)


@pytest.mark.parametrize("heads", [4, 8])
def test_a_decoder_on_fa2_matches_torchs(heads):
    config = LlamaConfig(101, 64, 2, heads, 2, 64, 96, RopeConfig(1e4, 64))
    logits = []
    for kernels in (Kernels(attention=FlashInferAttention()), Kernels()):
        run = Steps(Llama.seeded(config, 3, kernels=kernels), page_size=16)
        steps = [run.prefill({"a": list(range(1, 31)), "b": [9, 2]})]
        steps += [run.decode({"b": 7 + n, "a": 6}) for n in range(3)]
        logits.append(torch.stack(steps))
    assert relative_error(*logits) <= 1e-5


def test_a_table_too_large_to_be_read_through_is_gathered(monkeypatch):
    attention = FlashInferAttention()
    monkeypatch.setattr(flashinfer_fa2, "readable_through", lambda table, page_size: False)
    table, layer = torch.zeros(3, 4, dtype=torch.int32), torch.zeros(9, 2, PAGE_SIZE, 2, HEAD_DIM)
    ones = torch.ones(1, dtype=torch.int32)
    attention.begin(layer, HEADS, PagedKV(table, ones.long(), ones, None, PAGE_SIZE))
    (bucket,) = attention._buckets.values()
    assert bucket.wrapper.indices.data_ptr() != table.data_ptr()


def refused(heads=HEADS, kv_heads=KV_HEADS, **asked):
    return flashinfer_fa2.refusal(heads, kv_heads, HEAD_DIM, PAGE_SIZE, torch.float32, "cpu", **asked)


@pytest.fixture
def few_buckets(monkeypatch):
    monkeypatch.setattr(flashinfer_fa2, "TESTED", (1, 7, 13))


@pytest.mark.parametrize(("heads", "kv_heads"), [(HEADS, KV_HEADS), *CUDA_CORES])
def test_a_release_that_plans_alike_is_used(heads, kv_heads, few_buckets):
    assert refused(heads, kv_heads) is None


def test_gathered_pages_are_tested_too(few_buckets, flashinfer):
    assert refused(gather=True) is None


@pytest.mark.parametrize(("heads", "tensor_cores"), [(8, False), (6, True)])
def test_the_cores_that_a_group_would_not_take_are_tested_too(heads, tensor_cores, few_buckets, flashinfer):
    assert refused(heads, tensor_cores=tensor_cores) is None
    assert flashinfer.asked == {tensor_cores}


def test_an_unknown_release_is_refused(monkeypatch):
    monkeypatch.setattr(flashinfer_fa2, "installed", lambda: "0.9.0")
    assert "0.9.0" in refused()


def test_no_release_is_refused(monkeypatch):
    monkeypatch.setattr(flashinfer_fa2, "installed", lambda: None)
    assert "not installed" in refused()


@pytest.mark.parametrize(("heads", "kv_heads"), [(HEADS, KV_HEADS), *CUDA_CORES])
def test_other_places_are_refused(heads, kv_heads, few_buckets, flashinfer, monkeypatch):
    monkeypatch.setattr(flashinfer, "more_items", 1)
    assert "FlashInfer's plan" in refused(heads, kv_heads)
    if heads != HEADS:
        return
    with pytest.raises(LayoutError, match="FlashInfer's plan"):
        test_a_step_that_was_not_begun_attends_the_lengths_of_the_one_before()


@pytest.mark.parametrize(("heads", "kv_heads"), [(HEADS, KV_HEADS), *CUDA_CORES])
def test_other_contents_are_refused(heads, kv_heads, few_buckets, flashinfer, monkeypatch):
    monkeypatch.setattr(flashinfer, "longer_chunks", 2)
    assert "chunk_tokens" in refused(heads, kv_heads)
