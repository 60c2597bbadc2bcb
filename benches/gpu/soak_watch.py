"""What a soak watches of a resident engine: rows of its steps, waits, compilations, allocations, slots given up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from mstar_resident.engine.engine import Engine
from mstar_resident.engine.plan import StepPlan
from mstar_resident.engine.request import Request
from mstar_resident.engine.resident_arm import ResidentArm
from mstar_resident.engine.view import DecodeView
from mstar_resident.errors import InvariantError
from mstar_resident.step_guard import no_waits, step_guard

#: Of so many resident steps one is checked by the row check, which waits for the device, and one guarded whole: an odd
#: number, so that both buffers of a bucket have their turn.
ROW_CHECK_EVERY, GUARD_EVERY = 17, 17
#: Of so many resident steps one is a sample of the live bytes.
MEMORY_EVERY = 32


class Watch:
    """Count what an engine's resident steps do. The step path is the arm's: stage or promote, flush, replay, commit.

    Attributes:
        full_steps: resident steps of at least ``rows`` rows.
        waits: calls of the step path that torch saw wait for the device; each fails its step.
        allocations: guarded steps that allocated through torch, or moved a buffer.
        compiled: kernels compiled on the step path; None if this Triton tells nobody.
        slot_releases: offloads that gave a slot up.
        slots_kept: offloads that left one behind.
        least_chunks: prefill steps of the prompt that had the fewest, of those that were stored whole.
    """

    def __init__(self, engine: Engine, rows: int) -> None:
        arm = engine.arm
        if not isinstance(arm, ResidentArm):
            raise SystemExit(f"the node stayed host-planned: {engine.refusal}")
        self.full_steps = self.waits = self.allocations = self.slot_releases = self.slots_kept = 0
        self.least_chunks: int | None = None
        self.compilations = Compilations()
        self.compiled: int | None = 0 if self.compilations.told else None
        self.memory = LiveBytes(arm.planner.device)
        self._arm, self._rows, self._steps, self._row_check = arm, rows, 0, arm.row_check
        self._device = arm.planner.device
        self._last_resident = False
        self._chunks: Counter[Request] = Counter()
        self._decode, self._stage_ahead = arm.decode, arm.stage_ahead
        self._advanced, self._offloaded = arm.advanced, arm.offloaded
        arm.decode = self.decode  # type: ignore[method-assign]
        arm.stage_ahead = self.stage_ahead  # type: ignore[method-assign]
        arm.advanced = self.advanced  # type: ignore[method-assign]
        arm.offloaded = self.offloaded  # type: ignore[method-assign]

    def decode(self, plan: StepPlan, buffer_idx: int) -> DecodeView:
        """Launch a decode step under the guard."""
        if self._steps % GUARD_EVERY:
            return self._path(lambda: self._decode(plan, buffer_idx))
        view: DecodeView | None = None
        try:
            with step_guard(self._arm.planner):
                view = self._path(lambda: self._decode(plan, buffer_idx))
        except InvariantError:
            if view is None:
                raise
            self.allocations += 1
        return view

    def stage_ahead(self, plan: StepPlan | None, buffer_idx: int) -> None:
        """Stage the next step under the guard."""
        self._path(lambda: self._stage_ahead(plan, buffer_idx))

    def advanced(self, plan: StepPlan, alive: Any, resident: bool) -> None:
        """Count a committed step, and have some of them checked."""
        if resident:
            self.full_steps += len(plan.requests) >= self._rows
            self._arm.row_check = None if self._steps % ROW_CHECK_EVERY else self._row_check
            if self._last_resident and not self._steps % MEMORY_EVERY:
                self.memory.sample()
            self._steps += 1
        self._last_resident = resident
        for request, last in zip(plan.requests[plan.decode_rows :], plan.samples[plan.decode_rows :], strict=True):
            self._chunks[request] += 1
            if last:
                chunks = self._chunks.pop(request)
                self.least_chunks = min(chunks, self.least_chunks or chunks)
        self._advanced(plan, alive, resident)

    def offloaded(self, request: Request) -> None:
        """Count the slot that an offload gives up."""
        planner, handle = self._arm.planner, int(self._arm.seats.handle[request.seat])
        held = planner.slot(handle) != 0
        self._offloaded(request)
        kept = planner.slot(handle) != 0
        self.slots_kept += kept
        self.slot_releases += held and not kept

    def _path(self, call: Callable[[], Any]) -> Any:
        before = self.compilations.count
        try:
            with no_waits(self._device):
                return call()
        except RuntimeError as error:
            self.waits += "synchroniz" in str(error)
            raise
        finally:
            if self.compiled is not None:
                self.compiled += self.compilations.count - before


class Compilations:
    """Count the kernels that Triton makes ready, from its disk cache too.

    Attributes:
        count: so far.
        told: whether this Triton calls anyone: its hook has moved before.
    """

    def __init__(self) -> None:
        self.count, self.told = 0, False
        try:
            import triton
        except ImportError:
            return
        self._runtime = getattr(getattr(triton, "knobs", None), "runtime", None)
        if hasattr(self._runtime, "jit_post_compile_hook"):
            self._runtime.jit_post_compile_hook = self._compiled
            self.told = True

    def end(self) -> None:
        """Hear of no more."""
        if self.told:
            self._runtime.jit_post_compile_hook = None

    def _compiled(self, **about: Any) -> None:
        self.count += 1


class LiveBytes:
    """Sample the bytes that torch's tensors hold on a device, in steps that hold nothing of their own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._samples: list[int] = []

    @property
    def count(self) -> int:
        """Samples so far."""
        return len(self._samples)

    def sample(self) -> None:
        """Take one."""
        self._samples.append(allocated(self._device))

    def grown(self) -> int:
        """Return by how much the least sample of the last quarter exceeds that of the second one."""
        quarter = len(self._samples) // 4
        if not quarter:
            return 0
        return max(0, min(self._samples[-quarter:]) - min(self._samples[quarter : 2 * quarter]))


def allocated(device: torch.device) -> int:
    """Return the bytes of torch's tensors on a CUDA device, 0 on a CPU."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
