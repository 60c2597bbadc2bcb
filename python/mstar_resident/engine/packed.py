"""Small integer buffers at fixed addresses that the host fills and one copy sends."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Signed = npt.NDArray[np.signedinteger]


class PackedBuffers:
    """Lay named vectors out in one block of memory, with a twin that the host writes to.

    On a CPU the twin is the block itself and :meth:`send` has nothing to do. On cuda it is pinned; write to it again
    only once the step that its last copy was for has ended.

    Attributes:
        tensors: per name, cpu|cuda: what a step reads.
        arrays: per name, the same vectors for the host to write to.
    """

    def __init__(self, vectors: Mapping[str, tuple[int, torch.dtype]], device: torch.device) -> None:
        starts, size = [], 0
        for count, dtype in vectors.values():
            starts.append(size)
            size += -(-count * dtype.itemsize // 8) * 8
        self._block = torch.zeros(size, dtype=torch.uint8, device=device)
        cuda = device.type == "cuda"
        self._twin = torch.zeros(size, dtype=torch.uint8, pin_memory=True) if cuda else self._block
        self.tensors: dict[str, Tensor] = {}
        self.arrays: dict[str, Signed] = {}
        self._starts = dict(zip(vectors, starts, strict=True))
        for (name, (count, dtype)), start in zip(vectors.items(), starts, strict=True):
            end = start + count * dtype.itemsize
            self.tensors[name] = self._block[start:end].view(dtype)
            self.arrays[name] = self._twin[start:end].view(dtype).numpy()

    def put(self, name: str, values: Signed, padding: int) -> None:
        """Write a value per row, and ``padding`` to the rows that the step leaves over."""
        array = self.arrays[name]
        array[: len(values)] = values
        array[len(values) :] = padding

    def send(self, last: str = "", count: int = 0) -> None:
        """Copy what was written to the device, on the current cuda_stream; up to ``count`` values of ``last``, or all.

        Waits for nothing.
        """
        if self._twin is not self._block:
            end = self._starts[last] + count * self.tensors[last].itemsize if last else len(self._block)
            self._block[:end].copy_(self._twin[:end], non_blocking=True)


def send_rows(rows: Signed, device: torch.device) -> Tensor:
    """Return a device's copy of an array that changes, on the current cuda_stream; waits for nothing."""
    return torch.from_numpy(rows).pin_memory().to(device, non_blocking=True)
