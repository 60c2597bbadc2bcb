"""Streams in arrays: what a step lacks, where its tokens go, what a cut gives back."""

from __future__ import annotations

import numpy as np
import pytest

from mstar_resident.engine.pages import PagePool
from mstar_resident.engine.streams import Streams
from mstar_resident.errors import RowOverflowError


def streams() -> Streams:
    made = Streams(PagePool("kv", 4, 50), 4, 4, 1)
    made.append(np.array([1, 2]), np.array([3, 1]), np.array([9, 2, 7, 5]))
    made.length[[1, 2]] = [8, 3]
    return made


def test_pages_are_appended_in_order_seat_after_seat() -> None:
    made = streams()
    assert made.pages(1).tolist() == [9, 2, 7]
    assert made.pages(2).tolist() == [5]
    assert made.table[3].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(("index", "location"), [(0, 9 * 4), (3, 9 * 4 + 3), (4, 2 * 4), (7, 2 * 4 + 3), (8, 7 * 4)])
def test_a_token_goes_to_the_page_at_its_column(index: int, location: int) -> None:
    assert streams().locate(np.array([1]), np.array([index])).tolist() == [location]


@pytest.mark.parametrize(("length", "tokens", "missing"), [(8, 1, 0), (11, 1, 0), (12, 1, 1), (8, 5, 1), (8, 8, 1)])
def test_a_step_lacks_the_pages_beyond_what_its_stream_holds(length: int, tokens: int, missing: int) -> None:
    made = streams()
    made.length[1] = length
    assert made.missing(np.array([1]), np.array([tokens])).tolist() == [missing]


def test_a_stream_that_would_outgrow_its_table_is_refused() -> None:
    made = streams()
    made.length[1] = 16
    with pytest.raises(RowOverflowError) as raised:
        made.missing(np.array([2, 1]), np.array([1, 1]))
    assert raised.value.seat == 1


def test_a_cut_returns_what_is_no_longer_held_and_clears_its_columns() -> None:
    made = streams()
    assert made.cut(1, 5, 2).tolist() == [7]
    assert made.table[1].tolist() == [9, 2, 0, 0]
    assert (made.length[1], made.held[1]) == (5, 2)
    assert made.used(1) == 2


def test_a_stream_may_hold_more_pages_than_its_length_uses() -> None:
    made = streams()
    made.length[1] = 4
    assert made.used(1) == 1
    assert made.locate(np.array([1]), np.array([4])).tolist() == [2 * 4]  # not the last page it holds
