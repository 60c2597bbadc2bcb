"""What a held cuda_stream shows: copies, steps, reuse and captures in the order that keeps every row true."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch

from mstar_resident import Lease, ResidentPlanner
from mstar_resident.capture import CapturedResidentStep, capture_walk
from mstar_resident.engine.config import EngineConfig, PoolConfig
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.request import Request
from mstar_resident.engine.toy import ToyModel, ToySampler, toy_tokens
from mstar_resident.stager import RING_DEPTH
from mstar_resident.step_guard import step_guard

from .held import DEVICE, LAYOUT, hold, warm


def test_a_slot_freed_behind_a_held_step_is_written_after_that_step_has_read_it() -> None:
    node = warm(2)
    planner = node.planner
    a, b = node.request([3, 5], 6, 11), node.request([7, 8], 3, 12)
    hold(node.cuda_stream)
    node.step([a, b])
    slot = planner.slot(a)
    planner.release(a)  # its result was handled; the device has not begun
    c = node.request([9], 2, 13)
    node.step([b, c])
    assert planner.slot(c) == slot
    node.step([c, node.request([11], 1, 14)])
    assert not node.cuda_stream.query(), "the cuda_stream was held until here"
    assert node.mismatches() == 0


def test_a_dropped_plan_sends_nothing_that_could_land_behind_the_one_made_inline() -> None:
    node = warm(2)
    planner = node.planner
    a, b = node.request([1, 2], 3, 11), node.request([5, 6], 3, 12)
    hold(node.cuda_stream)
    node.step([a, b])
    planner.stage(planner.batch([b, a]), node.lease)  # made ahead, for the same lease, and abandoned
    planner.set_stream(b, "kv", [8, 9], 6)
    node.step([a, b])
    node.step([a, b])
    assert not node.cuda_stream.query(), "the cuda_stream was held until here"
    assert node.mismatches() == 0


@pytest.mark.parametrize("fenced", [True, False])
def test_another_cuda_stream_may_write_pages_once_the_last_step_that_reads_their_row_has_run(fenced: bool) -> None:
    pool = torch.zeros(4001 * 4, dtype=torch.int64, device=DEVICE)

    def write(lease: Lease) -> None:
        pool.index_fill_(0, lease.write_loc["kv"], 1)

    node, other = warm(2, write), torch.cuda.Stream()
    planner = node.planner
    a, b = node.request([3, 4], 6), node.request([7, 8], 3)
    with torch.cuda.stream(other):
        pool[:4].fill_(0)  # compiled and loaded from here on
    torch.cuda.synchronize()
    hold(node.cuda_stream)
    node.step([a, b])
    done = torch.cuda.Event()
    done.record(node.cuda_stream)
    step = planner.committed_seq()
    ahead = planner.stage(planner.batch([a, b]), node.lease)
    assert planner.last_step(a) == ahead.seq
    planner.drop(ahead)
    assert planner.last_step(a) == step, "the fence is back at the launched step"
    assert planner.release(a) == step  # in stream order its pages are safe now; elsewhere after the step has run
    with torch.cuda.stream(other):
        if fenced:
            other.wait_event(done)
        pool[3 * 4 : 5 * 4].fill_(7)
    assert node.mismatches() == 0
    other.synchronize()
    assert bool((pool[3 * 4 : 5 * 4] == 7).all()) == fenced


def test_a_ring_buffer_cleared_once_its_copies_are_done_is_missed_by_no_later_step() -> None:
    node, draw = warm(), random.Random(3)
    planner, buffers = node.planner, node.planner.stager.buffers
    live = [node.admit(number) for number in range(20)]
    used, cleared = 1, 0  # warming up used the first
    pending: deque[tuple[torch.cuda.Event, int]] = deque()
    for number in range(10_000):
        if draw.random() < 0.05:
            planner.release(live.pop(draw.randrange(len(live))))
            live.append(node.admit(draw.randrange(190)))
        members = draw.sample(live, draw.randint(1, 8))
        for row in members:
            if planner.length(row, "kv") >= 79:
                planner.truncate("kv", row, draw.randint(0, 20), 20)
        if node.step(members):
            done = torch.cuda.Event()
            done.record(node.cuda_stream)
            pending.append((done, used))
            used += 1
        while pending and pending[0][0].query():
            _, place = pending.popleft()
            if used - place <= RING_DEPTH:  # it is not filled anew yet
                buffers[place % RING_DEPTH].zero_()
                cleared += 1
        if number % 100 == 99:
            assert node.mismatches() == 0
    assert cleared > 1000


def forward(lease: Lease) -> torch.Tensor:
    return lease.write_loc["kv"] + lease.columns["state"]


def quiet(done: int, total: int, text: str) -> None:
    """Draw no bar."""


def test_graphs_keep_their_buffers_through_the_largest_flush_a_new_lease_and_another_node() -> None:
    planner = ResidentPlanner(LAYOUT, 8, DEVICE)
    walk = capture_walk(planner, forward, progress=quiet)
    leases = [walk.step(bucket, k).lease for bucket in walk.buckets for k in range(2)]
    before = [planner.store.addresses(), planner.stager.addresses(), *(lease.addresses() for lease in leases)]
    rows = []
    for number in range(8):
        handle = planner.open()
        planner.set_stream(handle, "kv", np.arange(1, 257) + 256 * number, 40)
        planner.set_column("state", [handle], [number + 1])
        rows.append(handle)
    cuda_stream = torch.cuda.current_stream().cuda_stream
    for number in range(3 * RING_DEPTH):
        planner.mark_stale(rows)
        step = walk.step(8, number % 2)
        torch.cuda.synchronize()  # the ring has room: nothing may wait below
        with step_guard(planner):
            stage = planner.stage(planner.batch(rows), step.lease)
            step.launch(stage, cuda_stream)
            planner.commit(stage)
        if number == RING_DEPTH:
            planner.lease(5, buffer_idx=1)
            ResidentPlanner(LAYOUT, 16, DEVICE)
        length = 40 + number
        expected = [(1 + 256 * k + length // 4) * 4 + length % 4 + k + 1 for k in range(8)]
        assert step.output.tolist() == expected
    after = [planner.store.addresses(), planner.stager.addresses(), *(lease.addresses() for lease in leases)]
    assert after == before


def test_captured_replays_with_no_host_write_in_between_go_on_by_themselves() -> None:
    planner = ResidentPlanner(LAYOUT, 1, DEVICE, debug=True)
    captured = CapturedResidentStep(planner, planner.lease(1), forward)
    handle = planner.open()
    planner.set_stream(handle, "kv", [9, 2], 2)
    planner.set_column("state", [handle], [0])
    batch, cuda_stream = planner.batch([handle]), torch.cuda.current_stream().cuda_stream
    lengths, outputs, copies = [], [], []
    for _ in range(5):
        stage = planner.stage(batch, captured.lease)
        copies.append(planner.flush(stage, cuda_stream))
        captured.replay()
        planner.commit(stage)
        lengths.append(captured.lease.lengths["kv"].clone())
        outputs.append(captured.output.clone())
    assert torch.cat(lengths).tolist() == [3, 4, 5, 6, 7]
    assert torch.cat(outputs).tolist() == [38, 39, 8, 9, 10]
    assert copies[1:] == [0, 1, 0, 0]  # the one cell of the page that it enters


def toy(recurrent: bool = False, **settings: Any) -> Engine:
    """Build an engine on the toy model; nothing is captured yet."""
    model = ToyModel(recurrent=recurrent)
    fields = {
        "max_batch": 4,
        "max_requests": 8,
        "recurrent_states": 8,
        "pools": {"kv": PoolConfig(4, 100, 256)},
        "dtype": torch.int64,
        "state_dtype": torch.int64,
        "device": DEVICE,
    }
    return Engine(
        model,
        EngineConfig(**{**fields, **settings}),
        sampler=lambda seats, device: ToySampler(model.vocab_size, seats, device),
    )


def test_an_offload_behind_a_held_step_saves_its_token_before_another_takes_the_pages() -> None:
    engine, host = toy(), toy(planning="host")
    said = []
    for one in (engine, host):
        one.capture()
        first = Request("first", toy_tokens(1, 9, 509), 6)
        one.add(first)
        for _ in range(4):
            one.step()
        one.admission.offload(first)  # every kernel of the way out and back is loaded
        one.run()
        said.append([first.outputs])
    asked = [Request("a", toy_tokens(2, 7, 509), 20) for _ in said]
    a = asked[0]
    engine.add(a)
    engine.step()
    torch.cuda.synchronize()
    assert engine.streams["kv"].length[a.seat] == 7
    hold(torch.cuda.current_stream())
    engine.step()
    assert not torch.cuda.current_stream().query(), "the step is launched and has not run"
    pages = engine.streams["kv"].pages(a.seat)[:2].tolist()
    engine.admission.offload(a)
    copy = engine.admission._offloaded[a][0]
    engine.node.kv["kv"][:, pages] = -5  # whoever gets them writes at once
    torch.cuda.synchronize()  # neither the offload nor that write waited
    assert copy.lengths == {"kv": 8}
    assert copy.pages["kv"].flatten()[-5] == a.outputs[0]  # the second page's last token; its positions lie behind
    engine.run()
    host.add(asked[1])
    host.run()
    assert said[0] == said[1]
    assert a.outputs == asked[1].outputs


def test_capturing_every_bucket_touches_the_sinks_and_nothing_else() -> None:
    engine, clean = toy(recurrent=True), toy(recurrent=True)
    assert engine.planner is not None
    assert engine.node.recurrent is not None
    pool, state = engine.node.kv["kv"], engine.node.recurrent.ssm.view(-1)
    pool[:, 1:] = -3
    state[1:] = -3
    said = []
    for one in (engine, clean):
        one.capture()
        if one is engine:
            assert engine.planner.store.is_zero()
            assert bool((pool[:, 1:] == -3).all())
            assert bool((state[1:] == -3).all())
        requests = [Request(str(k), toy_tokens(k, 40, 509), 30) for k in range(5)]
        for request in requests:
            one.add(request)
        one.run()
        said.append([request.outputs for request in requests])
    assert said[0] == said[1]
