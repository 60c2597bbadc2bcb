"""The buffers of a decode step's attention plan."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mstar_resident.attention.decode_plan import DecodePlan
from mstar_resident.engine.packed import PackedBuffers


class PlannedPages:
    """Name the pages of a decode step as a host plan gives them, at fixed addresses; filled before every step.

    Attributes:
        indptr: int32[b + 1], cpu|cuda: row i attends ``indices[indptr[i]:indptr[i + 1]]``; a padding row one page, the
            sink.
        indices: int32[b * P], cpu|cuda: page ids; room for every row's table, since rows may share pages.
        last_page_len: int32[b], cpu|cuda: tokens in each row's last page, 1 to the page size.
    """

    __slots__ = ("_heard", "_lengths", "_pages", "_version", "indices", "indptr", "last_page_len")

    def __init__(self, bucket: int, width: int, device: torch.device) -> None:
        int32 = torch.int32
        self._pages = PackedBuffers({"indptr": (bucket + 1, int32), "indices": (bucket * width, int32)}, device)
        self._lengths = PackedBuffers({"last_page_len": (bucket, int32)}, device)
        self.indptr: Tensor = self._pages.tensors["indptr"]
        self.indices: Tensor = self._pages.tensors["indices"]
        self.last_page_len: Tensor = self._lengths.tensors["last_page_len"]
        self._version = 0
        self._heard: Callable[[DecodePlan], None] | None = None
        # Before the first plan, as while a graph is captured, every row attends one token of the sink page.
        torch.arange(bucket + 1, dtype=int32, out=self.indptr)
        self.last_page_len.fill_(1)

    def fill(self, plan: DecodePlan) -> None:
        """Write a plan, as far as the buffers do not hold it, on the current cuda_stream; waits for nothing."""
        if self._version != plan.version:
            self._version = plan.version
            pages = self._pages.arrays
            pages["indptr"][:] = plan.indptr
            pages["indices"][: len(plan.indices)] = plan.indices
            self._pages.send("indices", len(plan.indices))
        self._lengths.arrays["last_page_len"][:] = plan.last_page_len
        self._lengths.send()
        if self._heard is not None:
            self._heard(plan)

    def listen(self, hear: Callable[[DecodePlan], None]) -> None:
        """Tell every later plan to a backend that plans more of its own on the host, once the buffers have it."""
        self._heard = hear
