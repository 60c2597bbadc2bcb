"""Rows that decode beside others that prefill: decoded together, with what each would get alone."""

from __future__ import annotations

import weakref
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from mstar_resident.attention import torch_paged
from mstar_resident.attention.flashinfer_fa2 import FlashInferAttention
from mstar_resident.attention.flashinfer_planned import PlannedFlashInferAttention
from mstar_resident.attention.mixed_rows import MixedRows
from mstar_resident.attention.triton_split import TritonAttention
from mstar_resident.engine.inputs import PagedKV

PAGE_SIZE, KV_HEADS, GROUP, HEAD_DIM = 16, 2, 2, 64


def step(counts: list[int], lengths: list[int], device: str, read_only: bool = False) -> tuple[PagedKV, torch.Tensor]:
    """Return a step's pool and token ranges; each row has pages of its own."""
    rows, columns = len(counts), -(-max(lengths) // PAGE_SIZE) + 1
    table = (torch.randperm(rows * columns) + 1).view(rows, columns).to(torch.int32)
    write_loc = None if read_only else torch.zeros(sum(counts), dtype=torch.int64, device=device)
    lengths_host = torch.tensor(lengths, dtype=torch.int32)
    paged = PagedKV(table.to(device), torch.arange(rows), lengths_host, write_loc, PAGE_SIZE)
    return paged, F.pad(torch.tensor(counts).cumsum(0), (1, 0)).to(torch.int32)


@pytest.mark.parametrize(
    ("counts", "lengths"),
    [
        ([1, 1, 1, 5, 40], [1, 33, 17, 5, 70]),
        ([1, 1], [20, 3]),
        ([7, 1, 1], [7, 30, 2]),
        ([1, 6, 1, 1], [16, 6, 31, 9]),
    ],
)
@pytest.mark.parametrize("read_only", [False, True])
def test_a_mixed_step_gives_every_row_what_torch_gives_it(counts, lengths, read_only, device):
    torch.manual_seed(0)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    paged, start = step(counts, lengths, device, read_only)
    layer = torch.randn(int(paged.table.max()) + 1, 2, PAGE_SIZE, KV_HEADS, HEAD_DIM).to(device, dtype)
    q = torch.randn(sum(counts), KV_HEADS * GROUP, HEAD_DIM).to(device, dtype)
    expected = torch_paged.prefill(q, layer, paged, start)
    attention = TritonAttention()
    for _ in range(2):  # two layers of one step
        got = attention.prefill(layer, q, paged, start)
        torch.testing.assert_close(got, expected, **({"rtol": 1e-5, "atol": 1e-5} if device == "cpu" else {}))


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(20, 1, 64), (4, 2, 32), (2, 2, 96)])
def test_a_shape_that_the_decode_kernel_refuses_is_prefilled_by_torch_whoever_decodes_it(
    heads, kv_heads, head_dim, device
):
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    paged, start = step([1, 1, 3], [4, 20, 3], device)
    layer = torch.randn(int(paged.table.max()) + 1, 2, PAGE_SIZE, kv_heads, head_dim).to(device, dtype)
    q = torch.randn(5, heads, head_dim).to(device, dtype)
    for attention in (TritonAttention(), FlashInferAttention(), PlannedFlashInferAttention()):
        got = attention.prefill(layer, q, paged, start)
        assert torch.equal(got, torch_paged.prefill(q, layer, paged, start))


def test_decode_rows_of_a_step_are_those_of_one_token_in_front():
    paged, start = step([1, 1, 4, 1], [5, 9, 4, 8], "cpu")
    rows = MixedRows.of(paged, start)
    assert rows.decode is not None
    assert (rows.decode.rows.tolist(), rows.decode.lengths.tolist()) == ([0, 1], [5, 9])
    assert (rows.rest.rows.tolist(), rows.rest.lengths.tolist()) == ([2, 3], [4, 8])
    assert rows.rest_start.tolist() == [0, 4, 5]
    paged, start = step([4, 1], [5, 9], "cpu")
    assert MixedRows.of(paged, start).decode is None
    paged, start = step([1, 1], [5, 9], "cpu")
    rows = MixedRows.of(paged, start)
    assert rows.decode is not None
    assert len(rows.decode.rows) == 2
    assert not len(rows.rest.rows)


def test_mixed_steps_without_a_capture_make_few_workspaces(device):
    attention = TritonAttention()
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    layer = torch.zeros(64, 2, PAGE_SIZE, KV_HEADS, HEAD_DIM, device=device, dtype=dtype)
    for rows in range(1, 8):
        paged, start = step([1] * rows + [3], [2] * rows + [3], device)
        attention.prefill(
            layer, torch.zeros(rows + 3, KV_HEADS * GROUP, HEAD_DIM, device=device, dtype=dtype), paged, start
        )
    assert sorted(key[0] for key in attention._workspaces) == [1, 4]


def test_a_mixed_step_takes_the_widest_buckets_workspace_where_it_is_no_power_of_two(device):
    attention = TritonAttention()
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    layer = torch.randn(65, 2, PAGE_SIZE, KV_HEADS, HEAD_DIM).to(device, dtype)
    for rows in (12, 8):  # as a capture of 12 rows at most leaves them
        q = torch.randn(rows, KV_HEADS * GROUP, HEAD_DIM).to(device, dtype)
        paged, _ = step([1] * rows, [2] * rows, device)
        there = replace(paged, rows=paged.rows.to(device), lengths=paged.lengths.to(device))
        attention.decode(layer, q, there)
    captured = dict(attention._workspaces)
    for rows in (5, 8, 9, 12):
        paged, start = step([1] * rows + [3], [2] * rows + [3], device)
        q = torch.randn(rows + 3, KV_HEADS * GROUP, HEAD_DIM).to(device, dtype)
        got = attention.prefill(layer, q, paged, start)
        torch.testing.assert_close(got, torch_paged.prefill(q, layer, paged, start))
    assert attention._workspaces == captured  # nothing else is compiled while serving


def test_a_mixed_step_takes_a_workspace_of_its_own_shape(device):
    attention = TritonAttention()
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    for rows, kv_heads in ((2, 1), (4, KV_HEADS)):  # two pools, as of a decoder and its context
        layer = torch.zeros(17, 2, PAGE_SIZE, kv_heads, HEAD_DIM, device=device, dtype=dtype)
        paged, _ = step([1] * rows, [2] * rows, device)
        there = replace(paged, rows=paged.rows.to(device), lengths=paged.lengths.to(device))
        attention.decode(layer, torch.zeros(rows, KV_HEADS * GROUP, HEAD_DIM, device=device, dtype=dtype), there)
    captured = dict(attention._workspaces)
    paged, start = step([1, 1, 3], [2, 2, 3], device)
    attention.prefill(layer, torch.zeros(5, KV_HEADS * GROUP, HEAD_DIM, device=device, dtype=dtype), paged, start)
    assert attention._workspaces == captured


def test_rows_beyond_the_widest_bucket_are_decoded_in_two_launches_of_its_workspace(device):
    attention = TritonAttention()
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    layer = torch.randn(129, 2, PAGE_SIZE, KV_HEADS, HEAD_DIM).to(device, dtype)
    paged, _ = step([1] * 8, [2] * 8, device)
    there = replace(paged, rows=paged.rows.to(device), lengths=paged.lengths.to(device))
    attention.decode(layer, torch.zeros(8, KV_HEADS * GROUP, HEAD_DIM, device=device, dtype=dtype), there)
    captured = dict(attention._workspaces)
    for rows in (9, 16):  # eight that decode, and the last token of other prompts
        paged, start = step([1] * rows + [3], [*range(1, rows + 1), 3], device)
        q = torch.randn(rows + 3, KV_HEADS * GROUP, HEAD_DIM).to(device, dtype)
        got = attention.prefill(layer, q, paged, start)
        torch.testing.assert_close(got, torch_paged.prefill(q, layer, paged, start))
    assert attention._workspaces == captured
    paged, start = step([1] * 17 + [3], [2] * 17 + [3], device)
    attention.prefill(layer, torch.zeros(20, KV_HEADS * GROUP, HEAD_DIM, device=device, dtype=dtype), paged, start)
    assert sorted(key[0] for key in attention._workspaces) == [8, 32]


def test_a_split_lives_as_long_as_its_steps_inputs(device):
    attention = TritonAttention()
    paged, start = step([1, 1, 4], [5, 9, 4], device)
    table = weakref.ref(paged.table)
    attention._split(paged, start)
    del paged
    assert table() is None
    assert not attention._mixed


def test_a_split_is_not_taken_for_another_steps(device):
    attention = TritonAttention()
    paged, start = step([1, 1, 4], [5, 9, 4], device)
    first = attention._split(paged, start)
    assert attention._split(paged, start) is first
    assert attention._split(paged, start.clone()) is not first
    other, _ = step([1, 1, 4], [5, 9, 4], device)
    assert attention._split(other, start) is not first
