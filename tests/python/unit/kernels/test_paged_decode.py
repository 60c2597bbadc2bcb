"""Decode attention through rows, against float64."""

from __future__ import annotations

import pytest
import torch

from mstar_resident.errors import LayoutError
from mstar_resident.kernels.paged_decode import PagedDecode
from mstar_resident.kernels.paged_launch import LAUNCHES, Launch, launch_of

from .attention_cases import TOLERANCE, Pool, relative_error


def attend(
    lengths, heads, kv_heads, head_dim, page_size, dtype, device, *, multiprocessors=4, rows=None, seed=0, **choice
):
    pool = Pool(lengths, kv_heads, head_dim, page_size, dtype, device, seed)
    b = len(lengths)
    q = torch.randn(b, heads, head_dim, generator=torch.Generator().manual_seed(seed + 1)).to(dtype).to(device)
    out = torch.full_like(q, float("nan"))
    sizes = (rows or b, heads, kv_heads, head_dim, page_size, 1024)
    decode = PagedDecode(*sizes, dtype, device, multiprocessors=multiprocessors, **choice)
    decode.run(q, pool.layer, pool.table, pool.rows, pool.lengths, out)
    return out, pool.expected(q)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (8, 2), (16, 1), (6, 2), (3, 3)])
def test_attention_matches_float64(head_dim, heads, kv_heads, device):
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    out, expected = attend([1, 70, 200, 33], heads, kv_heads, head_dim, 16, dtype, device)
    assert relative_error(out, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("page_size", [16, 32, 48, 64, 128])
@pytest.mark.parametrize("head_dim", [64, 256])
def test_any_page_size_matches_float64(page_size, head_dim, device):
    dtype = torch.float32 if device == "cpu" else torch.float16
    out, expected = attend([page_size, page_size + 1, page_size - 1, 300], 4, 2, head_dim, page_size, dtype, device)
    assert relative_error(out, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precisions_match_float64(dtype, device):
    if dtype == torch.bfloat16 and device == "cpu":
        pytest.skip("the interpreter multiplies bfloat16 as integers")
    out, expected = attend([5, 130], 4, 1, 128, 16, dtype, device)
    assert relative_error(out, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("multiprocessors", [1, 2, 7, 32])
@pytest.mark.parametrize("lengths", [[1], [513], [700, 1, 1, 1], [64] * 9, [1, 1024, 0, 64, 65]])
def test_any_split_matches_float64(multiprocessors, lengths, device):
    dtype = torch.float32 if device == "cpu" else torch.float16
    out, expected = attend(lengths, 2, 1, 64, 16, dtype, device, multiprocessors=multiprocessors)
    assert relative_error(out, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("scale", [0.0, 0.5])
def test_scores_are_scaled_as_told(scale, device):
    dtype = torch.float32 if device == "cpu" else torch.float16
    pool = Pool([3, 90], 1, 64, 16, dtype, device, 0)
    q = torch.randn(2, 2, 64).to(dtype).to(device)
    out = torch.full_like(q, float("nan"))
    decode = PagedDecode(2, 2, 1, 64, 16, 128, dtype, device, scale=scale, multiprocessors=2)
    decode.run(q, pool.layer, pool.table, pool.rows, pool.lengths, out)
    assert relative_error(out, pool.expected(q.double() * scale * 64**0.5)) < TOLERANCE[dtype]


def test_chunks_are_longer_where_else_one_would_wait_for_its_turn(device):
    dtype = torch.float32 if device == "cpu" else torch.float16
    pool = Pool([64, 3 * 64], 1, 64, 16, dtype, device, 0)
    q = torch.zeros(2, 1, 64, dtype=dtype, device=device)
    decode = PagedDecode(2, 1, 1, 64, 16, 256, dtype, device, multiprocessors=1, _launch=Launch(64, 4, 3, 2))
    decode.run(q, pool.layer, pool.table, pool.rows, pool.lengths, torch.empty_like(q))
    # An even share of the four tiles is two: three items for two that run at once.
    assert decode._items.tolist() == [[0, 1], [1, 1]]


def test_a_row_of_no_tokens_gets_zeros(device):
    dtype = torch.float32 if device == "cpu" else torch.float16
    out, expected = attend([0, 3], 2, 1, 64, 16, dtype, device)
    assert not out[0].any()
    assert relative_error(out, expected) < TOLERANCE[dtype]


def test_a_row_of_more_chunks_than_are_merged_at_once_matches_float64(device):
    dtype = torch.float32 if device == "cpu" else torch.float16
    # Ten chunks, eight at a time; in this draw the last ones have the highest score.
    out, expected = attend([600], 2, 1, 64, 16, dtype, device, rows=9, multiprocessors=8, seed=4)
    assert relative_error(out, expected) < TOLERANCE[dtype]


def test_chunks_of_scores_far_below_zero_are_merged(device):
    dtype = torch.float32 if device == "cpu" else torch.float16
    pool = Pool([130], 1, 64, 16, dtype, device, 0)
    pool.layer[:, 0].abs_()
    pool.keys = [pool.keys[0].abs()]
    q = torch.full((1, 1, 64), -50.0, dtype=dtype, device=device)  # exp2 of every score is 0 in float32
    out = torch.full_like(q, float("nan"))
    decode = PagedDecode(9, 1, 1, 64, 16, 1024, dtype, device, multiprocessors=4)
    decode.run(q, pool.layer, pool.table, pool.rows, pool.lengths, out)
    assert relative_error(out, pool.expected(q)) < 1e-3


def test_a_step_smaller_than_its_bucket_matches_float64(device):
    dtype = torch.float32 if device == "cpu" else torch.float16
    out, expected = attend([40, 90, 7], 4, 2, 64, 16, dtype, device, rows=8)
    assert relative_error(out, expected) < TOLERANCE[dtype]


def test_a_rows_output_does_not_depend_on_where_its_pages_lie(device):
    dtype = torch.float32 if device == "cpu" else torch.float16
    decode = PagedDecode(2, 2, 1, 64, 16, 128, dtype, device, multiprocessors=4)
    pool = Pool([100, 100], 1, 64, 16, dtype, device, 3)
    pool.layer[pool.table[pool.rows[1]].long()] = pool.layer[pool.table[pool.rows[0]].long()]
    q = torch.randn(1, 2, 64).to(dtype).to(device).expand(2, 2, 64)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    decode.run(q, pool.layer, pool.table, pool.rows, pool.lengths, out)
    assert torch.equal(out[0], out[1])


def test_a_page_beyond_32_bits_of_a_pool_is_read_where_it_is(device):
    # Memory that nobody touches: on a CPU only the pages that are written take any.
    pages, dtype = 2**31 // (2 * 16 * 64) + 5, torch.float16
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(20, 2, 1, 64, generator=generator).to(dtype)
    q = torch.randn(1, 2, 64, generator=generator).to(dtype)
    pool = torch.empty(pages, 2, 16, 1, 64, dtype=dtype, device=device)
    for number, page in enumerate((pages - 1, pages - 2)):
        part = tokens[16 * number : 16 * number + 16].transpose(0, 1)
        pool[page].zero_()
        pool[page, :, : part.shape[1]] = part.to(device)
    table = torch.tensor([[0, 0], [pages - 1, pages - 2]], dtype=torch.int32, device=device)
    row, length = torch.tensor([1], device=device), torch.tensor([20], dtype=torch.int32, device=device)
    got = torch.zeros(1, 2, 64, dtype=dtype, device=device)
    decode = PagedDecode(1, 2, 1, 64, 16, 1024, dtype, device, multiprocessors=1)
    decode.run(q.to(device), pool, table, row, length, got)
    key, value = tokens[:, 0, 0].double(), tokens[:, 1, 0].double()
    expected = (q[0].double() @ key.T * 64**-0.5).softmax(-1) @ value
    assert relative_error(got[0], expected) < TOLERANCE[dtype]


def test_views_of_wider_tensors_are_read_and_written_in_place(device):
    dtype = torch.float32 if device == "cpu" else torch.float16
    pool = Pool([30, 50], 2, 64, 16, dtype, device, 5)
    fused = torch.randn(2, 4 * 64 + 100).to(dtype).to(device)
    wide = torch.full((2, 6, 64), 7.0, dtype=dtype, device=device)
    q, out = fused[:, : 4 * 64].view(2, 4, 64), wide[:, 1:5]
    layers = torch.stack([torch.full_like(pool.layer, float("nan")), pool.layer])
    decode = PagedDecode(2, 4, 2, 64, 16, 128, dtype, device, multiprocessors=4)
    decode.run(q, layers[1], pool.table, pool.rows.to(torch.int32), pool.lengths, out)
    assert relative_error(out, pool.expected(q)) < TOLERANCE[dtype]
    assert (wide[:, 0] == 7).all()
    assert (wide[:, 5] == 7).all()


def test_a_workspace_may_be_used_again_with_other_lengths(device):
    dtype = torch.float32 if device == "cpu" else torch.float16
    decode = PagedDecode(3, 2, 1, 64, 16, 512, dtype, device, multiprocessors=6)
    for seed, lengths in enumerate([[400, 3, 100], [1, 1, 1], [17, 500, 64]]):
        pool = Pool(lengths, 1, 64, 16, dtype, device, seed)
        q = torch.randn(3, 2, 64).to(dtype).to(device)
        out = torch.full_like(q, float("nan"))
        decode.run(q, pool.layer, pool.table, pool.rows, pool.lengths, out)
        assert relative_error(out, pool.expected(q)) < TOLERANCE[dtype]


@pytest.mark.parametrize("head_dim", list(LAUNCHES))
@pytest.mark.parametrize("rows", [1, 64, 1024])
def test_a_bucket_of_any_rows_has_a_launch(head_dim, rows):
    assert launch_of(head_dim, rows).tile >= 16


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(34, 2, 64), (3, 2, 64), (2, 2, 96)])
def test_unsupported_heads_are_refused(heads, kv_heads, head_dim, device):
    with pytest.raises(LayoutError, match="expected"):
        PagedDecode(1, heads, kv_heads, head_dim, 16, 64, torch.float16, device)


def test_a_step_wider_than_the_bucket_is_refused(device):
    with pytest.raises(LayoutError, match=r"1\.\.2"):
        attend([3, 3, 3], 2, 1, 64, 16, torch.float16, device, rows=2)


def test_what_the_workspace_was_not_built_for_is_refused_by_name(device):
    dtype = torch.float16
    pool = Pool([3, 3], 1, 64, 16, dtype, device, 0)
    decode = PagedDecode(2, 2, 1, 64, 16, 64, dtype, device, multiprocessors=1)
    q = torch.zeros(2, 2, 64, dtype=dtype, device=device)
    fits = {"q": q, "kv_layer": pool.layer, "table": pool.table, "rows": pool.rows, "lengths": pool.lengths, "out": q}
    wrong = {
        "q": (q.float(), q[..., ::2], q[None]),
        "kv_layer": (pool.layer.float(), pool.layer[:, :, :8]),
        "table": (pool.table.long(), pool.table.T),
        "rows": (pool.rows[:1], pool.rows.float()),
        "lengths": (pool.lengths.long(), pool.lengths[:1]),
        "out": (q.float(), q[:1]),
    }
    for name, tensors in wrong.items():
        for tensor in tensors:
            with pytest.raises(LayoutError, match=rf"^{name}: expected .* got "):
                decode.run(**(fits | {name: tensor}))
    none = {name: fits[name][:0] for name in ("q", "rows", "lengths", "out")}
    with pytest.raises(LayoutError, match=r"^rows of the step: expected 1\.\.2, got 0"):
        decode.run(**(fits | none))
    with pytest.raises(LayoutError, match="max_length"):
        PagedDecode(1, 2, 1, 64, 16, 0, dtype, device)
