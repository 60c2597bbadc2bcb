"""The resident arm: decode rows stay on the device, and the planner is told what changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from mstar_resident.engine.arm import HostArm
from mstar_resident.engine.config import EngineConfig
from mstar_resident.engine.counters import Counters
from mstar_resident.engine.pages import Ints
from mstar_resident.engine.plan import StepPlan
from mstar_resident.engine.program import Program
from mstar_resident.engine.request import Request
from mstar_resident.engine.seats import Seats
from mstar_resident.engine.streams import Streams
from mstar_resident.engine.truth import EngineTruth
from mstar_resident.engine.view import POSITION, RECURRENT, SEAT, DecodeView, resident_view
from mstar_resident.planner import ResidentPlanner
from mstar_resident.row_check import RowCheck
from mstar_resident.shadow import Shadow

if TYPE_CHECKING:
    from mstar_resident import _core


class ResidentArm(HostArm):
    """Launch decode steps through the planner: stage or promote, flush, run, commit; nothing per row."""

    def __init__(
        self,
        config: EngineConfig,
        seats: Seats,
        streams: Mapping[str, Streams],
        recurrent: bool,
        counters: Counters,
        planner: ResidentPlanner,
        last: Tensor,
    ) -> None:
        super().__init__(config, seats, streams, recurrent, counters)
        self.planner = planner
        self._last = last
        self.row_check = RowCheck(planner) if config.check else None
        self.shadow: Shadow | None = None
        self._truth = EngineTruth(seats, streams)
        self._cuda_stream = torch.cuda.current_stream().cuda_stream if planner.device.type == "cuda" else 0
        self._views: dict[tuple[int, int], DecodeView] = {}
        self._batch: tuple[StepPlan, _core.Batch] | None = None
        self._ahead: _core.Stage | None = None
        self._launched: _core.Stage | None = None

    def watch(self, program: Program) -> Shadow:
        """Make the program record every resident step, and compare the records with the engine's streams."""
        shadow = self.shadow = Shadow(self.planner)

        def observe(view: DecodeView) -> None:
            if view.lease is not None:
                shadow.record(view.lease)

        program.observe = observe
        return shadow

    # One step

    def decode(self, plan: StepPlan, buffer_idx: int) -> DecodeView:
        """Launch a resident step; promote the stage made ahead if it still holds."""
        planner, counters = self.planner, self.counters
        bucket = self.bucket(len(plan.requests))
        if bucket in self.host_planned:
            self.stage_ahead(None, 0)
            return super().decode(plan, buffer_idx)
        view = self._view(bucket, buffer_idx)
        lease = view.lease
        if lease is None:
            raise ValueError("a resident step needs a view with a lease")
        clock = counters.clock
        clock.enter("plan")
        batch = self._name(plan)
        stage, self._ahead = self._ahead, None
        if stage is not None and planner.promote(stage, batch, lease):
            counters.promoted += 1
        else:
            clock.enter("fresh plan")
            counters.restaged += stage is not None
            stage = planner.stage(batch, lease)
        clock.enter("flush")
        planner.flush(stage, self._cuda_stream)
        try:
            if self.plans.caches:
                clock.enter("attention plan")
                self.plans.fill(view, plan.seats)
            clock.enter("launch")
            self.runner.decode(view)
        except BaseException:
            planner.fail(stage)
            raise
        clock.enter("commit")
        planner.commit(stage)
        clock.enter("rest")
        self._launched = stage
        counters.resident_steps += 1
        return view

    def stage_ahead(self, plan: StepPlan | None, buffer_idx: int) -> None:
        """Stage the next step while the device runs this one, as if no request stopped."""
        if plan is None:
            if self._ahead is not None:
                self.counters.abandoned += 1
                self.planner.drop(self._ahead)
                self._ahead = None
            return
        bucket = self.bucket(len(plan.requests))
        if bucket in self.host_planned:
            return
        lease = self._view(bucket, buffer_idx).lease
        if lease is None:
            raise ValueError("a resident step needs a view with a lease")
        self._ahead = self.planner.stage(self._name(plan), lease)
        self.counters.staged_ahead += 1

    def advanced(self, plan: StepPlan, alive: Ints, resident: bool) -> None:
        """Mark the rows that a host-planned step moved; check those of a resident one, if checks are on."""
        if resident:
            if self.row_check is not None:
                self._check(plan, alive)
            if self.shadow is not None and self._launched is not None:
                self.shadow.expect(self._launched, self._truth, alive.tolist())
            return
        handles = self.seats.handle[plan.seats[alive]]
        for name, entry in self.streams.items():
            if entry.span and len(handles):
                self.planner.host_step(name, handles, plan.tokens[alive])

    # One request

    def opened(self, request: Request) -> None:
        """Open a handle and set its columns."""
        self.seats.name(request.seat, self.planner.open())
        self._set(SEAT, request.seat, request.seat)
        self.offset_changed(request)

    def offset_changed(self, request: Request) -> None:
        """Set the columns that can change in a request's life."""
        if self.streams:
            self._set(POSITION, request.seat, int(self.seats.offset[request.seat]))
        if self.recurrent:
            self._set(RECURRENT, request.seat, int(self.seats.recurrent[request.seat]))

    def released(self, request: Request) -> None:
        """Release the handle; its slot cools until the step that read it last has committed."""
        super().released(request)
        self.planner.release(int(self.seats.handle[request.seat]))

    def offloaded(self, request: Request) -> None:
        """Give the slot up; a reload writes the row whole."""
        super().offloaded(request)
        self.planner.offload(int(self.seats.handle[request.seat]))

    # One stream

    def appended(self, table: str, seats: Ints, counts: Ints, pages: Ints) -> None:
        """Tell the planner of new pages, one call for all rows."""
        self.planner.append_pages(table, self.seats.handle[seats], counts, pages)

    def truncated(self, table: str, seat: int, length: int, pages: int) -> None:
        """Tell the planner of a rewind; a stage that names the lost pages is dropped."""
        super().truncated(table, seat, length, pages)
        self.planner.truncate(table, int(self.seats.handle[seat]), length, pages)

    def replaced(self, table: str, seat: int, pages: Ints, length: int) -> None:
        """Tell the planner of another stream."""
        super().replaced(table, seat, pages, length)
        self.planner.set_stream(int(self.seats.handle[seat]), table, pages, length)

    def _set(self, column: str, seat: int, value: int) -> None:
        self.planner.set_column(column, self.seats.handle[seat : seat + 1].copy(), np.array([value], dtype=np.int64))

    def _name(self, plan: StepPlan) -> _core.Batch:
        if self._batch is None or self._batch[0] is not plan:
            self._batch = (plan, self.planner.batch(self.seats.handle[plan.seats]))
        return self._batch[1]

    def _view(self, bucket: int, buffer_idx: int) -> DecodeView:
        key = (bucket, buffer_idx)
        if key not in self._views:
            lease = self.planner.lease(bucket, "decode", buffer_idx)
            self._views[key] = resident_view(self.planner, lease, self.streams, self._last)
        return self._views[key]

    def _check(self, plan: StepPlan, alive: Ints) -> None:
        """Compare the step's rows; those of requests that ended while it ran have no truth left."""
        if self.row_check is None or self._launched is None or not len(alive):
            return
        step: _core.Stage | _core.Batch = self._launched
        if len(alive) < len(plan.requests):
            step = self.planner.batch(self.seats.handle[plan.seats[alive]])
        self.counters.mismatches.extend(str(found) for found in self.row_check.check(step, self._truth))
        self.counters.rows_checked += len(alive)
