"""A kept decode plan is what a full plan would be, whatever happened to its streams in between."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mstar_resident.attention.decode_plan import DecodePlan, DecodePlanCache, naive_decode_plan
from mstar_resident.engine.pages import PagePool
from mstar_resident.engine.streams import Streams
from mstar_resident.errors import BatchTooLargeError, InvariantError, LayoutError, LengthError

SEATS, WIDTH = 7, 6


class KeptPlans(RuleBasedStateMachine):
    """Do to streams what an engine does, tell one cache of it, and read the arrays of all modes."""

    @initialize(page_size=st.sampled_from([1, 2, 4, 16]), span=st.sampled_from([0, 1]))
    def build(self, page_size: int, span: int) -> None:
        self.streams = Streams(PagePool("kv", page_size, 200), SEATS, WIDTH, span)
        self.caches = [
            DecodePlanCache(self.streams.table, self.streams.length, page_size, span, 8, mode=mode)
            for mode in ("off", "on", "verify")
        ]
        self.rows = np.array([1, 2, 3])
        self.bucket = 4
        for seat in range(1, SEATS):
            self.grow(seat, 1)

    def grow(self, seat: int, tokens: int) -> None:
        """Store tokens as a prefill or a step planned elsewhere does: the caches are not told."""
        streams = self.streams
        room = streams.max_tokens - int(streams.length[seat]) - 1
        tokens = min(tokens, room)
        seats, tokens_ = np.array([seat]), np.array([max(tokens, 0) + streams.span])
        missing = streams.missing(seats, tokens_)
        pages = streams.pool.take(int(missing.sum()))
        assert pages is not None
        streams.append(seats, missing, pages)
        streams.length[seat] += max(tokens, 0)

    @rule(seat=st.integers(1, SEATS - 1), tokens=st.integers(1, 20))
    def host_step(self, seat: int, tokens: int) -> None:
        self.grow(seat, tokens)

    @rule(seat=st.integers(1, SEATS - 1), tokens=st.integers(1, 100), spare=st.integers(0, 2), ahead=st.booleans())
    def rewind(self, seat: int, tokens: int, spare: int, ahead: bool) -> None:
        """Cut a stream, maybe keep pages beyond its length, and let it grow onto other pages."""
        streams = self.streams
        length = max(1, int(streams.length[seat]) - tokens)
        keep = min(-(-length // streams.pool.page_size) + spare, int(streams.held[seat]))
        streams.pool.give(streams.cut(seat, length, keep))
        for cache in self.caches:
            cache.truncated(seat, keep)
        streams.pool.take(1)  # so that the page given back last is not the one that comes back
        self.grow(seat, 0 if not ahead else 3)

    @rule(seat=st.integers(1, SEATS - 1), tokens=st.integers(1, 60))
    def replace(self, seat: int, tokens: int) -> None:
        streams = self.streams
        streams.pool.give(streams.cut(seat, 0, 0))
        for cache in self.caches:
            cache.replaced(seat)
        streams.pool.take(1)
        self.grow(seat, tokens)

    @rule(rows=st.lists(st.integers(1, SEATS - 1), unique=True, min_size=1), wide=st.booleans())
    def other_rows(self, rows: list[int], wide: bool) -> None:
        self.rows = np.array(rows)
        self.bucket = 8 if wide else len(rows)

    @rule(steps=st.integers(1, 6))
    def decode(self, steps: int) -> None:
        streams = self.streams
        for _ in range(steps):
            self.compare()
            if not streams.span or (streams.length[self.rows] + 2 > streams.max_tokens).any():
                return
            streams.length[self.rows] += 1
            for seat in self.rows.tolist():
                self.grow(seat, 0)

    @invariant()
    def compare(self) -> None:
        streams = self.streams
        if streams.pool.free < 60:
            streams.pool.give(np.flatnonzero((streams.pool.refs == 1) & ~np.isin(np.arange(201), streams.table)))
        full = naive_decode_plan(
            streams.table, streams.length, self.rows, self.bucket, streams.pool.page_size, streams.span
        )
        for cache in self.caches:
            assert full.difference(cache.plan(self.rows, self.bucket)) is None


TestKeptPlans = KeptPlans.TestCase
TestKeptPlans.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def kept(mode: str = "on") -> tuple[Streams, DecodePlanCache]:
    """Three streams of 6, 7 and 3 tokens on pages of 4, with pages to spare."""
    streams = Streams(PagePool("kv", 4, 50), 5, 6, 1)
    streams.append(np.array([1, 2, 3]), np.array([3, 3, 3]), np.arange(11, 20))
    streams.length[1:4] = 6, 7, 3
    return streams, DecodePlanCache(streams.table, streams.length, 4, 1, 4, mode=mode)  # type: ignore[arg-type]


ROWS = np.array([1, 2, 3])


def kinds(cache: DecodePlanCache) -> tuple[int, int, int]:
    return cache.built, cache.spliced, cache.reused


def lists(plan: DecodePlan) -> tuple[list[int], list[int], list[int]]:
    return plan.indptr.tolist(), plan.indices.tolist(), plan.last_page_len.tolist()


def test_a_full_page_has_page_size_tokens_and_padding_one_token_of_the_sink() -> None:
    _, cache = kept()
    assert lists(cache.plan(ROWS, 4)) == ([0, 2, 4, 5, 6], [11, 12, 14, 15, 17, 0], [3, 4, 4, 1])


def test_rows_that_share_pages_repeat_them() -> None:
    streams, cache = kept()
    streams.table[2, :2] = streams.table[1, :2]
    assert cache.plan(ROWS, 3).indices.tolist() == [11, 12, 11, 12, 17]


def test_a_steady_step_moves_last_page_lengths_alone() -> None:
    streams, cache = kept()
    before = cache.plan(ROWS[:1], 1)
    streams.length[1] += 1
    after = cache.plan(ROWS[:1], 1)
    assert kinds(cache) == (1, 0, 1)
    assert after.version == before.version
    assert lists(after) == ([0, 2], [11, 12], [4])


def test_rows_that_enter_a_page_have_it_spliced_in() -> None:
    streams, cache = kept()
    before = cache.plan(ROWS, 4).version
    streams.length[1:4] += 1
    after = cache.plan(ROWS, 4)
    assert kinds(cache) == (1, 1, 0)
    assert after.version != before
    assert lists(after) == ([0, 2, 5, 7, 8], [11, 12, 14, 15, 16, 17, 18, 0], [4, 1, 1, 1])


def test_only_what_changes_attended_pages_invalidates() -> None:
    streams, cache = kept()
    cache.plan(ROWS, 4)
    cache.truncated(4, 0)  # not in the step
    cache.truncated(1, 2)  # beyond what it attends
    streams.length[1] -= 1  # a rewind inside its last page
    streams.length[2] -= 1
    assert cache.plan(ROWS, 4).last_page_len.tolist() == [2, 3, 4, 1]
    assert kinds(cache) == (1, 0, 1)
    cache.truncated(1, 1)
    cache.plan(ROWS, 4)
    cache.replaced(3)
    cache.plan(ROWS, 4)
    cache.plan(ROWS[::-1].copy(), 4)
    cache.plan(ROWS[::-1].copy(), 3)
    streams.length[1] = 2  # back into an earlier page
    cache.plan(ROWS[::-1].copy(), 3)
    assert kinds(cache) == (6, 0, 1)


def test_off_builds_every_plan() -> None:
    _, cache = kept("off")
    for _ in range(3):
        cache.plan(ROWS, 4)
    assert kinds(cache) == (3, 0, 0)


def test_verify_finds_a_change_that_was_not_told() -> None:
    streams, cache = kept("verify")
    cache.plan(ROWS, 4)
    streams.table[2, 0] = 33
    with pytest.raises(InvariantError, match=r"pool kv: the kept decode plan is wrong, indices\[2\] is 14, not 33"):
        cache.plan(ROWS, 4)
    with pytest.raises(InvariantError):  # an engine that tries again is not told that all is well
        cache.plan(ROWS, 4)
    cache.truncated(2, 0)
    assert cache.plan(ROWS, 4).indices[2] == 33


def test_a_row_that_attends_nothing_or_too_much_and_a_wide_step_are_refused() -> None:
    streams, cache = kept()
    with pytest.raises(BatchTooLargeError):
        cache.plan(ROWS, 2)
    with pytest.raises(BatchTooLargeError):
        cache.plan(ROWS, 5)
    streams.length[1] = 24
    with pytest.raises(LengthError, match="tokens to attend: expected 1 to 24, got 25, pool kv"):
        cache.plan(ROWS, 4)
    streams.length[1] = -1
    with pytest.raises(LengthError):
        cache.plan(ROWS, 4)
    with pytest.raises(LayoutError, match="attention plan: expected one of"):
        kept("sometimes")
