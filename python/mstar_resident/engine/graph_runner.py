"""Run decode steps as CUDA graphs: prologue, forward, sampling and loop-back in one launch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from mstar_resident.capture import CapturedResidentStep, new_cuda_stream, show_progress
from mstar_resident.engine.host_plan import Ragged
from mstar_resident.engine.program import EagerRunner
from mstar_resident.engine.view import DecodeView
from mstar_resident.errors import InvariantError
from mstar_resident.recording import recording

logger = logging.getLogger("mstar_resident")


class Replay(Protocol):
    """Be a captured step."""

    def replay(self) -> None:
        """Launch it on the current cuda_stream."""


class GraphRunner:
    """Replay a captured graph for every decode view that has one; run everything else eagerly.

    Attributes:
        failed: per bucket that could not be captured, why; the engine runs its steps host-planned.
    """

    def __init__(self, eager: EagerRunner) -> None:
        self.eager = eager
        self.failed: dict[int, str] = {}
        self._graphs: dict[tuple[int, int, bool], Replay] = {}

    def capture(self, views: Sequence[DecodeView], walk: str = "decode") -> None:
        """Capture views, largest bucket first so that the smaller graphs fit the shared memory pool.

        Args:
            views: none of them flushed or filled before.
            walk: for the progress bar and log lines.

        Raises:
            InvariantError: a capture left the store or a lease's inputs not zero.
        """
        device = self.eager.program.last.device
        pool = torch.cuda.graph_pool_handle()
        cuda_stream = new_cuda_stream(device)
        ordered = sorted(views, key=lambda view: (-view.bucket, view.buffer_idx))
        for done, view in enumerate(ordered):
            show_progress(done, len(ordered), f"capturing {walk}, {view.bucket} rows")
            if view.bucket in self.failed:
                continue
            try:
                self._graphs[_key(view)] = self._capture(view, pool, cuda_stream)
            except InvariantError:
                raise
            except RuntimeError as error:
                self.failed[view.bucket] = str(error)
                pool = torch.cuda.graph_pool_handle()  # the failed one may still be recorded into
                logger.warning(
                    "bucket %d of walk %s runs host-planned: its capture failed: %s", view.bucket, walk, error
                )
        for bucket in self.failed:
            self._graphs = {key: graph for key, graph in self._graphs.items() if key[0] != bucket}
        show_progress(len(ordered), len(ordered), f"captured {walk}")

    def drop(self) -> None:
        """Free the graphs; later steps run eagerly."""
        self._graphs.clear()

    def decode(self, view: DecodeView) -> None:
        """Replay the view's graph, or run its step eagerly if it has none."""
        graph = self._graphs.get(_key(view))
        if graph is None:
            self.eager.decode(view)
        else:
            graph.replay()

    def fill(self, step: Ragged) -> Tensor:
        """Run a prefill or mixed step eagerly."""
        return self.eager.fill(step)

    def _capture(self, view: DecodeView, pool: Any, cuda_stream: torch.cuda.Stream) -> Replay:
        def body(_: object = None) -> None:
            self.eager.program.decode(view)

        planner = self.eager.planner
        if view.lease is not None and planner is not None:
            return CapturedResidentStep(planner, view.lease, body, pool=pool, cuda_stream=cuda_stream)
        return HostPlannedGraph(body, pool, cuda_stream)


class HostPlannedGraph:
    """Hold a decode step captured without a prologue: the host fills its buffers before every replay."""

    def __init__(self, body: Callable[[], None], pool: Any, cuda_stream: torch.cuda.Stream) -> None:
        cuda_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(cuda_stream):
            for _ in range(2):
                body()
        torch.cuda.current_stream().wait_stream(cuda_stream)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with recording(self._graph, pool, cuda_stream):
            body()

    def replay(self) -> None:
        """Launch it on the current cuda_stream."""
        self._graph.replay()


def _key(view: DecodeView) -> tuple[int, int, bool]:
    return (view.bucket, view.buffer_idx, view.lease is not None)
