"""Streams of cold requests, kept in host memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mstar_resident.engine.streams import Streams
from mstar_resident.models.base import RecurrentPool


@dataclass(frozen=True, slots=True)
class HostCopy:
    """Hold what an offloaded request had on the device: its used pages and its recurrent state.

    The copies run on the current cuda_stream, after every launched step, so that they include what those wrote, and
    before every later one, so that the pages can be others' at once. Nothing waits for them: what comes back is copied
    on the same cuda_stream.
    """

    pages: dict[str, Tensor]
    """Per pool [layers, used pages, 2, page_size, kv_heads, head_dim], cpu, pinned if the pool is on a device."""
    lengths: dict[str, int]
    state: tuple[Tensor, Tensor] | None

    @classmethod
    def take(
        cls,
        kv: Mapping[str, Tensor],
        streams: Mapping[str, Streams],
        seat: int,
        recurrent: RecurrentPool | None,
        index: int,
    ) -> HostCopy:
        """Copy a seat's streams and state to the host."""
        pages = {}
        for name, entry in streams.items():
            used = torch.from_numpy(entry.pages(seat)[: entry.used(seat)])
            pages[name] = _to_host(kv[name].index_select(1, used.to(kv[name].device)))
        state = None
        if recurrent is not None:
            state = (_to_host(recurrent.conv[:, index].clone()), _to_host(recurrent.ssm[:, index].clone()))
        return cls(pages, {name: int(entry.length[seat]) for name, entry in streams.items()}, state)

    def put(
        self,
        kv: Mapping[str, Tensor],
        streams: Mapping[str, Streams],
        seat: int,
        recurrent: RecurrentPool | None,
        index: int,
    ) -> None:
        """Copy everything back, to the pages and the index that the seat has now."""
        for name, entry in streams.items():
            used = torch.from_numpy(entry.pages(seat)[: entry.used(seat)]).to(kv[name].device)
            pages = self.pages[name][:, : len(used)].to(kv[name].device, non_blocking=True)
            kv[name].index_copy_(1, used, pages)
        if recurrent is not None and self.state is not None:
            recurrent.conv[:, index] = self.state[0].to(recurrent.conv.device)
            recurrent.ssm[:, index] = self.state[1].to(recurrent.ssm.device)


def _to_host(copy: Tensor) -> Tensor:
    """Return a tensor of a request's own on the host; from a device through pinned memory, without waiting."""
    if copy.device.type == "cpu":
        return copy
    pinned = torch.empty(copy.shape, dtype=copy.dtype, pin_memory=True)
    return pinned.copy_(copy, non_blocking=True)
