"""The fixed ring of host buffers that a flush copies from."""

from __future__ import annotations

import torch
from torch import Tensor

from mstar_resident.errors import LayoutError
from mstar_resident.guarded import Guarded

#: A buffer is reused after its event; eight deep, a host seven flushes ahead of the device never waits.
RING_DEPTH = 8


class Stager:
    """Hold ``RING_DEPTH`` buffers, pinned for a CUDA device, each as large as the largest flush.

    The native planner writes into them and owns their events; this object only keeps them alive.
    They are allocated once, at build: a larger flush than ``bytes_each`` cannot occur, since it is
    sized by B whole rows, the slots and the cells of B rows.

    Attributes:
        buffers: int64[bytes_each / 8] each, cpu, contiguous, pinned for CUDA; owned by the planner.
        guarded: the same with their guard cells, which only a debug ring has.
    """

    __slots__ = ("buffers", "bytes_each", "guarded")

    def __init__(self, bytes_each: int, cuda: bool, debug: bool = False) -> None:
        if bytes_each <= 0 or bytes_each % 8:
            raise LayoutError.of("bytes of a ring buffer", expected="a positive multiple of 8", got=bytes_each)
        self.bytes_each = bytes_each
        cells, cpu = (bytes_each // 8,), torch.device("cpu")
        self.guarded = tuple(
            Guarded(f"ring buffer {number}", cells, torch.int64, cpu, debug, pin_memory=cuda)
            for number in range(RING_DEPTH)
        )
        self.buffers: tuple[Tensor, ...] = tuple(buffer.tensor for buffer in self.guarded)

    def addresses(self) -> list[int]:
        """Return the buffers' addresses."""
        return [buffer.data_ptr() for buffer in self.buffers]

    @property
    def bytes(self) -> int:
        """Bytes of the whole ring."""
        return self.bytes_each * len(self.buffers)
