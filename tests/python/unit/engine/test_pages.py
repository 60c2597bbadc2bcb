"""The page pool: all or nothing, reference counts, and a sink that never leaves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mstar_resident.engine.pages import PagePool
from mstar_resident.errors import InvariantError, LayoutError, PageError


def test_the_sink_page_is_never_handed_out() -> None:
    pool = PagePool("kv", 4, 3)
    taken = pool.take(3)
    assert taken is not None
    assert taken.tolist() == [1, 2, 3]
    assert pool.free == 0


def test_too_many_pages_take_none() -> None:
    pool = PagePool("kv", 4, 3)
    assert pool.take(4) is None
    assert pool.free == 3


def test_a_shared_page_is_free_when_the_last_reference_goes() -> None:
    pool = PagePool("kv", 4, 3)
    page = pool.take(1)
    assert page is not None
    pool.share(page)
    pool.give(page)
    assert pool.free == 2
    pool.give(page)
    assert pool.free == 3


def test_the_page_given_back_last_is_taken_first() -> None:
    pool = PagePool("kv", 4, 9)
    taken = pool.take(5)
    assert taken is not None
    pool.give(taken[2:3])
    again = pool.take(1)
    assert again is not None
    assert again[0] == taken[2]


@pytest.mark.parametrize("pages", [[0], [4], [-1], [1, 2]])
def test_giving_what_is_not_held_is_refused_and_changes_nothing(pages: list[int]) -> None:
    pool = PagePool("kv", 4, 3)
    assert pool.take(1) is not None
    with pytest.raises(PageError):
        pool.give(np.array(pages))
    assert pool.free == 2
    pool.check()


@pytest.mark.parametrize(("size", "pages"), [(0, 3), (4, 0), (-1, 3)])
def test_a_pool_without_room_is_refused(size: int, pages: int) -> None:
    with pytest.raises(LayoutError):
        PagePool("kv", size, pages)


def test_the_check_sees_a_page_that_is_free_and_referenced() -> None:
    pool = PagePool("kv", 4, 3)
    pool.refs[2] = 1
    with pytest.raises(InvariantError):
        pool.check()


@given(st.lists(st.tuples(st.sampled_from(["take", "share", "give"]), st.integers(0, 5)), max_size=60))
def test_free_and_referenced_pages_partition_the_pool_after_any_calls(calls: list[tuple[str, int]]) -> None:
    pool = PagePool("kv", 4, 8)
    held: list[int] = []
    for call, number in calls:
        if call == "take":
            taken = pool.take(number)
            held += taken.tolist() if taken is not None else []
        elif held:
            page = held[number % len(held)]
            if call == "share":
                pool.share(np.array([page]))
                held.append(page)
            else:
                pool.give(np.array([page]))
                held.remove(page)
        pool.check()
        assert pool.free == 8 - len(set(held))
