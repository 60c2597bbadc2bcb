"""The engine: one step after another, launched before the one before was read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from mstar_resident.engine.admission import Admission
from mstar_resident.engine.arm import HostArm
from mstar_resident.engine.capture_report import CaptureReport
from mstar_resident.engine.clock import Clock
from mstar_resident.engine.config import EngineConfig
from mstar_resident.engine.counters import Counters
from mstar_resident.engine.graph_runner import GraphRunner
from mstar_resident.engine.host_plan import ragged
from mstar_resident.engine.memory import Memory
from mstar_resident.engine.node import DECODE, Node
from mstar_resident.engine.owned_memory import OwnedMemory
from mstar_resident.engine.pages import Ints
from mstar_resident.engine.plan import StepPlan
from mstar_resident.engine.program import EagerRunner, Program, Runner
from mstar_resident.engine.request import Request, State
from mstar_resident.engine.request_check import check_request, check_turn
from mstar_resident.engine.resident_arm import ResidentArm
from mstar_resident.engine.results import Pending
from mstar_resident.engine.sampler import Sampler, TokenSampler
from mstar_resident.engine.scheduler import Scheduler
from mstar_resident.errors import CaptureRefused, InvariantError, OutOfPagesError
from mstar_resident.models.base import Decoder
from mstar_resident.planner import ResidentPlanner
from mstar_resident.refusal import Refusal, log_refusal
from mstar_resident.resources.base import ResidentResource, check_walk
from mstar_resident.shadow import Shadow

#: Steps that may fail in a row before the failure is the caller's.
MOST_FAILURES = 3


class Engine:
    """Serve requests on one node with a model.

    Call :meth:`add`, then :meth:`step` until it returns False. Decode-only steps are resident if the node has a
    planner; prefill and mixed steps are host-planned. Not thread-safe, apart from what the planner is.

    Args:
        model: the decoder; the engine allocates and binds its pools.
        config: sizes and the arm.
        sampler: by default a :class:`TokenSampler`.
        wrap_runner: what to run steps with, made from the runner that would run them.
        resources: what the node holds besides; one that refuses keeps it host-planned.
    """

    def __init__(
        self,
        model: Decoder,
        config: EngineConfig | None = None,
        *,
        sampler: Callable[[int, torch.device], Sampler] = TokenSampler,
        wrap_runner: Callable[[Runner], Runner] | None = None,
        resources: Sequence[ResidentResource] = (),
    ) -> None:
        self.config = config = config or EngineConfig()
        self.model = model
        self.counters = Counters(clock=Clock(config.ranges))
        device = torch.device(config.device)
        self.node = Node.build(model, config, resources)
        self.seats, self.streams = self.node.seats, self.node.streams
        self.sampler = sampler(self.seats.count, device)
        self.program = Program(model, self.sampler, self.seats.count, device)
        self.scheduler = Scheduler(config, self.seats)
        self._wrap_runner = wrap_runner
        self._pending: list[Pending] = []
        self._failures = 0
        self._plan_with(self.node.planner(config))

    def _plan_with(self, planner: ResidentPlanner | Refusal) -> None:
        """Build what depends on whether the node's decode rows are resident."""
        config, device = self.config, torch.device(self.config.device)
        self.shadow: Shadow | None = None
        self.program.observe = None
        self.planner = planner if isinstance(planner, ResidentPlanner) else None
        self.refusal = planner if not isinstance(planner, ResidentPlanner) else None
        recurrent = self.node.recurrent is not None
        self.arm: HostArm
        if self.planner is not None:
            given = (config, self.seats, self.streams, recurrent, self.counters)
            self.arm = ResidentArm(*given, self.planner, self.program.last)
        else:
            self.arm = HostArm(config, self.seats, self.streams, recurrent, self.counters)
        eager = EagerRunner(self.program, self.planner)
        self.graphs = GraphRunner(eager) if device.type == "cuda" else None
        runner: Runner = self.graphs or eager
        self.arm.runner = self.runner = self._wrap_runner(runner) if self._wrap_runner is not None else runner
        if config.shadow and isinstance(self.arm, ResidentArm):
            self.shadow = self.arm.watch(self.program)
        self.memory = Memory(self.seats, self.streams, self.arm)
        if config.pages_owner == "planner" and self.planner is not None:
            self.memory = OwnedMemory(self.seats, self.streams, self.arm, self.planner)
        self.admission = Admission(config, self.model, self.node, self.memory, self.arm, self.sampler, self.counters)

    def capture(self) -> CaptureReport:
        """Capture the ladder of decode buckets, two graphs each, before the first request; a CPU captures nothing.

        A bucket that cannot be captured runs host-planned, and so does the node if the decode walk does with a
        resource what a resident step cannot; one line is logged. The report says how each bucket runs.
        """
        if self.planner is not None:
            try:
                check_walk(self.node.resources, DECODE, self.node.declarations())
            except CaptureRefused as refused:
                log_refusal(self.planner.name, refusal := Refusal(refused.resource, refused.reason))
                self._plan_with(refusal)
        if self.graphs is not None:
            self.graphs.capture(self.arm.views())
            self.arm.host_planned = frozenset(self.graphs.failed)
        if self.shadow is not None:
            self.shadow.start()
        return CaptureReport.of(self)

    # Requests

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            RequestError: it could never run on this node; nothing is queued.
        """
        check_request(request, self.model, self.config, self.streams)
        self.scheduler.waiting.append(request)

    def extend(self, request: Request, tokens: Ints, max_new: int) -> None:
        """Give an idle request its next turn: more tokens, then up to ``max_new`` outputs.

        Raises:
            RequestError: it is not idle, or would outgrow its tables.
        """
        check_turn(request, tokens, max_new, self.streams)
        request.prompt = np.concatenate([request.tokens(), np.asarray(tokens, dtype=np.int64)])
        request.turn = len(request.outputs)
        request.max_new = len(request.outputs) + max_new
        request.filled = request.prompt
        request.state, request.reason = State.PREFILL, ""
        self.seats.granted[request.seat] = request.max_new
        self.seats.launched[request.seat] = len(request.outputs)
        self.scheduler.changed()

    def abort(self, request: Request, reason: str = "abort") -> None:
        """End a request at once, in whatever state: also while a step that reads its row is in flight."""
        if request.state is State.DONE:
            return
        if request.state is State.WAITING and request in self.scheduler.waiting:
            self.scheduler.waiting.remove(request)
        self.admission.release(request, reason)
        if request in self.scheduler.live:
            self.scheduler.live.remove(request)
        self.scheduler.changed()

    # Steps

    @property
    def busy(self) -> bool:
        """Whether anything is left to do."""
        working = any(request.state is not State.IDLE for request in self.scheduler.live)
        return bool(self._pending or self.scheduler.waiting or working)

    def step(self) -> bool:
        """Launch a step, then read the one before; return whether anything is left to do.

        Raises:
            InvariantError: a check of the step found something broken.
            Exception: what else a step raised, after it has failed several times in a row.
        """
        clock = self.counters.clock
        clock.enter("admit")
        try:
            return self._step()
        finally:
            clock.leave()

    def _step(self) -> bool:
        plan = self._next()
        self.counters.clock.enter("rest")
        if plan is None:
            self.arm.stage_ahead(None, 0)
            self.read()
            return self.busy
        try:
            pending, resident = self._launch(plan)
        except Exception as error:
            self._fail(plan)
            # What a check found broken does not mend itself.
            if self._failures > MOST_FAILURES or isinstance(error, InvariantError):
                raise
            return True
        self._failures = 0
        self._advance(plan, resident)
        self._pending.append(pending)
        if self.config.lookahead:
            self.counters.clock.enter("admit")
            try:
                self._stage_ahead()
            finally:  # the buffer that holds the older tokens is the next step's
                self.counters.clock.enter("read")
                self.read(keep=1)
        else:
            self.counters.clock.enter("read")
            self.read()
        return self.busy

    def run(self) -> None:
        """Run until nothing is left to do.

        Raises:
            ResidencyError: the node has a planner, and too few of its decode steps were resident.
        """
        while self.step():
            pass
        if self.shadow is not None:
            self.counters.mismatches.extend(str(found) for found in self.shadow.finish())
        self.require_residency()

    def require_residency(self) -> None:
        """Check that a node with a planner used it.

        Raises:
            ResidencyError: too few of its decode steps were resident.
        """
        if self.planner is not None:
            self.counters.require_residency(self.config.least_resident)

    def read(self, keep: int = 0) -> None:
        """Read the tokens of launched steps, apart from the last ``keep``; stops take effect here."""
        while len(self._pending) > keep:
            self._read_one()

    # What a step decides and does to requests: one call each, so that the ranks of a group can do the same

    def _read_one(self) -> list[int]:
        """Read the oldest launched step that was not read, and return its tokens, a row each."""
        pending = self._pending.pop(0)
        plan = pending.plan
        alive = self.seats.alive(plan.seats, plan.epochs) & (plan.samples > 0)
        tokens = pending.read()
        for i in np.flatnonzero(alive).tolist():
            self._output(plan.requests[i], tokens[i])
        return tokens

    def _reserve(self, plan: StepPlan) -> bool:
        return self.memory.reserve(plan.seats, plan.tokens)

    def _take_in(self, request: Request) -> None:
        self.admission.admit(request)
        self.scheduler.live.append(request)
        self.scheduler.changed()

    def _reload(self, request: Request) -> bool:
        return self.admission.reload(request)

    def _offload(self, request: Request) -> None:
        self.admission.offload(request)
        self.scheduler.changed()

    def _empty(self, request: Request) -> None:
        """Take the pages of an idle request, whose next turn will fill them anew."""
        self.memory.rewind(request, 0)

    # One step's parts

    def _next(self) -> StepPlan | None:
        """Admit and reload what fits, then find a plan that has its pages, at the cost of others if need be."""
        self._admit()
        plan = self.scheduler.next()
        while plan is not None and not self._reserve(plan):
            self.counters.refused += 1
            fewer = self.scheduler.fewer(plan)
            if fewer is None:
                self._give_way(plan)
                fewer = self.scheduler.next()
            plan = fewer
        return plan

    def _admit(self) -> None:
        live = self.scheduler.live
        for request in [request for request in live if request.state is State.OFFLOADED]:
            while not self._reload(request):
                if not self._drop_idle():
                    return  # what was here before comes before what is new
            self.scheduler.changed()
        waiting = self.scheduler.waiting
        while waiting and self.admission.has_place():
            while not self.admission.has_pages(waiting[0]):
                if not self._drop_idle():
                    return
            self._take_in(waiting[0])
            waiting.popleft()

    def _drop_idle(self) -> bool:
        """Empty an idle request; return whether there was one."""
        for request in self.scheduler.live:
            if request.state is State.IDLE and self.seats.stored[request.seat]:
                self._empty(request)
                return True
        return False

    def _give_way(self, plan: StepPlan) -> None:
        """Find pages: in what launched steps have ended and was not read yet, else with a victim."""
        if self._pending:
            self.read()
            return
        if self._drop_idle():
            return
        victim = self.scheduler.victim(plan)
        if victim is None:
            raise OutOfPagesError.of("pages", expected="room for one request", got="none", seat=int(plan.seats[0]))
        self._offload(victim)

    def _launch(self, plan: StepPlan) -> tuple[Pending, bool]:
        buffer_idx = self.counters.steps % 2
        if plan.walk == "decode":
            before = self.counters.resident_steps
            view = self.arm.decode(plan, buffer_idx)
            return Pending.of(plan, view.sampled, view.done), self.counters.resident_steps > before
        self.arm.stage_ahead(None, 0)
        step = ragged(plan, self.seats, self.streams, self.node.recurrent is not None, self.program.last.device)
        return Pending.of(plan, self.runner.fill(step)), False

    def _advance(self, plan: StepPlan, resident: bool) -> None:
        """Move the host's truth on by what the step stored; rows whose request ended in flight are left alone."""
        seats, counters = self.seats, self.counters
        counters.steps += 1
        counters.decode_steps += plan.walk == "decode"
        alive = np.flatnonzero(seats.alive(plan.seats, plan.epochs))
        rows, tokens = plan.seats[alive], plan.tokens[alive]
        for entry in self.streams.values():
            entry.length[rows] += entry.span * tokens
        seats.stored[rows] += tokens
        seats.launched[rows] += plan.samples[alive]
        seats.ran[rows] = counters.steps
        self.arm.advanced(plan, alive, resident)
        for i in range(plan.decode_rows, len(plan.requests)):
            request = plan.requests[i]
            if plan.samples[i] and seats.epoch[plan.seats[i]] == plan.epochs[i]:
                request.state = State.DECODE
                self.admission.sealed(request)
                self.scheduler.changed()

    def _stage_ahead(self) -> None:
        """Stage the next step as it will be if no request stops, none comes and none goes."""
        plan = self.scheduler.next()
        if plan is not None and plan.walk == "decode" and self._reserve(plan):
            self.counters.clock.enter("pre-plan stage")
            self.arm.stage_ahead(plan, self.counters.steps % 2)

    def _output(self, request: Request, token: int) -> None:
        request.outputs.append(token)
        if request.on_token is not None:
            request.on_token(token)
        if token in request.stop:
            self._stop(request, "stop")
        elif len(request.outputs) >= request.max_new:
            self._stop(request, "length")

    def _stop(self, request: Request, reason: str) -> None:
        """End or park a request. A step launched since then overshot: its token is discarded, its length undone."""
        seats, seat = self.seats, request.seat
        overshoot = int(seats.launched[seat]) - len(request.outputs)
        self.counters.overshoot += overshoot
        if not request.keep:
            self.abort(request, reason)
            return
        # In-place recurrent state cannot be taken back: the next turn fills it anew.
        lost = overshoot > 0 and self.node.recurrent is not None
        stored = 0 if lost else len(request.tokens()) - 1
        seats.epoch[seat] += 1
        request.reason = reason
        if request.state is State.OFFLOADED:
            self.admission.park(request, stored)
        else:
            self.memory.rewind(request, stored)
            request.state = State.IDLE
        self.scheduler.changed()

    def _fail(self, plan: StepPlan) -> None:
        """Undo a step that raised: read what was launched before, then put its rows back as they were."""
        self._failures += 1
        self.counters.failed_steps += 1
        rows = [plan.requests[i] for i in np.flatnonzero(self.seats.alive(plan.seats, plan.epochs))]
        self.read()
        self.scheduler.changed()
        for request in rows:
            if request.state is State.DONE:
                continue
            if self.node.recurrent is not None:
                # The step may have moved its state in place, also that of a request that was found to have stopped.
                self.admission.refill(request)
            elif request.outputs:
                self.program.last[request.seat] = request.outputs[-1]
