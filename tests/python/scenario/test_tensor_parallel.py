"""Several processes serve one model over gloo, started by torchrun: tokens equal on every rank, every row checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mstar_resident.bench.shapes import NARROW
from mstar_resident.engine.ranks import Leader, LocalGroup
from mstar_resident.models.llama import Llama
from mstar_resident.models.qwen35 import Qwen35
from rank_support import FEW_SLOTS, LLAMA, STEPS, torchrun, traffic

PROGRAM = Path(__file__).parents[1] / "rank_program.py"


def records(ranks: int, model: str, folder: Path, *fault: str) -> list[dict[str, Any]]:
    ran = torchrun(ranks, str(PROGRAM), model, str(folder), *fault)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def alone(model: str) -> list[list[int]]:
    """Serve the same traffic in this process, with the whole model."""
    whole: Any = Llama.seeded(LLAMA) if model == "llama" else Qwen35.seeded(NARROW)
    leader = Leader(whole, FEW_SLOTS[model], LocalGroup())
    leader.capture()
    return [request.outputs for request in traffic(leader, 11, STEPS[model], lambda: None)]


CASES = [("toy", 2), ("toy", 3), ("llama", 2), ("llama", 4), ("hybrid", 2), ("hybrid", 4)]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "ranks"), CASES)
def test_every_rank_says_the_same_over_gloo_on_slots_of_its_own(model: str, ranks: int, tmp_path: Path) -> None:
    first, *others = records(ranks, model, tmp_path)
    assert first["offloads"] > 0
    assert first["displaced"] > 5
    assert sum(map(len, first["outputs"])) > 100
    for other in others:
        for what in ("outputs", "ends", "offloads"):
            assert other[what] == first[what]
        assert len(other["slots"]) == len(first["slots"])
        assert other["slots"] != first["slots"]
    for record in (first, *others):
        assert record["mismatches"] == []
        assert record["rows_checked"] > 60
    if model != "toy":  # whose other sampler hashes what all ranks' shares add up to
        assert first["outputs"] == alone(model)


@pytest.mark.slow
def test_a_wrong_cell_on_one_rank_is_found_on_that_rank(tmp_path: Path) -> None:
    first, last = records(2, "hybrid", tmp_path, "cell")
    assert first["mismatches"] == []
    assert "kv" in last["mismatches"][0]
    assert first["outputs"] == last["outputs"]  # both read the sums that it went into: no comparison of tokens finds it


@pytest.mark.slow
def test_a_slot_on_the_wire_ends_the_group(tmp_path: Path) -> None:
    ran = torchrun(2, str(PROGRAM), "toy", str(tmp_path), "slots")
    assert ran.returncode != 0
    assert "RankMismatchError" in ran.stderr
