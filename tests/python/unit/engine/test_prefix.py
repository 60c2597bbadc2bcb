"""The prefix cache: whole pages, the last token never, the beginning outlives what continues it."""

from __future__ import annotations

import numpy as np

from mstar_resident.engine.pages import Ints, PagePool
from mstar_resident.engine.prefix import PrefixCache


def tokens(*values: int) -> Ints:
    return np.array(values, dtype=np.int64)


def cache() -> tuple[PagePool, PrefixCache, Ints]:
    pool = PagePool("kv", 2, 9)
    pages = pool.take(3)
    assert pages is not None
    made = PrefixCache(pool)
    made.seal(tokens(1, 2, 3, 4, 5), pages)
    return pool, made, pages


def test_only_full_pages_are_kept() -> None:
    pool, _, pages = cache()
    assert pool.refs[pages].tolist() == [2, 2, 1]


def test_a_match_is_the_longest_known_beginning_in_whole_pages() -> None:
    _, made, pages = cache()
    assert made.match(tokens(1, 2, 3, 4, 9)).tolist() == pages[:2].tolist()
    assert made.match(tokens(1, 2, 3, 9, 9)).tolist() == pages[:1].tolist()
    assert made.match(tokens(7, 2, 3, 4, 9)).tolist() == []
    assert made.match(tokens(1, 9, 3, 4, 9)).tolist() == []


def test_the_last_token_is_never_matched() -> None:
    _, made, pages = cache()
    assert made.match(tokens(1, 2, 3, 4)).tolist() == pages[:1].tolist()
    assert made.match(tokens(1, 2)).tolist() == []


def test_a_page_equal_in_itself_but_after_another_beginning_is_another_page() -> None:
    _, made, _ = cache()
    assert made.match(tokens(3, 4, 3, 4, 0)).tolist() == []


def test_pages_that_a_stream_refers_to_are_not_evicted() -> None:
    pool, made, pages = cache()
    assert made.evictable() == 0
    pool.give(pages)
    assert made.evictable() == 2
    held = made.match(tokens(1, 2, 9))
    made.evict(9)
    assert pool.refs[held].tolist() == [2]
    assert made.evictable() == 0


def test_what_continues_a_beginning_is_evicted_before_it() -> None:
    pool, made, pages = cache()
    pool.give(pages)
    made.evict(1)
    assert made.match(tokens(1, 2, 3, 4, 9)).tolist() == pages[:1].tolist()
