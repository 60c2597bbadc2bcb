"""The adapter of a recurrent-state pool: one column, the state's index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mstar_resident.layout import Column, KVTable
from mstar_resident.resources.base import WalkDeclaration

#: Recurrent layers whose padding rows are safe on the sink index.
SUPPORTED_KINDS = ("gdn",)


@dataclass(frozen=True, slots=True)
class RecurrentPool:
    """Describe a recurrent-state pool; index 0 is the sink.

    ``column`` names the index column. A row built before the column was set is an error, never index 0.
    """

    name: str
    kind: str = "gdn"
    column: str = "recurrent_index"
    sink: bool = True
    nodes: tuple[str, ...] = field(default=())

    def refusal(self) -> str | None:
        """Return why the pool's rows cannot be resident, or None."""
        if self.kind not in SUPPORTED_KINDS:
            return f"recurrent layers of kind {self.kind} are not supported, only {', '.join(SUPPORTED_KINDS)}"
        if len(set(self.nodes)) > 1:
            return f"the pool is shared by nodes {', '.join(sorted(set(self.nodes)))}"
        if not self.sink:
            return "the pool has no sink index for padding rows"
        return None

    def tables(self) -> Sequence[KVTable]:
        """Return nothing."""
        return ()

    def columns(self) -> Sequence[Column]:
        """Return the index column."""
        return (Column(self.column, "index"),)

    def capture_refusal(self, declarations: Mapping[str, WalkDeclaration]) -> str | None:
        """Return a reason if the walk does not advance the state."""
        declared = declarations.get(self.name)
        if declared is not None and not declared.appends:
            return "a recurrent pool at span 0"
        return None
