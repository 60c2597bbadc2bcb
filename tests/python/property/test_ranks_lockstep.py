"""Ranks in lockstep, each with its own past and its own order of releases and commits: only slots may differ."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from mstar_resident import Column, KVTable, ResidentPlanner, RowLayout
from mstar_resident.errors import ResidentError

B, PAGE_SIZE, POOL, RANKS, VOCAB = 3, 4, 400, 4, 1009


@dataclass(eq=False)
class Asked:
    """What all ranks know of a request: its name, its tokens, and no number that is a rank's own."""

    name: int
    tokens: list[int]


@dataclass
class Rank:
    """One rank: a planner, pages and a device of its own."""

    seed: int
    planner: ResidentPlanner = field(init=False)
    handles: dict[int, int] = field(default_factory=dict)
    pages: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        layout = RowLayout([KVTable("kv", PAGE_SIZE, POOL, 256)], [Column("name", "scalar")])
        self.planner = ResidentPlanner(layout, B, debug=True)
        self.rng = random.Random(self.seed)
        self.free = list(range(1, POOL + 1))
        self.rng.shuffle(self.free)
        self.cells = torch.zeros((POOL + 1) * PAGE_SIZE, dtype=torch.int64)
        self.lengths: dict[int, int] = {}
        #: Requests that the other ranks never had; the ranks' slots differ from then on.
        self.past = [self.served_before() for _ in range(self.seed % RANKS)]

    def served_before(self) -> int:
        """Run a step of a request of this rank alone, and leave it open."""
        planner, handle = self.planner, self.planner.open()
        planner.set_stream(handle, "kv", [1], 0)
        planner.set_column("name", [handle], [0])
        lease = planner.lease(1)
        stage = planner.stage(planner.batch([handle]), lease)
        planner.flush(stage, 0)
        planner.prologue(lease)
        planner.commit(stage)
        return handle

    def open(self, asked: Asked) -> None:
        """Admit a request: all of its tokens but the last are stored by a host step."""
        stored = len(asked.tokens) - 1
        pages = self.pages[asked.name] = [self.free.pop() for _ in range(stored // PAGE_SIZE + 1)]
        handle = self.handles[asked.name] = self.planner.open()
        for i, token in enumerate(asked.tokens[:-1]):
            self.cells[pages[i // PAGE_SIZE] * PAGE_SIZE + i % PAGE_SIZE] = token
        self.planner.set_stream(handle, "kv", pages, stored)
        self.planner.set_column("name", [handle], [asked.name])
        self.lengths[asked.name] = stored

    def release(self, name: int) -> None:
        """Forget a request; its pages go back in this rank's own order."""
        self.planner.release(self.handles.pop(name))
        back = self.pages.pop(name)
        self.rng.shuffle(back)
        self.free += back
        del self.lengths[name]

    def step(self, rows: list[Asked], gone: list[int]) -> tuple[list[int], list[int]]:
        """Launch a step; ``gone`` leave before or after its commit, each as this rank's threads happen to run.

        Returns: the rows' tokens, as the device computed them, and the slots that it read.
        """
        planner = self.planner
        if self.past and self.rng.random() < 0.1:
            planner.release(self.past.pop(self.rng.randrange(len(self.past))))
        handles = np.array([self.handles[asked.name] for asked in rows])
        for asked in rows:
            if self.lengths[asked.name] // PAGE_SIZE == len(self.pages[asked.name]):
                page = self.free.pop()
                self.pages[asked.name].append(page)
                planner.append_pages("kv", [self.handles[asked.name]], [1], [page])
        lease = planner.lease(B, buffer_idx=self.rng.randrange(2))
        stage = planner.stage(planner.batch(handles), lease)
        if self.rng.random() < 0.3:  # a plan that never ran leaves no trace
            planner.drop(stage)
            stage = planner.stage(planner.batch(handles), lease)
        planner.flush(stage, 0)
        planner.prologue(lease)
        tokens = self.forward(lease, rows)
        early = [name for name in gone if self.rng.random() < 0.5]
        for name in early:
            self.release(name)
        planner.commit(stage)
        for asked in rows:
            if asked.name in self.lengths:
                self.lengths[asked.name] += 1
        late = [name for name in gone if name not in early]
        self.rng.shuffle(late)
        for name in late:
            self.release(name)
        return tokens, lease.slots.tolist()

    def forward(self, lease: Any, rows: list[Asked]) -> list[int]:
        """Write each row's last token, then hash what its table names: all of it read off the lease and the store."""
        n = len(rows)
        self.cells[lease.write_loc["kv"][:n]] = torch.tensor([asked.tokens[-1] for asked in rows])
        tokens = []
        for i in range(n):
            length = int(lease.lengths["kv"][i])
            at = torch.arange(length)
            pages = self.planner.store.tables["kv"][int(lease.slots[i])].long()[at // PAGE_SIZE]
            seen = self.cells[pages * PAGE_SIZE + at % PAGE_SIZE]
            tokens.append(int((seen * (at + 7)).sum() + 13 * lease.columns["name"][i]) % VOCAB)
        return tokens

    def held(self) -> set[int]:
        """Return which requests hold a slot: the others were displaced, or never ran."""
        return {name for name, handle in self.handles.items() if self.planner.slot(handle)}


def naive(asked: Asked) -> int:
    """Return the next token of a request alone."""
    return (sum(token * (i + 7) for i, token in enumerate(asked.tokens)) + 13 * asked.name) % VOCAB


@dataclass
class Course:
    """What a run came to."""

    displaced: int
    other_slots: int


def run(seed: int, steps: int = 120, broken: bool = False) -> Course:
    """Run all ranks in lockstep; ``broken`` names rows by rank 0's slots, as no collective may."""
    rng = random.Random(seed)
    ranks = [Rank(100 * seed + number) for number in range(RANKS)]
    live: list[Asked] = []
    names = iter(range(1, 10_000))
    other_slots = 0
    for _ in range(steps):
        while len(live) < 12:
            asked = Asked(next(names), [rng.randrange(VOCAB) for _ in range(rng.randint(1, 12))])
            for rank in ranks:
                rank.open(asked)
            live.append(asked)
        rows = rng.sample(live, rng.randint(1, B))
        gone = [asked.name for asked in live if rng.random() < 0.04]  # in the step or not
        wanted = [naive(asked) for asked in rows]
        slots: list[list[int]] = []
        told = [ranks[0].planner.slot(ranks[0].handles[asked.name]) for asked in rows]
        for rank in ranks:
            mine = rows
            if broken and rank is not ranks[0]:
                by_slot = {rank.planner.slot(rank.handles[asked.name]): asked for asked in live}
                mine = [by_slot.get(slot, asked) if slot else asked for slot, asked in zip(told, rows, strict=True)]
            tokens, read = rank.step(mine, gone)
            assert tokens == wanted
            slots.append(read)
        other_slots += any(read != slots[0] for read in slots)
        live = [asked for asked in live if asked.name not in gone]
        for asked, token in zip(rows, wanted, strict=True):
            asked.tokens.append(token)
        for rank in ranks[1:]:
            assert rank.held() == ranks[0].held()
    return Course(ranks[0].planner.stats().displaced, other_slots)


@pytest.mark.parametrize("seed", range(6))
def test_any_interleaving_of_release_and_commit_displaces_the_same_requests_and_says_the_same(seed: int) -> None:
    course = run(seed)
    assert course.displaced > 40
    assert course.other_slots > 40


def test_rows_named_by_a_slot_are_found_out() -> None:
    with pytest.raises((AssertionError, ResidentError, KeyError)):
        run(0, broken=True)
