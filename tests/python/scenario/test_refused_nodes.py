"""A node that is refused, at build or at capture, behaves exactly as without the library."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch

from mstar_resident import ResidentPlanner, _core
from mstar_resident.engine import Engine, EngineConfig, PoolConfig, Request, Sampling
from mstar_resident.engine.arm import HostArm
from mstar_resident.engine.config import Planning
from mstar_resident.engine.node import Node
from mstar_resident.engine.request import State
from mstar_resident.engine.resident_arm import ResidentArm
from mstar_resident.engine.toy import ToyModel, ToySampler
from mstar_resident.resources import (
    Attention,
    HostPlanned,
    KVPool,
    Positions,
    RecurrentPool,
    ResidentResource,
    WalkDeclaration,
)

POOL = ("other", 16, 99, 999)

REFUSED: dict[str, tuple[ResidentResource, str]] = {
    "a resource that has not opted in": (HostPlanned("codec"), "has not opted in"),
    "a pool shared by nodes": (KVPool(*POOL, nodes=("a", "b")), "the pool is shared by nodes a, b"),
    "a pool read across nodes": (KVPool(*POOL, read_across_nodes=True), "the pool is read across nodes"),
    "a pool without a sink": (KVPool(*POOL, sink=False), "the pool has no sink page for padding rows"),
    "a LoRA pool": (KVPool(*POOL, lora=True), "LoRA pools are host-planned"),
    "the MLA layout": (KVPool(*POOL, layout="mla"), "the MLA layout is not supported"),
    "a sliding-window pool": (KVPool(*POOL, window=512), "sliding windows are not supported, the pool's is 512 tokens"),
    "a bounded or ring KV": (
        KVPool(*POOL, bound=64),
        "bounded and ring KV are not supported, the pool's bound is 64 tokens",
    ),
    "block positions": (Positions("blocks", "kv", kind="block"), "block positions are not supported"),
    "Mamba2": (
        RecurrentPool("ssm", kind="mamba2"),
        "recurrent layers of kind mamba2 are not supported, only gdn",
    ),
    "dense attention": (Attention("dense", "kv", kind="dense"), "dense attention is not supported"),
    "MLA attention": (Attention("mla", "kv", kind="mla"), "MLA attention is not supported"),
    "sliding-window attention": (
        Attention("near", "kv", window=9),
        "sliding windows are not supported, the attention's is 9 tokens",
    ),
    "a context in the query's pool": (
        Attention("cross", "kv", context="kv"),
        "cross attention whose context lies in the query's own pool, kv",
    ),
}

PLAIN = {name: WalkDeclaration("decode", name) for name in ("kv", "positions", "recurrent", "sampler")}


def declare(resource: str, **fields: Any) -> WalkDeclaration:
    return WalkDeclaration("decode", resource, **fields)


NOT_CAPTURED: dict[str, tuple[WalkDeclaration, str]] = {
    "more than one label": (declare("kv", labels=("main", "draft")), "more than one label: draft, main"),
    "mixed spans": (declare("kv", spans=(0, 1)), "spans are neither all 1 nor all 0: 0, 1"),
    "forks": (declare("kv", forks=True), "a step forks a stream"),
    "retention": (declare("kv", retention=True), "a step releases tokens (retention)"),
    "an attention sink": (declare("kv", attention_sink=True), "a step keeps an attention sink"),
    "explicit positions": (declare("positions", explicit_positions=True), "a step sets positions explicitly"),
    "commit=False": (declare("kv", commit=False), "a step does not commit (commit=False)"),
    "positions of several streams": (
        declare("positions", labels=("main", "image")),
        "more than one label: image, main",
    ),
    "positions of another stream": (
        declare("positions", labels=("image",)),
        "positions are of image, the pool that they follow, kv, of main",
    ),
    "positions that stand still": (
        declare("positions", spans=(0,)),
        "positions do not advance with the pool that they follow, kv",
    ),
    "a recurrent pool at span 0": (declare("recurrent", spans=(0,)), "a recurrent pool at span 0"),
}


def serve(engine: Engine) -> tuple[list[list[int]], list[torch.Tensor]]:
    """Serve the same requests, short of pages and with turns; return their tokens and the bytes of all pools."""
    rng = np.random.default_rng(4)
    requests = [
        Request(
            str(i),
            rng.integers(0, 509, int(rng.integers(1, 20))),
            int(rng.integers(3, 24)),
            Sampling(seed=i),
            keep=i % 3 == 0,
        )
        for i in range(9)
    ]
    for request in requests:
        engine.add(request)
    for _ in range(400):
        for request in [request for request in requests if request.state is State.IDLE]:
            if request.turn:
                engine.abort(request, "closed")
            else:
                engine.extend(request, np.array([5, 6, 7]), 4)
        if not engine.step():
            break
    assert all(request.reason for request in requests)
    node = engine.node
    assert node.recurrent is not None
    return [r.outputs for r in requests], [node.kv["kv"][:, 1:], node.recurrent.ssm[:, 1:]]


def build(planning: Planning = "auto", **arguments: Any) -> Engine:
    config = EngineConfig(
        max_batch=3,
        max_requests=7,
        recurrent_states=7,
        token_budget=24,
        min_chunk=8,
        pools={"kv": PoolConfig(4, 24, 64)},
        planning=planning,
        dtype=torch.int64,
        state_dtype=torch.int64,
    )
    return Engine(
        ToyModel(recurrent=True), config, sampler=lambda seats, device: ToySampler(509, seats, device), **arguments
    )


def behaves_as_without(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve with every call into the planner made to fail, and compare tokens and bytes with the knob off."""
    tokens, pools = serve(build("off"))
    assert engine.planner is None
    assert type(engine.arm) is HostArm
    for name in dir(_core.Planner):
        if not name.startswith("__"):
            monkeypatch.setattr(ResidentPlanner, name, None, raising=False)
    monkeypatch.setattr(ResidentArm, "decode", None)
    mine, bytes_of = serve(engine)
    assert mine == tokens
    assert all(torch.equal(a, b) for a, b in zip(pools, bytes_of, strict=True))
    assert engine.counters.offloads > 0
    assert engine.counters.resident_steps == engine.counters.staged_ahead == 0


@pytest.mark.parametrize("what", REFUSED)
def test_a_node_that_is_refused_at_build_behaves_as_without_the_library(
    what: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource, reason = REFUSED[what]
    with caplog.at_level(logging.INFO, "mstar_resident"):
        engine = build(resources=[resource])
        engine.capture()
    assert engine.refusal is not None
    assert (engine.refusal.resource, engine.refusal.reason) == (resource.name, reason)
    assert [r.getMessage() for r in caplog.records] == [f"decoder: host-planned, because of {resource.name}: {reason}"]
    behaves_as_without(engine, monkeypatch)


@pytest.mark.parametrize("what", NOT_CAPTURED)
def test_a_node_that_is_refused_at_capture_behaves_as_without_the_library(
    what: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    declaration, reason = NOT_CAPTURED[what]
    walk = {**PLAIN, declaration.resource: declaration}
    monkeypatch.setattr(Node, "declarations", lambda node: list(walk.values()))
    engine = build()
    assert engine.planner is not None
    with caplog.at_level(logging.INFO, "mstar_resident"):
        engine.capture()
    assert engine.refusal is not None
    assert (engine.refusal.resource, engine.refusal.reason) == (declaration.resource, reason)
    assert [r.getMessage() for r in caplog.records] == [
        f"decoder: host-planned, because of {declaration.resource}: {reason}"
    ]
    behaves_as_without(engine, monkeypatch)


@pytest.mark.parametrize("how", ["argument", "environment", "no walk"])
def test_a_node_that_is_off_behaves_as_without_the_library(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "environment":
        monkeypatch.setenv("MSTAR_RESIDENT_PLANNING", "off")
    planning: dict[str, Planning] = {"argument": "off", "environment": "auto", "no walk": "host"}
    engine = build(planning[how])
    engine.capture()
    assert engine.refusal is not None
    assert (
        str(engine.refusal)
        == {
            "argument": "resident_planning: it is off",
            "environment": "resident_planning: it is off",
            "no walk": "resident_walks: no walk opted in",
        }[how]
    )
    monkeypatch.delenv("MSTAR_RESIDENT_PLANNING", raising=False)
    behaves_as_without(engine, monkeypatch)


def test_the_same_node_is_resident_where_nothing_refuses() -> None:
    engine = build()
    engine.capture()
    tokens, _ = serve(engine)
    assert engine.counters.resident_steps > 20
    assert tokens == serve(build("off"))[0]
