"""Followers replay what rank 0 did: the same tokens on slots and pages of their own, whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mstar_resident.engine.config import EngineConfig
from mstar_resident.engine.ranks import Follower, Leader, LocalGroup, moves
from mstar_resident.engine.ranks.agreement import RankMismatchError
from mstar_resident.engine.ranks.moves import Move
from mstar_resident.engine.request import Request, Sampling
from mstar_resident.errors import LayoutError
from rank_support import SHORT, HearsSlots, TellsSlots, build, serve_one_before, traffic


def follow(follower: Follower, group: LocalGroup) -> None:
    while group.told:
        follower.replay(group.hear())


class Ranks:
    """One leader and followers in one process, that hear of each step as it is told."""

    def __init__(self, seed: int, followers: int = 2, config: EngineConfig = SHORT, **model: Any) -> None:
        self.group = LocalGroup()
        self.leader: Leader = build(Leader, self.group, config, **model)
        self.followers: list[Follower] = [build(Follower, LocalGroup(i + 1), config, **model) for i in range(followers)]
        if config.pages_owner == "engine":
            serve_one_before(self.followers[0])
        self.other_slots = 0
        self.seen: list[dict[int, Request]] = [{} for _ in self.followers]
        self.requests = traffic(self.leader, seed, 120, self.follow, contexts="read_only" in model)
        self.follow()

    def follow(self) -> None:
        while self.group.told:
            told = self.group.hear()
            for follower, seen in zip(self.followers, self.seen, strict=True):
                follower.replay(told)
                seen |= follower.requests
                self.other_slots += self.slots(follower) != self.slots(self.leader)

    @staticmethod
    def slots(engine: Any) -> dict[str, int]:
        planner = engine.planner
        live = [request for request in engine.seats._requests if request is not None]
        return {r.id: planner.slot(int(engine.seats.handle[r.seat])) for r in live} if planner is not None else {}

    def check(self) -> None:
        assert self.leader.counters.mismatches == []
        for follower, seen in zip(self.followers, self.seen, strict=True):
            assert follower.counters.mismatches == []
            assert follower.counters.steps == self.leader.counters.steps
            for number, request in enumerate(self.requests):
                if number in seen:  # not over before a step was told
                    assert seen[number].outputs == request.outputs
                    assert (seen[number].state, seen[number].reason) == (request.state, request.reason)
            assert not follower.requests
            assert follower.seats.free == SHORT.max_requests
            follower.memory.check()
            if follower.planner is not None:
                follower.planner.check()


MODELS: dict[str, dict[str, Any]] = {
    "one pool": {},
    "a recurrent state": {"recurrent": True},
    "two pools": {"append": ("kv", "far")},
    "a context": {"read_only": ("context",)},
    "a host plan": {"host_plan": ("kv",)},
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("model", MODELS)
def test_every_rank_says_the_same_on_slots_of_its_own(model: str, seed: int) -> None:
    ranks = Ranks(seed, **MODELS[model])
    ranks.check()
    counters = ranks.leader.counters
    assert counters.offloads > 0
    assert counters.reloads > 0
    assert counters.refused > 0
    assert ranks.other_slots > 20
    for follower in ranks.followers:
        assert follower.counters.rows_checked > 100
        assert follower.counters.offloads == counters.offloads
        assert follower.counters.reloads == counters.reloads
        assert follower.refused >= counters.refused


@pytest.mark.parametrize("settings", [{"prefix_cache": True}, {"lookahead": False}, {"order": "arrival"}])
def test_ranks_agree_with_a_prefix_cache_without_lookahead_and_in_either_order(settings: dict[str, Any]) -> None:
    ranks = Ranks(3, config=replace(SHORT, **settings))
    ranks.check()
    if "prefix_cache" in settings:
        assert ranks.leader.counters.prefix_pages > 5
        assert ranks.followers[0].counters.prefix_pages == ranks.leader.counters.prefix_pages


def test_ranks_agree_where_the_planner_owns_the_pages() -> None:
    ranks = Ranks(4, config=replace(SHORT, pages_owner="planner", prefix_cache=True))
    ranks.check()


def test_a_rank_may_plan_on_the_host_beside_resident_ones() -> None:
    group, other = LocalGroup(), LocalGroup(1)
    leader: Leader = build(Leader, group)
    follower: Follower = build(Follower, other, replace(SHORT, planning="off"))
    requests = traffic(leader, 5, 60, lambda: None)
    seen: dict[int, Request] = {}
    while group.told:
        follower.replay(group.hear())
        seen |= follower.requests
    assert follower.planner is None
    assert leader.counters.resident_steps > 20
    assert sum(seen[n].outputs == r.outputs for n, r in enumerate(requests) if n in seen) == len(seen)


def test_no_move_carries_a_slot_a_handle_or_a_seat() -> None:
    """What is told is equal for leaders whose slots, handles, seats and pages are not."""
    told = []
    for before in (False, True):
        group = LocalGroup()
        leader: Leader = build(Leader, group)
        if before:
            serve_one_before(leader)  # type: ignore[arg-type]
        traffic(leader, 6, 80, lambda: None)
        told.append([repr(move) for entries in group.told for move in entries])
    assert told[0] == told[1]
    assert len(told[0]) > 200


def test_a_leader_that_tells_slots_is_found_out() -> None:
    """Ranks of one history happen to hold the same slots, so one of another past must be among them."""
    group = LocalGroup()
    leader: Leader = build(TellsSlots, group, replace(SHORT, order="arrival"))
    follower: Follower = build(HearsSlots, LocalGroup(1), replace(SHORT, order="arrival"))
    serve_one_before(follower)
    traffic(leader, 7, 60, lambda: None)
    with pytest.raises(RankMismatchError):
        follow(follower, group)


def test_another_token_on_a_rank_is_found_out() -> None:
    group = LocalGroup()
    leader: Leader = build(Leader, group)
    follower: Follower = build(Follower, LocalGroup(1))
    traffic(leader, 8, 20, lambda: None)
    entry = group.told[4]
    group.told[4] = [replace(m, tokens=(m.tokens[0] + 1,)) if isinstance(m, moves.Read) else m for m in entry]
    assert group.told[4] != entry
    with pytest.raises(RankMismatchError, match=r"tokens: expected .*, as on rank 0, got .*, rank 1"):
        follow(follower, group)


def followed() -> tuple[Follower, int]:
    """A follower with one request that decodes, number 0."""
    follower: Follower = build(Follower, LocalGroup(1))
    entries: list[Move] = [
        moves.Add(0, "a", np.arange(1, 6), 20, Sampling(), None, None, False),
        moves.TakeIn(0),
        moves.Reserve((0,), (5,), True),
        moves.Step((0,), (5,), (1,), 0),
        moves.Reserve((0,), (1,), True),
        moves.Step((0,), (1,), (1,), 1),
    ]
    assert follower.replay(entries)
    return follower, int(follower.seats.handle[follower.requests[0].seat])


def test_an_offload_is_replayed_with_its_release_and_once() -> None:
    follower, handle = followed()
    planner = follower.planner
    assert planner is not None
    assert planner.slot(handle)
    follower.replay([moves.Offload(0)])
    assert planner.slot(handle) == 0
    assert planner.stats().slots_held == 0
    assert follower.streams["kv"].pool.free == 26
    follower.replay([moves.Offload(0)])  # it holds nothing: nothing is given back twice
    assert follower.moot == 1
    assert follower.counters.offloads == 1
    planner.check()
    follower.memory.check()


def test_entries_of_a_request_that_is_over_are_moot() -> None:
    follower, _ = followed()
    follower.replay([moves.End(0, "abort")])
    free = follower.streams["kv"].pool.free, follower.seats.free
    follower.replay(
        [moves.End(0, "abort"), moves.Offload(0), moves.Reload(0, True), moves.Stop(0, "stop"), moves.Empty(0)]
    )
    assert follower.moot == 5
    assert (follower.streams["kv"].pool.free, follower.seats.free) == free == (26, 9)
    assert follower.planner is not None
    assert follower.planner.stats().slots_held == 0
    follower.planner.check()


def test_refused_entries_change_nothing_and_a_refusal_that_differs_is_found_out() -> None:
    follower, _ = followed()
    assert follower.streams["kv"].pool.take(22) is not None
    held = follower.streams["kv"].held.copy()
    follower.replay([moves.Reserve((0,), (30,), False), moves.Reload(0, False)])
    assert follower.refused == 2
    assert np.array_equal(follower.streams["kv"].held, held)
    with pytest.raises(RankMismatchError, match="reservation: expected False, as on rank 0, got True"):
        follower.replay([moves.Reserve((0,), (1,), False)])


def test_a_step_of_a_request_that_is_not_admitted_is_found_out() -> None:
    follower, _ = followed()
    with pytest.raises(RankMismatchError, match="row of a step: expected a request that is admitted, got 3"):
        follower.replay([moves.Step((3,), (1,), (1,), 1)])


def test_a_leader_that_failed_ends_its_followers() -> None:
    group = LocalGroup()
    leader: Leader = build(Leader, group)
    leader.add(Request("a", np.arange(3), 9))
    leader.step()
    leader.runner.in_flight = lambda phase: (_ for _ in ()).throw(OSError("gone"))  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="gone"):
        leader.step()
    follower: Follower = build(Follower, LocalGroup(1))
    follower.replay(group.hear())
    with pytest.raises(RankMismatchError, match="a step failed on rank 0"):
        follow(follower, group)


class Between:
    """Answer a gather with this rank's value and another rank's."""

    rank, size = 0, 2

    def __init__(self, other: Callable[[Any], Any]) -> None:
        self._other = other
        self.told: list[list[Move]] = []

    def gather(self, value: Any) -> list[Any]:
        return [value, self._other(value)]

    def tell(self, told: list[Move]) -> None:
        self.told.append(told)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("pool_pages of kv", 11, "pool_pages of kv on rank 1: expected 26, as on rank 0, got 11"),
        ("max_batch", 4, "max_batch on rank 1: expected 3, as on rank 0, got 4"),
        ("page_size of far", 8, "page_size of far on rank 1: expected None, as on rank 0, got 8"),
    ],
)
@pytest.mark.parametrize("rank", [Leader, Follower])
def test_ranks_of_unequal_sizes_are_refused_at_build(rank: Any, name: str, value: int, said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        build(rank, Between(lambda mine: mine | {name: value}))  # type: ignore[arg-type]


@pytest.mark.parametrize("rank", [Leader, Follower])
def test_a_bucket_that_another_rank_dropped_runs_host_planned_here_too(rank: Any) -> None:
    group = Between(lambda mine: mine | {3} if isinstance(mine, frozenset) else mine)
    config = replace(SHORT, least_resident=0.1)
    engine = build(rank, group, config)  # type: ignore[arg-type]
    engine.capture()
    assert engine.arm.host_planned == {3}
    assert engine.planner.store.narrow.shape[0] == 2 * 3 + 1  # sized by the wider one, which is safe
    if rank is Leader:
        for prompt in (3, 5, 7):
            engine.add(Request(str(prompt), np.arange(prompt), 4 * prompt))
        engine.run()
        assert 0 < engine.counters.resident_steps < engine.counters.decode_steps
        assert engine.counters.mismatches == []
