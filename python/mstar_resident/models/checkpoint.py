"""Where a decoder's weights come from: a safetensors directory, a mapping of tensors, or a seed."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from mstar_resident.models.base import CheckpointError

Init = Literal["matrix", "residual", "embedding", "ones", "signs", "small", "flips", "decay", "step"]

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


class WeightSource(Protocol):
    """Give a model's tensors by their names in a checkpoint."""

    def get(self, name: str, shape: tuple[int, ...], init: Init = "matrix") -> Tensor:
        """Return the tensor, any float dtype, on any device; ``init`` says how a seeded source draws it."""

    def has(self, name: str) -> bool:
        """Return whether the source can give ``name``."""


class MappingWeights:
    """Give tensors out of a mapping, such as another implementation's ``state_dict()``.

    Raises CheckpointError: a name is missing or has another shape.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def get(self, name: str, shape: tuple[int, ...], init: Init = "matrix") -> Tensor:
        """Return the tensor of that name."""
        if name not in self._tensors:
            raise CheckpointError.of("tensor", expected=name, got=None)
        return _of_shape(self._tensors[name], shape, name)

    def has(self, name: str) -> bool:
        """Return whether the mapping has it."""
        return name in self._tensors


class SeededWeights:
    """Draw every tensor from a seed and its name, so that neither order nor a subset changes a tensor.

    The draws are of the device's own generator: equal seeds give equal weights on one device, not across devices.
    The layers add to the embeddings about as much as those are ("residual"), so that rounding errors stay small, and
    the last norm turns the sign of half its channels ("signs", "flips"), so that a decoder with tied embeddings does
    not repeat its last token.
    """

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        self._seed = seed
        self._device = torch.device(device)

    def get(self, name: str, shape: tuple[int, ...], init: Init = "matrix") -> Tensor:
        """Return fp32 values of ``init``'s distribution."""
        generator = torch.Generator(self._device)
        generator.manual_seed(zlib.crc32(f"{self._seed} {name}".encode()))  # the host generator keeps 32 bits

        def draw(mean: float, std: float) -> Tensor:
            return torch.randn(shape, generator=generator, device=self._device).mul_(std).add_(mean)

        def uniform(low: float, high: float) -> Tensor:
            return torch.rand(shape, generator=generator, device=self._device).mul_(high - low).add_(low)

        match init:
            case "matrix":
                return draw(0.0, math.prod(shape[1:]) ** -0.5)
            case "residual":
                return draw(0.0, 0.006 * math.prod(shape[1:]) ** -0.5)
            case "embedding":
                return draw(0.0, 0.02)
            case "small":
                return draw(0.0, 0.1)
            case "ones":
                return draw(1.0, 0.1)
            case "signs" | "flips":
                sign = draw(0.0, 1.0).sign_()
                return sign if init == "signs" else sign - 1.0
            case "decay":
                return uniform(0.01, 16.0).log_()
            case "step":
                return uniform(-6.0, 0.0)

    def has(self, name: str) -> bool:
        """Return True: every name can be drawn."""
        return True


class DirectoryWeights:
    """Give tensors out of the safetensors files of a directory, memory mapped.

    Raises CheckpointError: no such files, a malformed one, or a tensor that is missing, not float or of another shape.
    """

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        files = sorted(self.directory.glob("*.safetensors"))
        if not files:
            raise CheckpointError.of("directory", expected="*.safetensors", got=str(self.directory))
        self._entries: dict[str, tuple[Tensor, dict[str, Any]]] = {}
        for file in files:
            data, header = read_safetensors(file)
            self._entries.update((name, (data, entry)) for name, entry in header.items())

    def get(self, name: str, shape: tuple[int, ...], init: Init = "matrix") -> Tensor:
        """Return the tensor of that name, on the host; a view of the file."""
        if name not in self._entries:
            raise CheckpointError.of("tensor", expected=name, got=None, directory=str(self.directory))
        data, entry = self._entries[name]
        dtype = DTYPES.get(entry["dtype"])
        if dtype is None:
            raise CheckpointError.of("dtype", expected=sorted(DTYPES), got=entry["dtype"], tensor=name)
        begin, end = entry["data_offsets"]
        stored = data[begin:end]
        if stored.storage_offset() % dtype.itemsize:
            stored = stored.clone()
        return _of_shape(stored.view(dtype).view(entry["shape"]), shape, name)

    def has(self, name: str) -> bool:
        """Return whether a file of the directory has it."""
        return name in self._entries


def read_safetensors(file: Path) -> tuple[Tensor, dict[str, Any]]:
    """Return the file's data as ``uint8[n]``, cpu, memory mapped, and its header by tensor name.

    Raises CheckpointError: the file is too short for its header, or an entry lies outside it.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        header_bytes = int.from_bytes(stream.read(8), "little")
        if size < 8 or 8 + header_bytes > size:
            raise CheckpointError.of("file size", expected=f"at least {8 + header_bytes}", got=size, file=str(file))
        header: dict[str, Any] = json.loads(stream.read(header_bytes))
    header.pop("__metadata__", None)
    data_bytes = size - 8 - header_bytes
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        if not 0 <= begin <= end <= data_bytes:
            raise CheckpointError.of("data_offsets", expected=f"0..{data_bytes}", got=(begin, end), tensor=name)
    mapped = torch.from_file(str(file), shared=False, size=size, dtype=torch.uint8)
    return mapped[8 + header_bytes :], header


def _of_shape(tensor: Tensor, shape: tuple[int, ...], name: str) -> Tensor:
    if tuple(tensor.shape) != shape:
        raise CheckpointError.of("shape", expected=shape, got=tuple(tensor.shape), tensor=name)
    return tensor
