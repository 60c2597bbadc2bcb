"""A decode plan cache refuses what it cannot plan, names it, and keeps the plan that it had."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from mstar_resident.attention.decode_plan import DecodePlanCache
from mstar_resident.errors import BatchTooLargeError, LayoutError

PAGES = np.array([[9, 2, 7], [5, 1, 3]], np.int32)
LENGTHS = np.array([5, 4])
ARGUMENTS = {"pages": PAGES, "lengths": LENGTHS, "page_size": 4, "span": 1, "max_batch": 2}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"page_size": 0}, "page_size: expected an int in 1.."),
        ({"page_size": 4.0}, "page_size: expected an int in 1.."),
        ({"span": 3}, "span: expected an int in 0..1, got 3, pool kv"),
        ({"max_batch": 0}, "max_batch: expected an int in 1.."),
        ({"max_batch": 2**30}, "max_batch: expected an int in 1..715827882, got 1073741824, pool kv"),
        ({"pages": PAGES.astype(np.float32)}, "pages: expected int32[requests, P], got 'float32[2, 3]', pool kv"),
        ({"pages": PAGES.astype(np.int64)}, "pages: expected int32[requests, P], got 'int64[2, 3]'"),
        ({"pages": PAGES[0]}, "pages: expected int32[requests, P], got 'int32[3]'"),
        ({"pages": PAGES[:, :0]}, "pages: expected int32[requests, P], got 'int32[2, 0]'"),
        ({"pages": PAGES.tolist()}, "pages: expected int32[requests, P], got 'list'"),
        ({"lengths": LENGTHS[:1]}, "lengths: expected int64[2], one a row of pages, got 'int64[1]', pool kv"),
        ({"lengths": LENGTHS.astype(np.int32)}, "lengths: expected int64[2], one a row of pages, got 'int32[2]'"),
        ({"lengths": LENGTHS.tolist()}, "lengths: expected int64[2], one a row of pages, got 'list'"),
        ({"mode": "maybe"}, "attention plan: expected one of"),
    ],
)
def test_a_cache_of_what_cannot_be_planned_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(LayoutError, match=re.escape(said)):
        DecodePlanCache(**(ARGUMENTS | wrong))


@pytest.mark.parametrize("mode", ["off", "on", "verify"])
@pytest.mark.parametrize(
    ("rows", "bucket", "error", "said"),
    [
        ([-1], 1, LayoutError, "rows: expected each in 0..1, got -1, pool kv"),
        ([0, 9], 2, LayoutError, "rows: expected each in 0..1, got 9, pool kv"),
        ([2], 1, LayoutError, "rows: expected each in 0..1, got 2, pool kv"),
        ([-(2**63)], 1, LayoutError, "rows: expected each in 0..1, got -9223372036854775808, pool kv"),
        ([1.0, 0.0], 2, LayoutError, "rows: expected ints that fit int64, got 'float64'"),
        ([True], 1, LayoutError, "rows: expected ints that fit int64, got 'bool'"),
        ([[0, 1]], 2, LayoutError, "rows: expected one dimension, got 2"),
        ([0], 0, LayoutError, "bucket: expected an int in 1.."),
        ([], 0, LayoutError, "bucket: expected an int in 1.."),
        ([0], -1, LayoutError, "bucket: expected an int in 1.."),
        ([0], 1.5, LayoutError, "bucket: expected an int in 1.."),
        ([0], 3, BatchTooLargeError, "bucket: expected at most 2, got 3, pool kv"),
        ([0, 1], 1, BatchTooLargeError, "rows: expected at most 1, got 2, pool kv"),
    ],
)
def test_a_step_that_cannot_be_planned_is_refused_and_the_plan_before_it_kept(
    mode: Any, rows: list[Any], bucket: Any, error: type[Exception], said: str
) -> None:
    cache = DecodePlanCache(PAGES, LENGTHS, 4, 1, 2, mode=mode)
    before = cache.plan(np.array([1, 0]), 2)
    for given in (rows, np.array(rows)):
        with pytest.raises(error, match=re.escape(said)):
            cache.plan(given, bucket)  # type: ignore[arg-type]
    assert before.indices.tolist() == [5, 1, 9, 2]
    assert cache.plan(np.array([1, 0]), 2).version == before.version + (mode == "off")


def test_a_step_without_rows_is_padding_alone() -> None:
    for rows in ([], np.zeros(0), np.zeros(0, np.int64)):
        plan = DecodePlanCache(PAGES, LENGTHS, 4, 1, 2).plan(rows, 2)  # type: ignore[arg-type]
        assert (plan.indptr.tolist(), plan.indices.tolist(), plan.last_page_len.tolist()) == ([0, 1, 2], [0, 0], [1, 1])


@pytest.mark.parametrize("row", [-1, 2])
def test_a_stream_that_there_is_not_cannot_have_changed(row: int) -> None:
    cache = DecodePlanCache(PAGES, LENGTHS, 4, 1, 2)
    for tell in (cache.replaced, lambda row: cache.truncated(row, 0)):
        with pytest.raises(LayoutError, match=f"row: expected 0 to 1, got {row}, pool kv"):
            tell(row)
