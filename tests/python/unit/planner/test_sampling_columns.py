"""Sampling parameters as scalar columns of a row: they follow the request, not its place in the batch nor its slot."""

from __future__ import annotations

import torch
from torch import Tensor

from mstar_resident import Column, KVTable, Lease, ResidentPlanner, RowLayout
from mstar_resident.engine.sampler import mix

LAYOUT = RowLayout(
    [KVTable("kv", 4, 200, 64)], [Column("position", "position", "kv"), Column("seed"), Column("temperature")]
)


def draw(lease: Lease) -> Tensor:
    """A toy sampler: a hash of what a row's own columns say; greedy rows ignore their seed."""
    seed, temperature = lease.columns["seed"], lease.columns["temperature"]
    seeded = mix(seed + mix(lease.columns["position"] + mix(temperature)))
    return torch.where(temperature == 0, mix(lease.columns["position"]), seeded)


class Sampling:
    """A planner whose rows carry sampling parameters."""

    def __init__(self, max_batch: int = 4) -> None:
        self.planner = ResidentPlanner(LAYOUT, max_batch, debug=True)
        self.lease = self.planner.lease(max_batch)
        self._pages = 1

    def request(self, seed: int, temperature: int = 1, length: int = 3) -> int:
        handle = self.planner.open()
        self.planner.set_stream(handle, "kv", list(range(self._pages, self._pages + 5)), length)
        self._pages += 5
        for name, value in (("position", 0), ("seed", seed), ("temperature", temperature)):
            self.planner.set_column(name, [handle], [value])
        return handle

    def step(self, handles: list[int]) -> list[int]:
        stage = self.planner.stage(self.planner.batch(handles), self.lease)
        self.planner.flush(stage, 0)
        self.planner.prologue(self.lease)
        self.planner.commit(stage)
        return draw(self.lease)[: len(handles)].tolist()

    def alone(self, seed: int, steps: int, temperature: int = 1) -> list[int]:
        """What a request draws if it is the only one."""
        only = Sampling()
        handle = only.request(seed, temperature)
        return [only.step([handle])[0] for _ in range(steps)]


def test_seeded_draws_follow_their_request_when_the_batch_closes_up() -> None:
    node = Sampling()
    r1, r2, r3, r4 = (node.request(seed) for seed in (1, 2, 3, 4))
    said: dict[int, list[int]] = {handle: [] for handle in (r1, r2, r3, r4)}

    def step(*handles: int) -> None:
        for handle, token in zip(handles, node.step(list(handles)), strict=True):
            said[handle].append(token)

    for _ in range(3):
        step(r1, r2, r3, r4)
    slots = [node.planner.slot(handle) for handle in (r1, r3, r4)]
    node.planner.release(r2)  # the shortest; the last row moves to its place
    for _ in range(4):
        step(r1, r4, r3)
    assert [node.planner.slot(handle) for handle in (r1, r3, r4)] == slots
    for handle, seed, steps in ((r1, 1, 7), (r2, 2, 3), (r3, 3, 7), (r4, 4, 7)):
        assert said[handle] == node.alone(seed, steps)


def test_a_request_whose_first_step_here_is_a_decode_step_draws_with_its_own_parameters() -> None:
    node = Sampling(1)
    node.planner.store.narrow[1:] = -77  # what an earlier owner would have left
    before = node.request(seed=8, temperature=3)
    node.step([before])
    node.planner.release(before)
    here = node.request(seed=5, temperature=2)
    assert node.step([here]) == node.alone(5, 1, 2)
    assert node.planner.store.narrow[node.planner.slot(here), 1:].tolist() == [0, 5, 2]


def test_rows_that_change_places_keep_their_temperatures_and_a_release_takes_them_along() -> None:
    node = Sampling(2)
    a, b = node.request(seed=1, temperature=0), node.request(seed=2, temperature=1)
    greedy, warm = node.alone(1, 4, 0), node.alone(2, 2, 1)
    assert node.step([a, b]) == [greedy[0], warm[0]]
    slots = [node.planner.slot(a), node.planner.slot(b)]
    assert node.step([b, a]) == [warm[1], greedy[1]]
    assert [node.planner.slot(a), node.planner.slot(b)] == slots
    node.planner.release(a)
    node.planner.store.narrow[slots[0]] = -77  # nothing reads the slot that was a's
    node.planner.set_column("temperature", [b], [0])
    assert node.step([b]) == [greedy[2]]  # greedy now, at the third position
    assert node.lease.slots.tolist() == [slots[1], 0]
