"""FlashInfer's fa2 plan, as its host planner makes it and as the captured graph writes it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mstar_resident.attention.fa2_plan import Fa2Plan
from mstar_resident.errors import LayoutError
from mstar_resident.kernels.fa2_planner import Fa2Planner

MULTIPROCESSORS = 132
SHAPES = [(1, 8, 2, 16), (7, 8, 2, 16), (33, 32, 8, 128), (64, 9, 3, 64), (200, 16, 4, 16), (256, 8, 8, 32)]


def draw(generator: np.random.Generator, plan: Fa2Plan, kind: str) -> np.ndarray:
    """Lengths of a step: some padded, skewed, all short, or at the edges of pages."""
    most = 400 * plan.page_size
    lengths = generator.integers(1, most + 1, plan.bucket)
    if kind == "short":
        lengths = generator.integers(1, 3 * plan.page_size, plan.bucket)
    elif kind == "skewed":
        lengths = np.where(generator.random(plan.bucket) < 0.1, most, generator.integers(1, 40, plan.bucket))
    elif kind == "edges":
        lengths = generator.integers(1, 400, plan.bucket) * plan.page_size + generator.integers(-1, 2, plan.bucket)
    padding = int(generator.integers(0, plan.bucket))
    lengths[plan.bucket - padding :] = 1
    return lengths


def step(generator: np.random.Generator, plan: Fa2Plan, kind: str, device: str):
    """A table of random pages, and the lengths and rows of a step; padding rows are row 0."""
    lengths = draw(generator, plan, kind)
    table = generator.integers(1, 5000, (2 * plan.bucket + 1, 402)).astype(np.int32)
    table[0] = 0
    rows = generator.permutation(2 * plan.bucket)[: plan.bucket] + 1
    rows[lengths == 1] = 0
    tensors = (torch.from_numpy(lengths.astype(np.int32)), torch.from_numpy(rows), torch.from_numpy(table))
    return lengths, rows, table, *(tensor.to(device) for tensor in tensors)


@pytest.mark.parametrize("gather", [False, True])
@pytest.mark.parametrize("kind", ["any", "short", "skewed", "edges"])
@pytest.mark.parametrize(("bucket", "heads", "kv_heads", "page_size"), SHAPES)
def test_a_plan_written_in_the_graph_matches_the_host_planners(
    bucket, heads, kv_heads, page_size, kind, gather, device
):
    plan = Fa2Plan(bucket, heads, kv_heads, page_size, MULTIPROCESSORS)
    generator = np.random.default_rng([bucket, len(kind), gather])
    planner = None
    for _ in range(3):  # on what the step before left behind
        lengths, rows, table, on_lengths, on_rows, on_table = step(generator, plan, kind, device)
        if planner is None:
            planner, kept = Fa2Planner(plan, on_table, gather=gather), on_table
        kept.copy_(on_table)
        planner.run(on_lengths, on_rows)
        expected, got = plan.naive(lengths), plan.read(planner.workspace.cpu().numpy())
        assert got.chunk_tokens == expected.chunk_tokens
        for name in ("request", "tile", "first"):
            np.testing.assert_array_equal(getattr(got, name), getattr(expected, name), err_msg=name)
        check_pages(plan, planner, lengths, rows, table)


def check_pages(plan, planner, lengths, rows, table):
    """Find every row's tokens and pages as the attention kernel does."""
    indptr, last = planner.indptr.cpu().numpy(), planner.last_page_len.cpu().numpy()
    indices = planner.indices.cpu().numpy()
    for i in range(plan.bucket):
        with np.errstate(over="ignore"):
            assert (indptr[i + 1] - indptr[i] - 1) * np.int32(plan.page_size) + last[i] == lengths[i]
        assert indptr[i + 1] != indptr[i]  # else the kernel takes the row for empty
        used = -(-int(lengths[i]) // plan.page_size)
        np.testing.assert_array_equal(indices[indptr[i] : indptr[i] + used], table[rows[i], :used])
    assert indptr[-1] == indptr.max()


@pytest.mark.parametrize("limit_rows", [False, True])
def test_a_chunk_is_the_least_that_fits_the_device(limit_rows):
    plan = Fa2Plan(140 if limit_rows else 40, 8, 4, 16, MULTIPROCESSORS)
    pages = np.arange(1, plan.bucket + 1) * 9
    chunk = plan.chunk_pages(pages)
    items = lambda c: int((-(-pages // c)).sum())  # noqa: E731
    if limit_rows:
        assert plan.limit < plan.bucket
        assert chunk == pages.max()
    else:
        assert items(chunk) <= plan.limit < items(chunk - 1)


def test_short_rows_are_not_split():
    plan = Fa2Plan(4, 8, 2, 16, MULTIPROCESSORS)
    arrays = plan.naive([1, 100, 128, 129])
    assert arrays.chunk_tokens == 128
    assert arrays.first.tolist() == [0, 1, 2, 3, 5]


def test_the_arrays_of_one_bucket_lie_where_flashinfer_puts_them():
    plan = Fa2Plan(1, 8, 2, 16, MULTIPROCESSORS)
    assert plan.items == 132
    assert plan.offsets["end"] == 1764
    assert plan.info(256)[:10] == [132, 1, 1600, 16, 0, 528, 1056, 1616, 1584, 1592]
    assert Fa2Plan(256, 8, 2, 16, MULTIPROCESSORS).items == 319


def test_what_does_not_fit_is_refused(device):
    with pytest.raises(LayoutError, match="heads"):
        Fa2Plan(1, 34, 2, 16, 132)
    with pytest.raises(LayoutError, match="heads"):
        Fa2Plan(1, 9, 2, 16, 132)
    plan = Fa2Plan(2, 8, 2, 16, 132)
    with pytest.raises(LayoutError, match="table"):
        Fa2Planner(plan, torch.zeros(5, 4, dtype=torch.int64, device=device))
    with pytest.raises(LayoutError, match="workspace"):
        Fa2Planner(
            plan, torch.zeros(5, 4, dtype=torch.int32, device=device), workspace=torch.zeros(8, dtype=torch.uint8)
        )
    with pytest.raises(LayoutError, match="lengths"):
        plan.naive([1, 2, 3])


def test_a_torn_workspace_is_seen(device):
    plan = Fa2Plan(3, 8, 2, 16, 132)
    table = torch.zeros(7, 40, dtype=torch.int32, device=device)
    planner = Fa2Planner(plan, table)
    planner.run(torch.tensor([5, 600, 1], dtype=torch.int32, device=device), torch.tensor([1, 2, 0], device=device))
    workspace = planner.workspace.cpu().numpy()
    plan.read(workspace)
    workspace[plan.offsets["valid"]] ^= 1
    with pytest.raises(LayoutError, match="int workspace"):
        plan.read(workspace)
