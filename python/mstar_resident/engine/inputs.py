"""What one step of the engine hands to a model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from mstar_resident.engine.planned import PlannedPages


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PagedKV:
    """Name one KV pool as one step sees it.

    A resident step and a host-planned one differ only in who filled these tensors: the prologue, from the store, or
    the host. What a backend derives from one and keeps by weak reference lives as long as the step's inputs.
    """

    table: Tensor
    """int32[R, P], cpu|cuda, contiguous: page ids; unused cells hold the sink page 0."""
    rows: Tensor
    """int64[b]: which table row batch row i reads (store slots on a resident step, arange on a host-planned one)."""
    lengths: Tensor
    """int32[b]: attention length, this step's tokens included; 1 on padding rows."""
    write_loc: Tensor | None
    """int64[t]: page * page_size + offset of every token of the step; None for a read-only pool."""
    page_size: int
    planned: PlannedPages | None = None
    """The same pages as a host plan; None where no attention over the pool needs one, and on steps that prefill."""

    def take(self, begin: int, end: int) -> PagedKV:
        """Return the batch rows ``begin`` to ``end`` over the same table, as views; ``write_loc`` stays the whole."""
        return replace(self, rows=self.rows[begin:end], lengths=self.lengths[begin:end])


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Hold everything a model's forward reads besides its weights and pools."""

    tokens: Tensor
    """int64[t]: token ids of all rows, one row after another."""
    positions: Tensor
    """int64[t]: position of every token."""
    query_start: Tensor | None
    """int32[b + 1]: token range of every row; None = decode, one token a row (t == b)."""
    kv: dict[str, PagedKV]
    recurrent_index: Tensor | None
    """int32[b]: index of every row's recurrent state, 0 = sink; None for a model without a recurrent pool."""
    fresh: Tensor | None
    """bool[b]: rows whose recurrent state starts from zero in this step (a prefill's first chunk)."""
