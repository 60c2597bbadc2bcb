"""Buffers at fixed addresses, with guard cells around them where asked for."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from mstar_resident.errors import InvariantError

#: Cells before and after a buffer that a debug planner watches.
GUARD_CELLS = 64
#: What a guard cell holds: no page, length or column that a test would write.
GUARD = 0x5AA5


class Guarded:
    """Allocate a filled buffer, with poisoned guard cells on both sides when ``guarded``.

    Attributes:
        name: what the buffer is, for error messages.
        tensor: of the shape and dtype asked for, contiguous; its owner keeps it for life.
    """

    __slots__ = ("_flat", "_guard", "name", "tensor")

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        guarded: bool,
        *,
        fill: int = 0,
        pin_memory: bool = False,
    ) -> None:
        self.name = name
        cells = 1
        for size in shape:
            cells *= size
        guard = GUARD_CELLS if guarded else 0
        self._flat = torch.full((cells + 2 * guard,), GUARD, dtype=dtype, device=device, pin_memory=pin_memory)
        self.tensor: Tensor = self._flat[guard : guard + cells].fill_(fill).view(shape)
        self._guard = self._flat[:guard].clone()

    def written(self) -> list[tuple[int, int]]:
        """Return (cell, value) of every guard cell that was written; cells count from the buffer's first.

        Waits for the device.
        """
        guard, cells = len(self._guard), self.tensor.numel()
        if not guard:
            return []
        sides = ((self._flat[:guard], -guard), (self._flat[guard + cells :], cells))
        if all(torch.equal(side, self._guard) for side, _ in sides):
            return []
        return [
            (first + int(at), int(side[at])) for side, first in sides for at in (side != self._guard).nonzero()[:, 0]
        ]


def check_guards(buffers: Iterable[Guarded]) -> None:
    """Check the guard cells of buffers. Waits for the device.

    Raises:
        InvariantError: something wrote outside one.
    """
    for buffer in buffers:
        if buffer.written():
            raise InvariantError(f"guard cells of {buffer.name} were written", buffer=buffer.name)
