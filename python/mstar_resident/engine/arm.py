"""The host-planned arm: every decode step's inputs are built on the host."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mstar_resident.engine.attention_plan import AttentionPlans
from mstar_resident.engine.config import EngineConfig
from mstar_resident.engine.counters import Counters
from mstar_resident.engine.host_plan import fill
from mstar_resident.engine.pages import Ints
from mstar_resident.engine.plan import StepPlan
from mstar_resident.engine.program import Runner
from mstar_resident.engine.request import Request
from mstar_resident.engine.seats import Seats
from mstar_resident.engine.streams import Streams
from mstar_resident.engine.view import DecodeView, host_view


class HostArm:
    """Launch decode steps whose inputs the host rebuilds, every row of every step.

    The engine tells its arm all that happens to a request. This arm reads the engine's arrays at each step and needs
    to hear only what ends a kept attention plan; the resident arm passes the rest on.
    """

    def __init__(
        self, config: EngineConfig, seats: Seats, streams: Mapping[str, Streams], recurrent: bool, counters: Counters
    ) -> None:
        self.config = config
        self.seats = seats
        self.streams = streams
        self.recurrent = recurrent
        self.counters = counters
        self.runner: Runner
        self.plans = AttentionPlans(streams, config.max_batch, config.attention_plan)
        self._buckets = config.buckets()
        self._host_views: dict[tuple[int, int], DecodeView] = {}
        #: Buckets that no graph was captured for.
        self.host_planned: frozenset[int] = frozenset()

    def views(self) -> list[DecodeView]:
        """Return the views of every bucket, two each: what a graph can be captured for."""
        return [self._view(bucket, buffer_idx) for bucket in self._buckets for buffer_idx in range(2)]

    # One step

    def decode(self, plan: StepPlan, buffer_idx: int) -> DecodeView:
        """Launch a decode step; return the view that its tokens are in. What the runner raises fails the step."""
        view = self.filled_view(self.bucket(len(plan.requests)), buffer_idx)
        self.counters.clock.enter("plan")
        fill(view, plan, self.seats, self.streams)
        self.plans.fill(view, plan.seats)
        self.counters.clock.enter("launch")
        self.runner.decode(view)
        self.counters.clock.enter("rest")
        return view

    def stage_ahead(self, plan: StepPlan | None, buffer_idx: int) -> None:
        """Stage the next step, if the arm can; None says that the next step is not a decode step."""

    def advanced(self, plan: StepPlan, alive: Ints, resident: bool) -> None:
        """Hear that a step has been launched and that its rows' streams have advanced by ``plan.tokens``."""

    def bucket(self, rows: int) -> int:
        """Return the least bucket that holds the rows."""
        return next(bucket for bucket in self._buckets if bucket >= rows)

    # One request

    def opened(self, request: Request) -> None:
        """Hear that a request has a seat, an offset and, for a recurrent model, an index."""

    def offset_changed(self, request: Request) -> None:
        """Hear that a request's position offset or recurrent index is another."""

    def released(self, request: Request) -> None:
        """Hear that a request is over; its pages are given back next."""
        self.plans.left(request.seat)

    def offloaded(self, request: Request) -> None:
        """Hear that a request's streams are on the host; its pages are given back next."""
        self.plans.left(request.seat)

    # One stream

    def appended(self, table: str, seats: Ints, counts: Ints, pages: Ints) -> None:
        """Hear that streams hold more pages."""

    def truncated(self, table: str, seat: int, length: int, pages: int) -> None:
        """Hear that a stream was rewound to a length and a count of pages."""
        self.plans.truncated(table, seat, pages)

    def replaced(self, table: str, seat: int, pages: Ints, length: int) -> None:
        """Hear that a stream is another one: a prefix hit, a reload, a context."""
        self.plans.replaced(table, seat)

    def filled_view(self, bucket: int, buffer_idx: int) -> DecodeView:
        """Return a view whose buffers the host fills; two of them take turns."""
        key = (bucket, buffer_idx)
        if key not in self._host_views:
            device = torch.device(self.config.device)
            self._host_views[key] = host_view(self.streams, self.recurrent, bucket, buffer_idx, device)
        return self._host_views[key]

    def _view(self, bucket: int, buffer_idx: int) -> DecodeView:
        return self.filled_view(bucket, buffer_idx)
