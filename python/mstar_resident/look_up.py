"""What the prologue looks up by a row's column."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LookUp:
    """Name a vector on the device that a row's column points into, such as the last drawn tokens by seat."""

    column: str
    """A named column that is no position."""
    source: Tensor
    """[n], cpu|cuda, contiguous; every value of the column is below n. Padding rows look up element 0."""
    out: Tensor
    """[b], of the same dtype and device, contiguous: overwritten by every prologue with ``source[column]``."""
