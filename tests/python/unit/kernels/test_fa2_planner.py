"""FlashInfer's fa2 plan, as its host planner makes it and as the captured graph writes it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from mstar_resident.attention.fa2_plan import Fa2Plan
from mstar_resident.errors import LayoutError
from mstar_resident.kernels.fa2_planner import MOST_PAGES, Fa2Buffers, Fa2Planner, Search, _ceil_div

MULTIPROCESSORS = 132
SHAPES = [(1, 8, 2, 16), (7, 8, 2, 16), (33, 32, 8, 128), (64, 9, 3, 64), (200, 16, 4, 16), (256, 8, 8, 32)]
PLANS = {
    **{f"tensor-{s[0]}": Fa2Plan.on_tensor_cores(*s, MULTIPROCESSORS) for s in SHAPES},
    **{
        f"cuda-{s[0]}": Fa2Plan.on_cuda_cores(*s, items=items, split=items > s[0])
        for s, items in (
            ((1, 9, 3, 16), 396),
            ((7, 20, 20, 48), 39),
            ((64, 20, 20, 16), 64),
            ((200, 9, 3, 128), 264),
            ((130, 4, 2, 16), 594),
        )
    },
    "cuda-full": Fa2Plan.on_cuda_cores(66, 8, 2, 16, items=66, split=True),
}


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
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_plan_written_in_the_graph_matches_the_host_planners(plan, kind, gather, device):
    generator = np.random.default_rng([plan.bucket, len(kind), gather])
    planner = None
    for _ in range(3):  # on what the step before left behind
        lengths, rows, table, on_lengths, on_rows, on_table = step(generator, plan, kind, device)
        if planner is None:
            kept, buffers = on_table, Fa2Buffers.of(plan.bucket, on_table, plan.page_size, gather=gather)
            buffers.workspace.fill_(171)
            planner = Fa2Planner(plan, buffers)
        kept.copy_(on_table)
        planner.run(on_lengths, on_rows)
        written = buffers.workspace.cpu().numpy()
        assert plan.read(written).difference(plan.naive(lengths)) is None
        assert (written[plan.offsets["end"] :] == 171).all()
        check_pages(plan, buffers, lengths, rows, table)


def check_pages(plan, buffers, lengths, rows, table):
    """Find every row's tokens and pages as the attention kernel does."""
    indptr, last = buffers.indptr.cpu().numpy(), buffers.last_page_len.cpu().numpy()
    indices = buffers.indices.cpu().numpy()
    for i in range(plan.bucket):
        with np.errstate(over="ignore"):
            assert (indptr[i + 1] - indptr[i] - 1) * np.int32(plan.page_size) + last[i] == lengths[i]
        assert indptr[i + 1] != indptr[i]  # else the kernel takes the row for empty
        used = -(-int(lengths[i]) // plan.page_size)
        np.testing.assert_array_equal(indices[indptr[i] : indptr[i] + used], table[rows[i], :used])
    assert indptr[-1] == indptr.max()


@pytest.mark.parametrize("limit_rows", [False, True])
def test_a_chunk_is_the_least_that_fits_the_device(limit_rows):
    plan = Fa2Plan.on_tensor_cores(140 if limit_rows else 40, 8, 4, 16, MULTIPROCESSORS)
    pages = np.arange(1, plan.bucket + 1) * 9
    chunk = plan.chunk_pages(pages)
    items = lambda c: int((-(-pages // c)).sum())  # noqa: E731
    if limit_rows:
        assert plan.limit < plan.bucket
        assert chunk == pages.max()
    else:
        assert items(chunk) <= plan.limit < items(chunk - 1)


def test_short_rows_are_not_split():
    plan = Fa2Plan.on_tensor_cores(4, 8, 2, 16, MULTIPROCESSORS)
    arrays = plan.naive([1, 100, 128, 129])
    assert arrays.chunk_tokens == 128
    assert arrays.first.tolist() == [0, 1, 2, 3, 5]


def test_the_arrays_of_one_bucket_lie_where_flashinfer_puts_them():
    plan = Fa2Plan.on_tensor_cores(1, 8, 2, 16, MULTIPROCESSORS)
    assert plan.items == 132
    assert plan.offsets["end"] == 1764
    assert plan.info(256)[:10] == [132, 1, 1600, 16, 0, 528, 1056, 1616, 1584, 1592]
    assert Fa2Plan.on_tensor_cores(256, 8, 2, 16, MULTIPROCESSORS).items == 319
    plan = Fa2Plan.on_cuda_cores(4, 9, 3, 16, items=395, split=True)
    assert plan.info(64) == [395, 0, 9 * 395 * 64 * 4, 0, 1584, 3168, 4768, 4752, 1, 1]
    assert plan.offsets["end"] == 4768 + 395
    plan = Fa2Plan.on_cuda_cores(64, 20, 20, 16, items=64, split=False)
    assert plan.info(64) == [64, 0, 0, 0, 256, 512, 0, 772, 1, 0]


def test_what_does_not_fit_is_refused(device):
    with pytest.raises(LayoutError, match="heads"):
        Fa2Plan.on_tensor_cores(1, 34, 2, 16, 132)
    with pytest.raises(LayoutError, match="heads"):
        Fa2Plan.on_tensor_cores(1, 9, 2, 16, 132)
    with pytest.raises(LayoutError, match="bucket"):
        Fa2Plan.on_tensor_cores(0, 8, 2, 16, 132)
    plan = Fa2Plan.on_tensor_cores(2, 8, 2, 16, 132)
    table = torch.zeros(5, 4, dtype=torch.int32, device=device)
    with pytest.raises(LayoutError, match="table"):
        Fa2Buffers.of(2, table.long(), 16)
    with pytest.raises(LayoutError, match="gather"):
        Fa2Buffers.of(2, table, 2**27)
    buffers = Fa2Buffers.of(2, table, 2**27, gather=True)
    with pytest.raises(LayoutError, match="buffers"):
        Fa2Planner(Fa2Plan.on_tensor_cores(3, 8, 2, 16, 132), buffers)
    with pytest.raises(LayoutError, match="workspace"):
        Fa2Planner(Fa2Plan.on_cuda_cores(2, 8, 2, 16, items=20_200, split=True), buffers)
    with pytest.raises(LayoutError, match="lengths"):
        plan.naive([1, 2, 3])


@pytest.mark.parametrize("tensor_cores", [False, True])
def test_a_torn_workspace_is_seen(tensor_cores, device):
    plan = Fa2Plan.on_cuda_cores(3, 6, 2, 16, items=9, split=True)
    if tensor_cores:
        plan = Fa2Plan.on_tensor_cores(3, 8, 2, 16, 132)
    buffers = Fa2Buffers.of(3, torch.zeros(7, 40, dtype=torch.int32, device=device), 16)
    lengths, rows = torch.tensor([5, 600, 1], dtype=torch.int32), torch.tensor([1, 2, 0])
    Fa2Planner(plan, buffers).run(lengths.to(device), rows.to(device))
    workspace = buffers.workspace.cpu().numpy()
    plan.read(workspace)
    workspace[plan.offsets["valid"]] ^= 1
    with pytest.raises(LayoutError, match="int workspace"):
        plan.read(workspace)


@triton.jit
def _divide(pages, size, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, _ceil_div(tl.load(pages + at), tl.load(size + at)))


def test_quotients_are_exact_up_to_the_most_pages(device):
    generator = np.random.default_rng(1)
    size = np.concatenate([generator.integers(1, MOST_PAGES + 1, 1 << 16), generator.integers(1, 600, 1 << 16)])
    times = generator.integers(1, MOST_PAGES + 1, len(size)) // size
    pages = [times * size + off for off in (-1, 0, 1)]  # where a quotient is all but an integer
    pages = np.concatenate([*pages, generator.integers(1, MOST_PAGES + 1, len(size))]).clip(1, MOST_PAGES)
    pages, size = np.append(pages, [MOST_PAGES] * 4), np.append(np.tile(size, 4), [1, 2, 3, MOST_PAGES])
    wanted = -(-pages // size)
    on = [torch.from_numpy(np.resize(a, 1 << 20).astype(np.int32)).to(device) for a in (pages, size)]
    out = torch.zeros_like(on[0])
    _divide[(1 << 7,)](*on, out, BLOCK=1 << 13)
    assert (out.cpu().numpy() == np.resize(wanted, 1 << 20)).all()


def test_a_table_wider_than_quotients_are_exact_is_refused():
    table = torch.zeros(1, dtype=torch.int32).expand(MOST_PAGES + 1)[None].contiguous()
    with pytest.raises(LayoutError, match="columns"):
        Fa2Buffers.of(1, table, 16, gather=True)


@pytest.mark.parametrize("search", [Search(1, 8, 128), Search(2, 16, 64), Search(8, 32, 32)])
@pytest.mark.parametrize("kind", ["any", "skewed"])
def test_every_search_finds_the_same_plan(search, kind, device):
    plan = PLANS["tensor-200"]
    generator = np.random.default_rng(3)
    lengths, _, _, on_lengths, on_rows, on_table = step(generator, plan, kind, device)
    buffers = Fa2Buffers.of(plan.bucket, on_table, plan.page_size)
    Fa2Planner(plan, buffers, _search=search).run(on_lengths, on_rows)
    assert plan.read(buffers.workspace.cpu().numpy()).difference(plan.naive(lengths)) is None
