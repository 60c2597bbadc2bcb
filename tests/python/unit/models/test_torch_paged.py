"""Paged attention in torch against attention written out over a row's own tokens."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mstar_resident.attention import torch_paged
from mstar_resident.engine.inputs import PagedKV
from mstar_resident.errors import LayoutError

HEADS, KV_HEADS, DIM = 6, 2, 8


def naive(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Attend ``q [t, heads, d]`` over ``k, v [n, kv_heads, d]`` in float64, head by head."""
    q, k, v = q.double(), k.double(), v.double()
    out = torch.empty_like(q)
    for head in range(q.shape[1]):
        kv = head // (q.shape[1] // k.shape[1])
        for t in range(q.shape[0]):
            seen = k.shape[0] - q.shape[0] + t + 1 if causal else k.shape[0]
            weights = torch.softmax(k[:seen, kv] @ q[t, head] / math.sqrt(q.shape[2]), 0)
            out[t, head] = weights @ v[:seen, kv]
    return out


class Pool:
    """Hold one layer whose rows have given lengths, written through `torch_paged.write`, and the tokens themselves."""

    def __init__(self, lengths: list[int], page_size: int, seed: int) -> None:
        g = torch.Generator().manual_seed(seed)
        columns = max(-(-n // page_size) for n in lengths) + 2
        pages = torch.randperm(len(lengths) * columns, generator=g) + 1
        rows = torch.randperm(len(lengths), generator=g) + 1
        table = torch.zeros(len(lengths) + 1, columns, dtype=torch.int32)
        self.layer = torch.randn(len(pages) + 1, 2, page_size, KV_HEADS, DIM, generator=g)
        self.k = [torch.randn(n, KV_HEADS, DIM, generator=g) for n in lengths]
        self.v = [torch.randn(n, KV_HEADS, DIM, generator=g) for n in lengths]
        for i, n in enumerate(lengths):
            used = -(-n // page_size)
            table[rows[i], :used] = pages[i * columns : i * columns + used]
            at = torch.arange(n)
            loc = table[rows[i]].long()[at // page_size] * page_size + at % page_size
            torch_paged.write(self.layer, self.k[i], self.v[i], loc)
        self.paged = PagedKV(
            table=table,
            rows=rows,
            lengths=torch.tensor(lengths, dtype=torch.int32),
            write_loc=torch.zeros(0, dtype=torch.int64),
            page_size=page_size,
        )
        self.generator = g

    def queries(self, tokens: int) -> Tensor:
        return torch.randn(tokens, HEADS, DIM, generator=self.generator)


@pytest.mark.parametrize("page_size", [1, 4, 5, 16])
def test_decode_matches_naive_attention_on_ragged_rows(page_size: int) -> None:
    pool = Pool([1, page_size, page_size + 1, 23, 2 * page_size], page_size, seed=page_size)
    q = pool.queries(5)
    got = torch_paged.decode(q, pool.layer, pool.paged)
    masked = torch_paged.decode_masked(q, pool.layer, pool.paged, pool.paged.table.shape[1])
    for i in range(5):
        expected = naive(q[i : i + 1], pool.k[i], pool.v[i], causal=False)[0].float()
        torch.testing.assert_close(got[i], expected)
        torch.testing.assert_close(masked[i], expected)


@pytest.mark.parametrize("page_size", [1, 4, 5, 16])
def test_prefill_matches_naive_attention_on_whole_and_later_chunks(page_size: int) -> None:
    lengths, tokens = [7, 19, 12, 9], [7, 5, 1, 8]
    pool = Pool(lengths, page_size, seed=page_size)
    starts = [0, 7, 12, 13, 21]
    q = pool.queries(21)
    got = torch_paged.prefill(q, pool.layer, pool.paged, torch.tensor(starts, dtype=torch.int32))
    for i in range(len(tokens)):
        rows = slice(starts[i], starts[i + 1])
        torch.testing.assert_close(got[rows], naive(q[rows], pool.k[i], pool.v[i], causal=True).float())


def test_prefill_of_a_read_only_pool_sees_every_token() -> None:
    pool = Pool([6, 11], 4, seed=0)
    paged = PagedKV(pool.paged.table, pool.paged.rows, pool.paged.lengths, None, 4)
    q = pool.queries(15)
    got = torch_paged.prefill(q, pool.layer, paged, torch.tensor([0, 9, 15], dtype=torch.int32))
    for i, rows in enumerate((slice(0, 9), slice(9, 15))):
        torch.testing.assert_close(got[rows], naive(q[rows], pool.k[i], pool.v[i], causal=False).float())


def test_a_rows_decode_does_not_depend_on_the_other_rows() -> None:
    pool = Pool([9, 30, 4], 4, seed=3)
    q = pool.queries(3)
    together = torch_paged.decode(q, pool.layer, pool.paged)
    for i in range(3):
        one = PagedKV(pool.paged.table, pool.paged.rows[i : i + 1], pool.paged.lengths[i : i + 1], None, 4)
        assert torch.equal(torch_paged.decode(q[i : i + 1], pool.layer, one)[0], together[i])


def test_a_padding_row_reads_the_sink_and_disturbs_nobody() -> None:
    pool = Pool([9], 4, seed=4)
    rows = torch.tensor([int(pool.paged.rows[0]), 0])
    paged = PagedKV(pool.paged.table, rows, torch.tensor([9, 1], dtype=torch.int32), None, 4)
    q = pool.queries(2)
    got = torch_paged.decode(q, pool.layer, paged)
    torch.testing.assert_close(got[0], naive(q[:1], pool.k[0], pool.v[0], causal=False)[0].float())
    torch.testing.assert_close(got[1].view(KV_HEADS, -1, DIM), pool.layer[0, 1, 0][:, None].expand(-1, 3, -1))


@pytest.mark.parametrize("starts", [[0, 9], [0, 5, 5], [0, 10, 9], [1, 5, 9], [0, 7, 9]])
def test_prefill_refuses_ranges_that_do_not_fit(starts: list[int]) -> None:
    pool = Pool([6, 4], 4, seed=5)
    with pytest.raises(LayoutError, match="query_start"):
        torch_paged.prefill(pool.queries(9), pool.layer, pool.paged, torch.tensor(starts, dtype=torch.int32))


def test_a_read_only_pool_is_not_written() -> None:
    pool = Pool([6], 4, seed=6)
    paged = PagedKV(pool.paged.table, pool.paged.rows, pool.paged.lengths, None, 4)
    with pytest.raises(LayoutError, match="write_loc"):
        torch_paged.TorchAttention().write(pool.layer, pool.k[0], pool.v[0], paged)
