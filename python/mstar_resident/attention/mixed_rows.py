"""The rows of a step that decode while others prefill, apart from the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from mstar_resident.engine.inputs import PagedKV


@dataclass(frozen=True, slots=True, eq=False)
class MixedRows:
    """Split a step over one pool: the rows of one token in front, which can be decoded together, and the others.

    It holds nothing of the whole but its tensors.
    """

    start: Tensor
    """int32[rows + 1], cpu: the token ranges of all rows."""
    decode: PagedKV | None
    """The rows of one token in front, ready to be decoded; None if the first row has more."""
    rest: PagedKV
    """The others."""
    rest_start: Tensor
    """int32[others + 1], cpu: their token ranges, from 0."""

    @classmethod
    def of(cls, paged: PagedKV, query_start: Tensor) -> MixedRows:
        """Split; ``query_start``, ``paged.rows`` and ``paged.lengths`` are on the host.

        A row of one token attends its whole length whether or not its pool is read-only: it is a decode row.
        """
        longer = (query_start.diff() != 1).nonzero()
        b = int(longer[0]) if len(longer) else query_start.shape[0] - 1
        rest = paged.take(b, len(paged.rows))
        if not b:
            return cls(query_start, None, rest, query_start)
        there, front = paged.table.device, paged.take(0, b)
        decode = replace(front, rows=front.rows.to(there), lengths=front.lengths.to(there))
        return cls(query_start, decode, rest, query_start[b:] - b)
