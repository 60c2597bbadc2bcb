"""What a model asks of attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from mstar_resident.engine.inputs import PagedKV


class Attention(Protocol):
    """Write and read one layer of a KV pool for the rows of a step.

    ``layer`` is the pool's tensor of one layer, ``[pool_pages + 1, 2, page_size, kv_heads, head_dim]``: keys at
    ``[:, 0]``, values at ``[:, 1]``, page 0 the sink. Scores are scaled by ``head_dim ** -0.5``. An object holds no
    state of a step, so that one serves every layer and walk; workspaces of fixed size are its own.

    Attributes:
        host_plan_free: whether decode reads pages off the tables, through ``paged.rows``; else it reads
            ``paged.planned``, which the host fills before every decode step, resident or not.
    """

    @property
    def host_plan_free(self) -> bool:
        """Whether a bucket that decodes with it needs no host plan, as far as it is concerned."""

    def backend(self, rows: int) -> str:
        """Name what a decode of so many rows runs on; where that is measured, once such a decode has run."""

    def write(self, layer: Tensor, k: Tensor, v: Tensor, paged: PagedKV) -> None:
        """Store ``k`` and ``v``, ``[t, kv_heads, head_dim]`` each, at ``paged.write_loc``."""

    def begin(self, layer: Tensor, heads: int, paged: PagedKV) -> None:
        """Prepare a decode step's attention over a pool, on the device, before the first layer: what all layers share.

        ``layer`` is any layer of the pool. A replayed step calls it, under the same rules as :meth:`decode`.
        """

    def decode(self, layer: Tensor, q: Tensor, paged: PagedKV) -> Tensor:
        """Attend with one token a row: ``q`` and the result are ``[b, heads, head_dim]``.

        A replayed step calls it: on cuda it may neither wait for the device nor take a shape from a value.
        """

    def prefill(self, layer: Tensor, q: Tensor, paged: PagedKV, query_start: Tensor) -> Tensor:
        """Attend with ranges of tokens: ``q`` and the result are ``[t, heads, head_dim]``.

        Causal, bottom right: the last token of a row sees all ``lengths`` of it; every token of a read-only pool sees
        all. ``query_start``, ``paged.rows`` and ``paged.lengths`` are on the host, the rest on the pool's device.
        """
