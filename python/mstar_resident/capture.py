"""Capture resident steps: the prologue and a forward, one CUDA graph per lease, over a ladder of buckets."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch

from mstar_resident import _core
from mstar_resident.errors import InvariantError, LayoutError
from mstar_resident.lease import Lease
from mstar_resident.planner import ResidentPlanner
from mstar_resident.recording import recording
from mstar_resident.resources.base import ResidentResource, WalkDeclaration, check_walk

logger = logging.getLogger("mstar_resident")

#: Captured batch sizes by default.
BUCKETS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)
#: Graphs per bucket: step N+1 is flushed and launched while step N still reads its own lease.
BUFFERS = 2

Output = TypeVar("Output")
Forward = Callable[[Lease], Output]
Progress = Callable[[int, int, str], None]


class CapturedResidentStep(Generic[Output]):
    """Hold one resident step, prologue first, captured on one lease; on a CPU, run the same eagerly.

    ``forward`` reads the lease's outputs (lengths, write locations, columns) and the store's tables
    through ``lease.slots``, and must keep every other tensor that it reads at a fixed address. Capture
    comes before the lease's first flush: its inputs are zero, so warm-up and capture only read the
    trash row.

    Attributes:
        lease: the buffers that the graph reads and writes.
        output: what ``forward`` returned; a replay refills it in place on CUDA.

    Raises:
        LayoutError: the lease was flushed before.
        InvariantError: warm-up or capture left the store or the inputs not zero.
    """

    def __init__(
        self,
        planner: ResidentPlanner,
        lease: Lease,
        forward: Forward[Output],
        *,
        warmups: int = 2,
        pool: Any = None,
        cuda_stream: torch.cuda.Stream | None = None,
    ) -> None:
        if bool(lease.inputs.any()):
            raise LayoutError.of(
                "inputs of a lease to capture",
                expected="all zero: no step was flushed to it",
                got="cells",
                lease=lease.key,
            )
        self.lease = lease
        self._planner = planner
        self._forward = forward
        self._graph: torch.cuda.CUDAGraph | None = None
        self._graph_exec = 0
        was_zero = planner.store.is_zero()
        self.output: Output
        if planner.device.type == "cuda":
            self._capture(max(1, warmups), pool, cuda_stream or new_cuda_stream(planner.device))
        else:
            self._run()
        if bool(lease.inputs.any()):
            raise InvariantError(f"capture of {lease} left cells in its inputs", lease=lease.key)
        if not (planner.store.is_zero() if was_zero else planner.store.trash_row_is_zero()):
            raise InvariantError(f"capture of {lease} left the store's trash row not zero", lease=lease.key)
        self._addresses = self._current_addresses()

    def replay(self) -> None:
        """Replay the step on the current CUDA stream, after its flush on the same one.

        Raises:
            InvariantError: in debug mode, a buffer is no longer where the graph recorded it.
        """
        if self._planner.debug:
            self._check_addresses()
        if self._graph is not None:
            self._graph.replay()
        else:
            self._run()

    def launch(self, stage: _core.Stage, cuda_stream: int) -> int:
        """Flush a stage and launch the graph behind it, in one call of the native module; returns the copies issued.

        The same as ``planner.flush(stage, cuda_stream)`` and :meth:`replay`, for a forward that draws no random
        numbers from torch's generators: their offsets move in ``replay`` alone.

        Raises:
            StageDroppedError: the stage was dropped.
            InvariantError: in debug mode, a buffer is no longer where the graph recorded it.
        """
        if self._planner.debug:
            self._check_addresses()
        if self._graph_exec:
            return self._planner.launch(stage, self._graph_exec, cuda_stream)
        copies = self._planner.flush(stage, cuda_stream)
        if self._graph is not None:
            self._graph.replay()
        else:
            self._run()
        return copies

    def _check_addresses(self) -> None:
        now = self._current_addresses()
        if now != self._addresses:
            raise InvariantError.of("addresses", expected=self._addresses, got=now, lease=self.lease.key)

    def _run(self) -> None:
        self._planner.prologue(self.lease)
        self.output = self._forward(self.lease)

    def _capture(self, warmups: int, pool: Any, cuda_stream: torch.cuda.Stream) -> None:
        device = self._planner.device
        cuda_stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(cuda_stream):
            for _ in range(warmups):
                self._run()
        torch.cuda.current_stream(device).wait_stream(cuda_stream)
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with recording(graph, pool, cuda_stream):
            self._run()
        graph.replay()
        torch.cuda.synchronize(device)
        self._graph = graph
        # An older torch does not tell the address; launch then replays through torch.
        self._graph_exec = graph.raw_cuda_graph_exec() if hasattr(graph, "raw_cuda_graph_exec") else 0

    def _current_addresses(self) -> tuple[int, ...]:
        return (*self._planner.store.addresses(), *self.lease.addresses())


class CapturedWalk(Generic[Output]):
    """Hold a walk's captured steps, ``BUFFERS`` per bucket.

    Attributes:
        buckets: the ladder, ascending.
        failed: per bucket that could not be captured, why; its steps run host-planned.
    """

    def __init__(self, walk: str, buckets: Sequence[int]) -> None:
        self.walk = walk
        self.buckets = tuple(sorted(set(buckets)))
        self.failed: dict[int, str] = {}
        self._steps: dict[tuple[int, int], CapturedResidentStep[Output]] = {}

    def bucket(self, rows: int) -> int | None:
        """Return the least bucket that holds ``rows``; None, to run host-planned, above the widest or if it failed."""
        least = next((bucket for bucket in self.buckets if bucket >= rows), None)
        return None if least is None or least in self.failed else least

    def step(self, bucket: int, buffer_idx: int = 0) -> CapturedResidentStep[Output]:
        """Return the captured step of a bucket that :meth:`bucket` named.

        Raises:
            LayoutError: it was not captured.
        """
        found = self._steps.get((bucket, buffer_idx))
        if found is None:
            raise LayoutError.of("captured step", expected=f"one of {sorted(self._steps)}", got=(bucket, buffer_idx))
        return found


def alias_walk(planner: ResidentPlanner, captured: CapturedWalk[Output], walk: str) -> CapturedWalk[Output]:
    """Have ``walk`` run in the steps that another walk captured: a base model's under an adapter, say.

    Both walks then stage for the same leases, so that a step of one knows what a step of the other left there. What
    belongs to a step is kept by its lease, which names the walk that was captured.

    Raises:
        LayoutError: as :meth:`ResidentPlanner.alias`.
    """
    planner.alias(walk, captured.walk)
    shared: CapturedWalk[Output] = CapturedWalk(walk, captured.buckets)
    shared.failed, shared._steps = captured.failed, captured._steps
    return shared


def capture_walk(
    planner: ResidentPlanner,
    forward: Forward[Output],
    *,
    resources: Sequence[ResidentResource] = (),
    declarations: Sequence[WalkDeclaration] = (),
    walk: str = "decode",
    buckets: Sequence[int] = BUCKETS,
    progress: Progress | None = None,
) -> CapturedWalk[Output]:
    """Capture a walk's ladder, largest bucket first so that the smaller ones fit the shared memory pool.

    Buckets wider than the planner's ``max_batch`` are left out. A bucket whose capture raises a
    ``RuntimeError`` is kept as failed, with one log line.

    Raises:
        CaptureRefused: a declared step of the walk cannot be resident.
        LayoutError: no bucket is left, or the walk did not opt in.
    """
    check_walk(resources, walk, declarations)
    ladder = [bucket for bucket in sorted(set(buckets), reverse=True) if bucket <= planner.max_batch]
    if not ladder:
        raise LayoutError.of("buckets", expected=f"at least one of at most {planner.max_batch} rows", got=list(buckets))
    captured: CapturedWalk[Output] = CapturedWalk(walk, ladder)
    cuda = planner.device.type == "cuda"
    pool = torch.cuda.graph_pool_handle() if cuda else None
    cuda_stream = new_cuda_stream(planner.device) if cuda else None
    show = progress or show_progress
    for done, bucket in enumerate(ladder):
        show(done, len(ladder), f"capturing {walk}, {bucket} rows")
        try:
            for buffer_idx in range(BUFFERS):
                lease = planner.lease(bucket, walk, buffer_idx)
                captured._steps[bucket, buffer_idx] = CapturedResidentStep(
                    planner, lease, forward, pool=pool, cuda_stream=cuda_stream
                )
        except InvariantError:
            raise
        except RuntimeError as error:
            for buffer_idx in range(BUFFERS):
                captured._steps.pop((bucket, buffer_idx), None)
            captured.failed[bucket] = str(error)
            pool = torch.cuda.graph_pool_handle() if cuda else None  # the failed one may still be recorded into
            logger.warning(
                "%s: bucket %d of walk %s runs host-planned, its capture failed: %s", planner.name, bucket, walk, error
            )
    show(len(ladder), len(ladder), f"captured {walk}")
    return captured


def new_cuda_stream(device: torch.device) -> torch.cuda.Stream:
    """Make a CUDA stream; graphs cannot be captured on the default one."""
    return torch.cuda.Stream(device)


def show_progress(done: int, total: int, text: str) -> None:
    """Draw a progress bar on a terminal's standard error; draw nothing elsewhere."""
    if sys.stderr.isatty():
        width = 30
        filled = width * done // total
        sys.stderr.write(
            f"\r[{'#' * filled}{'.' * (width - filled)}] {done}/{total} {text:<40}" + ("\n" if done == total else "")
        )
        sys.stderr.flush()
