"""Recording a CUDA graph."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def recording(
    graph: torch.cuda.CUDAGraph, pool: Any = None, cuda_stream: torch.cuda.Stream | None = None
) -> Iterator[None]:
    """Record what is launched inside into ``graph``, on ``cuda_stream`` and out of the graphs' memory ``pool``.

    Nothing is garbage-collected meanwhile: an engine that went out of use takes its graphs along when its cycles are
    found, and a graph that is freed during a capture ends that capture.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=cuda_stream):
            yield
    finally:
        if collecting:
            gc.enable()
