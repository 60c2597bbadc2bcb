"""Rank 0: an engine that tells the others what it did."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mstar_resident.engine.capture_report import CaptureReport
from mstar_resident.engine.config import EngineConfig
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.pages import Ints
from mstar_resident.engine.plan import StepPlan
from mstar_resident.engine.ranks import moves
from mstar_resident.engine.ranks.agreement import agree_on_buckets, agree_on_geometry
from mstar_resident.engine.ranks.group import RankGroup
from mstar_resident.engine.request import Request, State
from mstar_resident.engine.results import Pending
from mstar_resident.models.base import Decoder


class Leader(Engine):
    """Decide for a group of ranks: scheduling, admission, offload, reload, stops and ends.

    Moves are told once a step, right before its launch, so that all ranks launch it together. Call :meth:`finish`
    when no step is left to come. A step that raises ends the group: other ranks may be inside its collectives.

    Args:
        model: this rank's part of the model; its forward exchanges what it must with the other ranks.
        config: sizes, the same on all ranks.
        group: the ranks.
        arguments: as of :class:`~mstar_resident.engine.engine.Engine`.

    Raises:
        LayoutError: another rank has other sizes.
    """

    def __init__(self, model: Decoder, config: EngineConfig, group: RankGroup, **arguments: Any) -> None:
        super().__init__(model, config, **arguments)
        self.group = group
        self._moves: list[moves.Move] = []
        self._numbers: dict[Request, int] = {}
        self._count = 0
        self._inside = False
        agree_on_geometry(group, self.config, self)

    def capture(self) -> CaptureReport:
        """Capture, and run host-planned what another rank could not capture. Raises as the engine's."""
        super().capture()
        agree_on_buckets(self.group, self)
        return CaptureReport.of(self)

    def finish(self, error: str = "") -> None:
        """Tell the others that there is nothing left to follow, or that this rank failed."""
        self._moves.append(moves.Finish(error))
        self._tell()

    def run(self) -> None:
        """Run until nothing is left to do. Raises ResidencyError as the engine's; the others then follow to the end."""
        super().run()
        self._tell()

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestError: it could never run on this node; nothing is queued."""
        super().add(request)
        number = self._numbers[request] = self._count
        self._count += 1
        self._moves.append(
            moves.Add(
                number,
                request.id,
                request.prompt,
                request.max_new,
                request.sampling,
                request.positions,
                request.context,
                request.keep,
            )
        )

    def extend(self, request: Request, tokens: Ints, max_new: int) -> None:
        """Give an idle request its next turn. Raises RequestError: it is not idle, or would outgrow its tables."""
        super().extend(request, tokens, max_new)
        self._moves.append(moves.Extend(self._numbers[request], tokens, max_new))

    def abort(self, request: Request, reason: str = "abort") -> None:
        """End a request at once, in whatever state."""
        if request.state is not State.DONE:
            with self._told(moves.End(self._number(request), reason)):
                super().abort(request, reason)
        self._numbers.pop(request, None)

    def _stop(self, request: Request, reason: str) -> None:
        with self._told(moves.Stop(self._number(request), reason)):
            super()._stop(request, reason)

    def _take_in(self, request: Request) -> None:
        with self._told(moves.TakeIn(self._number(request))):
            super()._take_in(request)

    def _offload(self, request: Request) -> None:
        with self._told(moves.Offload(self._number(request))):
            super()._offload(request)

    def _reload(self, request: Request) -> bool:
        done = super()._reload(request)
        self._moves.append(moves.Reload(self._number(request), done))
        return done

    def _empty(self, request: Request) -> None:
        with self._told(moves.Empty(self._number(request))):
            super()._empty(request)

    def _reserve(self, plan: StepPlan) -> bool:
        numbers = tuple(map(self._number, plan.requests))
        done = super()._reserve(plan)
        self._moves.append(moves.Reserve(numbers, tuple(plan.tokens.tolist()), done))
        return done

    def _launch(self, plan: StepPlan) -> tuple[Pending, bool]:
        self._moves.append(
            moves.Step(
                tuple(map(self._number, plan.requests)),
                tuple(plan.tokens.tolist()),
                tuple(plan.samples.tolist()),
                plan.decode_rows,
            )
        )
        self._tell()
        return super()._launch(plan)

    def _fail(self, plan: StepPlan) -> None:
        # The others are inside the step that failed, or past it: it cannot be undone on all ranks.
        self.finish("a step failed on rank 0")
        raise

    def _read_one(self) -> list[int]:
        # Before what the tokens lead to: stops are moves of their own.
        place = len(self._moves)
        tokens = super()._read_one()
        self._moves.insert(place, moves.Read(tuple(tokens)))
        return tokens

    def _number(self, request: Request) -> int:
        return self._numbers[request]

    @contextmanager
    def _told(self, move: moves.Move) -> Iterator[None]:
        """Note a move, and none of those that it leads to."""
        inside, self._inside = self._inside, True
        if not inside:
            self._moves.append(move)
        try:
            yield
        finally:
            self._inside = inside

    def _tell(self) -> None:
        if self._moves:
            told, self._moves = self._moves, []
            self.group.tell(told)
