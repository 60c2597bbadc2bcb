"""Sources of weights: a safetensors directory read without the library, mappings, seeds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mstar_resident.models.base import CheckpointError
from mstar_resident.models.checkpoint import DirectoryWeights, MappingWeights, SeededWeights

safetensors = pytest.importorskip("safetensors.torch")


def test_a_directory_gives_what_the_library_wrote(tmp_path: Path) -> None:
    tensors = {
        "a": torch.randn(3, 5),
        "b": torch.randn(7).bfloat16(),
        "c": torch.randn(2, 2, 2).half(),
        "d": torch.randn(1).double(),
    }
    safetensors.save_file({n: tensors[n] for n in "ab"}, tmp_path / "model-1.safetensors", metadata={"format": "pt"})
    safetensors.save_file({n: tensors[n] for n in "cd"}, tmp_path / "model-2.safetensors")
    source = DirectoryWeights(tmp_path)
    for name, tensor in tensors.items():
        got = source.get(name, tuple(tensor.shape))
        assert got.dtype == tensor.dtype
        assert torch.equal(got, tensor)
    assert source.has("a")
    assert not source.has("e")


def test_a_missing_tensor_shape_or_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="safetensors"):
        DirectoryWeights(tmp_path)
    safetensors.save_file({"a": torch.zeros(2), "i": torch.zeros(2, dtype=torch.int8)}, tmp_path / "m.safetensors")
    source = DirectoryWeights(tmp_path)
    with pytest.raises(CheckpointError, match="missing"):
        source.get("missing", (2,))
    with pytest.raises(CheckpointError, match=r"\(3,\)") as wrong:
        source.get("a", (3,))
    assert wrong.value.got == (2,)
    with pytest.raises(CheckpointError, match="I8"):
        source.get("i", (2,))
    with pytest.raises(CheckpointError, match="b"):
        MappingWeights({"a": torch.zeros(2)}).get("b", (2,))


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    safetensors.save_file({"a": torch.zeros(64)}, file)
    whole = file.read_bytes()
    for size in (4, 20, len(whole) - 1):
        file.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            DirectoryWeights(tmp_path)


def test_a_seeded_tensor_depends_on_seed_and_name_alone() -> None:
    source = SeededWeights(3)
    first = source.get("x", (4, 4))
    source.get("y", (9,))
    assert torch.equal(source.get("x", (4, 4)), first)
    assert not torch.equal(source.get("y", (4, 4)), first)
    assert not torch.equal(SeededWeights(4).get("x", (4, 4)), first)
