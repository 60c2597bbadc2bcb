"""The adapter of positions: one column, the offset from the stored length of the pool it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mstar_resident.layout import Column, KVTable
from mstar_resident.resources.base import WalkDeclaration


@dataclass(frozen=True, slots=True)
class Positions:
    """Describe positions that are a KV pool's stored length plus an offset, which may be negative."""

    name: str
    pool: str
    kind: Literal["offset", "block"] = "offset"
    column: str = "position_offset"

    def refusal(self) -> str | None:
        """Return why positions cannot be resident, or None."""
        return "block positions are not supported" if self.kind != "offset" else None

    def tables(self) -> Sequence[KVTable]:
        """Return nothing."""
        return ()

    def columns(self) -> Sequence[Column]:
        """Return the offset column."""
        return (Column(self.column, "position", self.pool),)

    def capture_refusal(self, declarations: Mapping[str, WalkDeclaration]) -> str | None:
        """Return a reason if positions are not one stream with their pool, both appending."""
        declared, pool = declarations.get(self.name), declarations.get(self.pool)
        if declared is None or pool is None:
            return f"the walk does not declare the pool that positions follow, {self.pool}"
        if not pool.appends:
            return f"positions follow {self.pool}, which the walk only reads"
        if not declared.appends:
            return f"positions do not advance with the pool that they follow, {self.pool}"
        if set(declared.labels) != set(pool.labels):
            return f"positions are of {declared.labels[0]}, the pool that they follow, {self.pool}, of {pool.labels[0]}"
        return None
