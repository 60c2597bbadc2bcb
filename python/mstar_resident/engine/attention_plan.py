"""The attention plans of a node whose attention needs them: one cache per pool, sent to the buffers of every view."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mstar_resident.attention.decode_plan import DecodePlanCache, PlanMode
from mstar_resident.engine.pages import Ints
from mstar_resident.engine.view import DecodeView

if TYPE_CHECKING:
    from mstar_resident.engine.streams import Streams


class AttentionPlans:
    """Plan the attention of decode steps, host-planned or resident; a node that is host-plan-free has no pools here.

    Attributes:
        caches: per pool whose attention needs a host plan.
    """

    def __init__(self, streams: Mapping[str, Streams], max_batch: int, mode: PlanMode) -> None:
        self.caches = {
            name: DecodePlanCache(
                entry.table, entry.length, entry.pool.page_size, entry.span, max_batch, mode=mode, name=name
            )
            for name, entry in streams.items()
            if entry.host_plan
        }

    def fill(self, view: DecodeView, seats: Ints) -> None:
        """Plan the step of ``seats`` and send a view what its buffers do not hold yet, on the current cuda_stream."""
        for name, cache in self.caches.items():
            buffers = view.inputs.kv[name].planned
            if buffers is None:
                raise ValueError(f"a view of pool {name} without buffers for its plan")
            buffers.fill(cache.plan(seats, view.bucket))

    def truncated(self, name: str, seat: int, pages: int) -> None:
        """Hear that a stream kept its first pages alone."""
        if name in self.caches:
            self.caches[name].truncated(seat, pages)

    def replaced(self, name: str, seat: int) -> None:
        """Hear that a stream is another one."""
        if name in self.caches:
            self.caches[name].replaced(seat)

    def left(self, seat: int) -> None:
        """Hear that a seat's streams are gone: its request ended or was offloaded."""
        for cache in self.caches.values():
            cache.replaced(seat)
