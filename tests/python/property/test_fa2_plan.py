"""Both layouts of FlashInfer's decode plan, and what a step's plan says, against the host planners restated."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fa2_host
from mstar_resident.attention.fa2_plan import CUDA_CORE_GROUPS, LEAST_TENSOR_CORE_GROUP, Fa2Plan
from mstar_resident.errors import LayoutError

PAGE_SIZES = st.sampled_from([1, 8, 16, 48, 64, 128, 256])
HEAD_DIMS = st.sampled_from([64, 128, 256])


@st.composite
def steps(draw: st.DrawFn) -> tuple[int, np.ndarray]:
    """Return a page size and the lengths of a bucket's rows: any, many alike, at pages' edges, padding of one token."""
    page_size, rows = draw(PAGE_SIZES), draw(st.integers(1, 300))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    most = draw(st.sampled_from([1, 2, 9, 70, 600])) * page_size
    lengths = random.integers(1, most + 1, rows)
    if draw(st.booleans()):
        lengths = np.maximum(lengths // page_size * page_size + random.integers(-1, 2, rows), 1)
    if draw(st.booleans()):
        lengths[random.random(rows) < 0.9] = 1
    return page_size, lengths


def check(plan: Fa2Plan, told: fa2_host.HostPlan, head_dim: int, lengths: np.ndarray) -> None:
    assert plan.info(head_dim) == told.info
    assert plan.offsets["end"] == len(told.workspace)
    host = plan.read(np.frombuffer(told.workspace, dtype=np.uint8))
    assert plan.naive(lengths).difference(host) is None


@given(steps(), st.sampled_from(CUDA_CORE_GROUPS), st.integers(1, 24), HEAD_DIMS, st.integers(1, 12), st.data())
def test_a_plan_for_cuda_cores_is_the_host_planners(step, group, kv_heads, head_dim, blocks, data) -> None:
    page_size, lengths = step
    most_blocks = blocks * data.draw(st.sampled_from([16, 132]))
    told = fa2_host.cuda_cores(
        [-(-int(n) // page_size) for n in lengths], group * kv_heads, kv_heads, head_dim, page_size, most_blocks
    )
    shape = (len(lengths), group * kv_heads, kv_heads, page_size)
    plan = Fa2Plan.on_cuda_cores(*shape, items=told.info[0], split=bool(told.info[-1]))
    check(plan, told, head_dim, lengths)


@given(steps(), st.integers(1, 16), st.integers(1, 24), HEAD_DIMS, st.sampled_from([16, 132, 148]))
def test_a_plan_for_tensor_cores_is_the_host_planners(step, group, kv_heads, head_dim, multiprocessors) -> None:
    page_size, lengths = step
    pages = [-(-int(n) // page_size) for n in lengths]
    told = fa2_host.tensor_cores(pages, group * kv_heads, kv_heads, head_dim, page_size, multiprocessors)
    plan = Fa2Plan.on_tensor_cores(len(lengths), group * kv_heads, kv_heads, page_size, multiprocessors)
    check(plan, told, head_dim, lengths)


@pytest.mark.parametrize(("rows", "split"), [(65, True), (66, False), (67, False)])
def test_rows_that_fill_the_device_are_not_split(rows: int, split: bool) -> None:
    lengths = np.arange(1, rows + 1) * 100
    told = fa2_host.cuda_cores([-(-int(n) // 16) for n in lengths], 8, 4, 64, 16, 264)
    plan = Fa2Plan.on_cuda_cores(rows, 8, 4, 16, items=told.info[0], split=bool(told.info[-1]))
    assert (plan.split, "valid" in plan.offsets) == (split, split)
    arrays = plan.naive(lengths)
    if not split:  # whatever the lengths
        assert arrays.request.tolist() == list(range(rows))
        assert arrays.first.tolist() == list(range(rows + 1))
        assert not arrays.tile.any()


def test_what_no_device_would_tell_is_refused() -> None:
    with pytest.raises(LayoutError, match="items"):
        Fa2Plan.on_cuda_cores(8, 3, 3, 16, items=7, split=True)
    with pytest.raises(LayoutError, match="items"):
        Fa2Plan.on_cuda_cores(8, 3, 3, 16, items=9, split=False)
    with pytest.raises(LayoutError, match="heads"):
        Fa2Plan.on_cuda_cores(8, 10, 2, 16, items=40, split=True)


def test_every_group_has_cores_that_take_it() -> None:
    assert set(range(1, LEAST_TENSOR_CORE_GROUP)) <= set(CUDA_CORE_GROUPS)
