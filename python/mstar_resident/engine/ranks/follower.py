"""Every other rank: an engine that does what rank 0 did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mstar_resident.engine.capture_report import CaptureReport
from mstar_resident.engine.config import EngineConfig
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.plan import StepPlan
from mstar_resident.engine.ranks import moves
from mstar_resident.engine.ranks.agreement import RankMismatchError, agree_on_buckets, agree_on_geometry
from mstar_resident.engine.ranks.group import RankGroup
from mstar_resident.engine.request import Request, State
from mstar_resident.models.base import Decoder


class Follower(Engine):
    """Replay a leader's moves: the same rows and tokens, on this rank's own seats, slots and pages.

    Args:
        model: this rank's part of the model.
        config: sizes, the same on all ranks.
        group: the ranks.
        arguments: as of :class:`~mstar_resident.engine.engine.Engine`.

    Attributes:
        requests: per number, the request; those that are over are dropped.
        moot: entries that found their request over already; nothing was done twice.
        refused: entries that rank 0 was refused, and that changed nothing here either.

    Raises:
        LayoutError: another rank has other sizes.
    """

    def __init__(self, model: Decoder, config: EngineConfig, group: RankGroup, **arguments: Any) -> None:
        super().__init__(model, config, **arguments)
        self.group = group
        self.requests: dict[int, Request] = {}
        self.moot = self.refused = 0
        self._plan: StepPlan | None = None
        agree_on_geometry(group, self.config, self)

    def capture(self) -> CaptureReport:
        """Capture, and run host-planned what another rank could not capture. Raises as the engine's."""
        super().capture()
        agree_on_buckets(self.group, self)
        return CaptureReport.of(self)

    def follow(self) -> None:
        """Replay moves until rank 0 says that there are no more.

        Raises:
            RankMismatchError: rank 0 failed, or something came out otherwise here.
            ResidencyError: the node has a planner, and too few of its decode steps were resident.
        """
        while self.replay(self.group.hear()):
            pass
        if self.shadow is not None:
            self.counters.mismatches.extend(str(found) for found in self.shadow.finish())
        self.require_residency()

    def replay(self, entries: Sequence[moves.Move]) -> bool:
        """Replay moves, in order; return whether more may come.

        Raises:
            RankMismatchError: rank 0 failed, or something came out otherwise here.
        """
        for entry in entries:
            match entry:
                case moves.Add():
                    self._add(entry)
                case moves.Step():
                    self._step_of(entry)
                case moves.Reserve():
                    self._reserve_of(entry)
                case moves.Read():
                    self._compare("tokens", entry.tokens, tuple(self._read_one()))
                case moves.Finish():
                    if entry.error:
                        raise RankMismatchError(entry.error, rank=self.group.rank)
                    return False
                case _:
                    self._one(entry)
        return True

    def _one(
        self,
        entry: moves.Extend | moves.TakeIn | moves.Offload | moves.Reload | moves.Empty | moves.Stop | moves.End,
    ) -> None:
        """Replay what happened to one request. That it is over already makes the entry moot: it holds nothing."""
        request = self.requests.get(entry.number)
        if request is None or request.state is State.DONE:
            self.moot += 1
            return
        match entry:
            case moves.Extend():
                self.extend(request, entry.tokens, entry.max_new)
            case moves.TakeIn():
                self._take_in(request)
            case moves.Offload():
                if request.state.holds_pages:
                    self._offload(request)
                else:
                    self.moot += 1
            case moves.Reload():
                if not entry.done:
                    self.refused += 1
                elif request.state is State.OFFLOADED:
                    self._compare("reload", True, self._reload(request))
                else:
                    self.moot += 1
            case moves.Empty():
                self._empty(request)
            case moves.Stop():
                self._stop(request, entry.reason)
            case moves.End():
                self.abort(request, entry.reason)
        if not request.seat and request.reason:
            del self.requests[entry.number]  # it is over

    def _add(self, entry: moves.Add) -> None:
        self.requests[entry.number] = Request(
            entry.id,
            entry.prompt,
            entry.max_new,
            entry.sampling,
            positions=entry.positions,
            context=entry.context,
            keep=entry.keep,
        )

    def _reserve_of(self, entry: moves.Reserve) -> None:
        # Also one that rank 0 was refused: looking for pages evicts and trims, and that must happen on all ranks.
        seats = np.array([self._row(number).seat for number in entry.numbers], dtype=np.int64)
        self._compare("reservation", entry.done, self.memory.reserve(seats, np.array(entry.tokens, dtype=np.int64)))
        self.refused += not entry.done

    def _step_of(self, entry: moves.Step) -> None:
        plan = self._plan_of(entry)
        pending, resident = self._launch(plan)
        self._advance(plan, resident)
        self._pending.append(pending)

    def _plan_of(self, entry: moves.Step) -> StepPlan:
        """Return the step's rows on this rank; the same object while they stay the same."""
        requests = tuple(map(self._row, entry.numbers))
        seats = np.array([request.seat for request in requests], dtype=np.int64)
        tokens, samples = (np.array(values, dtype=np.int64) for values in (entry.tokens, entry.samples))
        plan, epochs = self._plan, self.seats.epoch[seats]
        if (
            plan is None
            or plan.requests != requests
            or plan.decode_rows != entry.decode_rows
            or not np.array_equal(plan.epochs, epochs)
            or not np.array_equal(plan.tokens, tokens)
            or not np.array_equal(plan.samples, samples)
        ):
            plan = self._plan = StepPlan(requests, seats, tokens, epochs, samples, entry.decode_rows)
        return plan

    def _row(self, number: int) -> Request:
        request = self.requests.get(number)
        if request is None or not request.seat:
            raise RankMismatchError.of(
                "row of a step", expected="a request that is admitted", got=number, rank=self.group.rank
            )
        return request

    def _output(self, request: Request, token: int) -> None:
        """Keep a token; whether it ends the request, rank 0 says."""
        request.outputs.append(token)

    def _compare(self, what: str, expected: object, got: object) -> None:
        if expected != got:
            raise RankMismatchError.of(what, expected=f"{expected}, as on rank 0", got=got, rank=self.group.rank)
