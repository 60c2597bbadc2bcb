"""The memory plan of ranks that share a decoder: what they then really hold, and what arithmetic says of the 27B."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mstar_resident.bench.memory_plan import RankMemory, memory_plan
from mstar_resident.bench.shapes import NARROW
from mstar_resident.cli import main
from mstar_resident.engine.config import EngineConfig, PoolConfig
from mstar_resident.engine.engine import Engine
from mstar_resident.models.qwen35 import SHAPES
from mstar_resident.models.shard import LoneShard
from mstar_resident.models.sharded import ShardedQwen35

CONFIG = EngineConfig(max_batch=5, max_requests=9, recurrent_states=7, pools={"kv": PoolConfig(8, 40, 4096)})
PRODUCTION = replace(
    CONFIG,
    max_batch=128,
    max_requests=128,
    recurrent_states=128,
    pools={"kv": PoolConfig(128, 2047, 262_144)},
    dtype=torch.bfloat16,
)


def tensors(held: Any) -> Iterator[Tensor]:
    if isinstance(held, Tensor):
        yield held
    elif isinstance(held, list | tuple):
        for item in held:
            yield from tensors(item)
    elif is_dataclass(held):
        for field in fields(held):
            yield from tensors(getattr(held, field.name))


def allocated(*held: Any) -> int:
    """Return the bytes of memory behind tensors, counted once; a view counts with all that it keeps alive."""
    storages = [tensor.untyped_storage() for tensor in tensors(list(held))]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@pytest.mark.parametrize("config", [NARROW, replace(NARROW, tie_embeddings=True), replace(NARROW, kv_heads=1)])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_plan_is_what_a_rank_of_the_narrow_shape_allocates(config: Any, ranks: int) -> None:
    plan = memory_plan(config, ranks, CONFIG)
    assert [share.rank for share in plan] == list(range(ranks))
    for share in plan:
        part = ShardedQwen35.seeded_part(config, LoneShard(share.rank, ranks))
        engine = Engine(part, CONFIG)
        node, planner = engine.node, engine.planner
        assert planner is not None
        assert share.weight_bytes == allocated(part._embeddings, part._layers, part._norm, part._head)
        assert share.kv_bytes == allocated(node.kv["kv"]) == share.kv_bytes_per_page * 41
        assert share.kv_bytes_per_page == share.kv_bytes_per_token * 8
        assert share.state_bytes == allocated(node.recurrent) == share.state_bytes_per_request * 8
        assert share.store_bytes == allocated(planner.store.narrow, *planner.store.tables.values())
        assert share.heads[1] * config.head_dim == part._layers[3].mixer.out.shape[1]
        assert share.kv_heads[1] == node.kv["kv"].shape[4]
        assert (share.key_heads[1], share.value_heads[1]) == (16 // ranks, 48 // ranks)


def arithmetic(name: str, ranks: int) -> dict[str, int]:
    """Return one rank's bytes by the formulas of the layers, for shapes of untied embeddings."""
    c, kv = SHAPES[name], max(1, SHAPES[name].kv_heads // ranks)
    heads, keys, values, mlp = (n // ranks for n in (c.heads, c.key_heads, c.value_heads, c.intermediate_size))
    channels = (2 * keys + values) * 128
    attention = c.hidden_size * 256 * (3 * heads + 2 * kv)
    delta = c.hidden_size * (channels + 2 * values * 128 + 2 * values) + channels * 4
    fp32 = c.layers * 2 * c.hidden_size + c.hidden_size
    full = c.layers // 4
    fp32 += full * (heads + kv) * 256 + (c.layers - full) * (2 * values + 128)
    matrices = full * attention + (c.layers - full) * delta + c.layers * 3 * c.hidden_size * mlp
    matrices += 248_320 * c.hidden_size + 248_320 // ranks * c.hidden_size
    return {
        "weight_bytes": 2 * matrices + 4 * fp32,
        "kv_bytes_per_token": full * 2 * kv * 256 * 2,
        "state_bytes_per_request": (c.layers - full) * (values * 128 * 128 * 4 + channels * 3 * 2),
    }


@pytest.mark.parametrize(("name", "ranks"), [("27b", 4), ("27b", 2), ("27b", 8), ("9b", 2), ("9b", 1)])
def test_the_plan_of_a_real_shape_is_what_arithmetic_gives(name: str, ranks: int) -> None:
    for share in memory_plan(SHAPES[name], ranks, PRODUCTION):
        record = share.record()
        assert {figure: record[figure] for figure in arithmetic(name, ranks)} == arithmetic(name, ranks)
        assert share.store_bytes == 257 * (4 * 8 + 2047 * 4)


def test_each_of_four_ranks_of_the_27b_has_one_kv_head_and_the_heads_that_read_it() -> None:
    plan: list[RankMemory] = memory_plan(SHAPES["27b"], 4, PRODUCTION)
    assert [(s.heads, s.kv_heads, s.key_heads, s.value_heads) for s in plan] == [
        ((6 * rank, 6), (rank, 1), (4 * rank, 4), (12 * rank, 12)) for rank in range(4)
    ]
    assert [share.kv_heads for share in memory_plan(SHAPES["27b"], 8, PRODUCTION)] == [
        (rank // 2, 1) for rank in range(8)
    ]


def test_the_command_prints_a_row_a_rank_and_leaves_a_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "memory.json"
    assert main(["bench", "memory", "--shape", "27b", "--ranks", "4", "--json", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "27b on 4 ranks, bf16" in lines[0]
    assert [line.split()[:5] for line in lines[2:]] == [
        ["0", "0-5", "0", "0-3", "0-11"],
        ["1", "6-11", "1", "4-7", "12-23"],
        ["2", "12-17", "2", "8-11", "24-35"],
        ["3", "18-23", "3", "12-15", "36-47"],
    ]
    cases = json.loads(file.read_text())["cases"]
    assert [case["rank"] for case in cases] == [0, 1, 2, 3]
    assert cases[0]["total_bytes"] == memory_plan(SHAPES["27b"], 4, PRODUCTION)[0].total_bytes


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--shape", "70b"], "--shape: expected one of 0.8b"),
        (["--ranks", "0"], "--ranks: expected 1 to 64, got 0"),
        (["--ranks", "3"], "kv_heads: expected a multiple of 3 ranks, or a part of them, got 4"),
        (["--dtype", "fp8"], "--dtype: expected one of bf16, fp32, got 'fp8'"),
        (["--rows", "0"], "max_batch: expected an int"),
    ],
)
def test_what_cannot_be_planned_ends_in_exit_two(
    wrong: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "memory", *wrong]) == 2
    assert said in capsys.readouterr().err
