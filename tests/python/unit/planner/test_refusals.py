"""Refusals at build are data with one INFO line; at capture they are CaptureRefused with the reason."""

from __future__ import annotations

import logging

import pytest

from mstar_resident import CaptureRefused, Refusal, ResidentPlanner, planning_mode
from mstar_resident.errors import LayoutError
from mstar_resident.resources import (
    Attention,
    HostPlanned,
    KVPool,
    Positions,
    RecurrentPool,
    ResidentResource,
    WalkDeclaration,
    check_walk,
    lay_out,
)
from mstar_resident.resources.attention import host_plan_free

KV = KVPool("kv", page_size=128, pool_pages=2047, max_seq_len=262_144)
CONTEXT = KVPool("context", 128, 512, 1500, mode="read-only")
HYBRID: list[ResidentResource] = [KV, Positions("positions", "kv"), RecurrentPool("gdn_state"), Attention("attn", "kv")]
POOL = ("kv", 128, 99, 999)

REFUSED: dict[str, tuple[ResidentResource, str]] = {
    "a resource that has not opted in": (HostPlanned("codec"), "codec: has not opted in"),
    "a pool shared by nodes": (KVPool(*POOL, nodes=("a", "b")), "kv: the pool is shared by nodes a, b"),
    "a pool read across nodes": (KVPool(*POOL, read_across_nodes=True), "kv: the pool is read across nodes"),
    "a pool without a sink": (KVPool(*POOL, sink=False), "kv: the pool has no sink page"),
    "a LoRA pool": (KVPool(*POOL, lora=True), "kv: LoRA pools"),
    "the MLA layout": (KVPool(*POOL, layout="mla"), "kv: the MLA layout"),
    "a sliding-window pool": (KVPool(*POOL, window=512), "kv: sliding windows are not supported, the pool's is 512"),
    "a ring KV": (KVPool(*POOL, bound=64), "kv: bounded and ring KV are not supported, the pool's bound is 64"),
    "block positions": (Positions("positions", "kv", kind="block"), "positions: block positions"),
    "Mamba2": (RecurrentPool("ssm", kind="mamba2"), "ssm: recurrent layers of kind mamba2"),
    "a recurrent pool without a sink": (RecurrentPool("ssm", sink=False), "ssm: the pool has no sink index"),
    "a shared recurrent pool": (RecurrentPool("ssm", nodes=("a", "b")), "ssm: the pool is shared by nodes"),
    "dense attention": (Attention("attn", "kv", kind="dense"), "attn: dense attention"),
    "MLA attention": (Attention("attn", "kv", kind="mla"), "attn: MLA attention"),
    "sliding-window attention": (Attention("attn", "kv", window=512), "attn: sliding windows"),
    "a context in the query's pool": (Attention("attn", "kv", context="kv"), "attn: cross attention whose context"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_refusal_is_data_and_one_line(what: str, caplog: pytest.LogCaptureFixture) -> None:
    resource, reason = REFUSED[what]
    with caplog.at_level(logging.INFO, "mstar_resident"):
        built = ResidentPlanner.build([resource], 4, name="talker", walks=["decode"])
    assert isinstance(built, Refusal)
    assert str(built).startswith(reason)
    assert [record.getMessage() for record in caplog.records] == [f"talker: host-planned, because of {built}"]


def test_a_node_that_builds_logs_slots_cells_split_size_and_walks(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "mstar_resident"):
        planner = ResidentPlanner.build(HYBRID, 128, name="talker", walks=["decode", "draft"])
    assert isinstance(planner, ResidentPlanner)
    assert [record.getMessage() for record in caplog.records] == [
        "talker: resident planning with 256 slots, 2050 cells a row (3 narrow cells + 2047 kv pages), 2.0 MiB, "
        "walks decode, draft"
    ]


def test_a_node_without_walks_or_with_the_knob_off_stays_host_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ResidentPlanner.build(HYBRID, 4) == Refusal("resident_walks", "no walk opted in")
    off = Refusal("resident_planning", "it is off")
    assert ResidentPlanner.build(HYBRID, 4, walks=["decode"], resident_planning="off") == off
    monkeypatch.setenv("MSTAR_RESIDENT_PLANNING", "off")
    assert ResidentPlanner.build(HYBRID, 4, walks=["decode"]) == off
    assert planning_mode("auto") == "auto"


def test_an_unknown_planning_mode_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LayoutError, match="resident_planning: expected auto or off, got 'on'"):
        planning_mode("on")
    monkeypatch.setenv("MSTAR_RESIDENT_PLANNING", "yes")
    with pytest.raises(LayoutError, match="MSTAR_RESIDENT_PLANNING: expected auto or off, got 'yes'"):
        planning_mode()


def declare(resource: str, **fields: object) -> WalkDeclaration:
    return WalkDeclaration("decode", resource, **fields)  # type: ignore[arg-type]


PLAIN = {name: declare(name) for name in ("kv", "positions", "gdn_state")}
NOT_CAPTURED: dict[str, tuple[WalkDeclaration, str]] = {
    "two labels": (declare("kv", labels=("main", "draft")), "more than one label: draft, main"),
    "no label": (declare("kv", labels=()), "names no label"),
    "mixed spans": (declare("kv", spans=(0, 1)), "spans are neither all 1 nor all 0: 0, 1"),
    "spans of 4": (declare("kv", spans=(4,)), "spans are neither all 1 nor all 0: 4"),
    "forks": (declare("kv", forks=True), "forks a stream"),
    "retention": (declare("kv", retention=True), "releases tokens"),
    "an attention sink": (declare("kv", attention_sink=True), "keeps an attention sink"),
    "explicit positions": (declare("positions", explicit_positions=True), "sets positions explicitly"),
    "commit=False": (declare("kv", commit=False), "does not commit"),
    "an append pool at span 0": (declare("kv", spans=(0,)), "the pool is append, the walk's span is 0"),
    "a recurrent pool at span 0": (declare("gdn_state", spans=(0,)), "a recurrent pool at span 0"),
    "positions of another stream": (declare("positions", labels=("draft",)), "positions are of draft"),
    "positions that stand": (declare("positions", spans=(0,)), "positions do not advance"),
}


@pytest.mark.parametrize("what", NOT_CAPTURED)
def test_a_walk_that_cannot_be_resident_is_refused_with_the_reason(what: str) -> None:
    declaration, reason = NOT_CAPTURED[what]
    declarations = {**PLAIN, declaration.resource: declaration}
    with pytest.raises(CaptureRefused, match=reason) as refused:
        check_walk(HYBRID, "decode", list(declarations.values()))
    assert (refused.value.walk, refused.value.resource) == ("decode", declaration.resource)


def test_positions_over_a_pool_that_is_only_read_are_refused() -> None:
    declarations = [declare("context", spans=(0,)), declare("positions")]
    with pytest.raises(CaptureRefused, match="which the walk only reads"):
        check_walk([CONTEXT, Positions("positions", "context")], "decode", declarations)


def test_a_walk_must_declare_every_resource_that_keeps_cells() -> None:
    with pytest.raises(CaptureRefused, match="does not declare what its steps do"):
        check_walk(HYBRID, "decode", [PLAIN["kv"], PLAIN["positions"]])
    with pytest.raises(CaptureRefused, match="does not declare the pool that it reads, kv"):
        check_walk([Attention("attn", "kv")], "decode", [])
    check_walk(HYBRID, "decode", list(PLAIN.values()))


@pytest.mark.parametrize("wrong", [WalkDeclaration("prefill", "kv"), declare("elsewhere"), PLAIN["kv"]])
def test_a_declaration_of_another_walk_or_resource_is_an_error(wrong: WalkDeclaration) -> None:
    with pytest.raises(LayoutError):
        check_walk(HYBRID, "decode", [*PLAIN.values(), wrong])


def test_one_attention_that_needs_a_host_plan_makes_every_bucket_need_it() -> None:
    assert host_plan_free(HYBRID)
    assert not host_plan_free([*HYBRID, Attention("cross", "kv", context="context", host_plan=True)])


def test_resources_lay_out_a_row_in_their_order() -> None:
    layout = lay_out([KV, CONTEXT, Positions("positions", "kv"), RecurrentPool("gdn_state")])
    assert [table.name for table in layout.tables] == ["kv", "context"]
    assert [table.span for table in layout.tables] == [1, 0]
    assert [column.name for column in layout.columns] == ["position_offset", "recurrent_index"]
    with pytest.raises(LayoutError, match="each resource named once"):
        lay_out([KV, KV])


def test_the_adapters_are_resources() -> None:
    for resource in (*HYBRID, HostPlanned("codec")):
        assert isinstance(resource, ResidentResource)
    assert HostPlanned("codec").capture_refusal({}) == "has not opted in"
    assert not HostPlanned("codec").tables()
    assert not HostPlanned("codec").columns()
