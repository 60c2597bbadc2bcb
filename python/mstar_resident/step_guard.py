"""A debug guard around the step path: nothing on it may allocate, grow or wait for the device."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mstar_resident.errors import InvariantError
from mstar_resident.planner import ResidentPlanner


@contextmanager
def step_guard(planner: ResidentPlanner) -> Iterator[None]:
    """Raise if the guarded calls allocate device or pinned memory through torch, wait for the device, or move a buffer.

    Wrap promote or stage, flush, replay and commit. A ring that is full waits for its oldest buffer without torch and
    is counted in ``stats().ring_waits``; that is the one wait allowed. On a CPU only the addresses are guarded.

    Raises:
        InvariantError: the calls allocated, or the store or the ring is elsewhere than before.
        RuntimeError: torch's own, where a call waited for the device.
    """
    cuda = planner.device.type == "cuda"
    addresses = (*planner.store.addresses(), *planner.stager.addresses())
    before = _allocations(planner.device) if cuda else (0, 0)
    with no_waits(planner.device):
        yield
    after = _allocations(planner.device) if cuda else (0, 0)
    if after != before:
        raise InvariantError.of("allocations on the step path, device and pinned", expected=before, got=after)
    now = (*planner.store.addresses(), *planner.stager.addresses())
    if now != addresses:
        raise InvariantError.of("addresses of the store and the ring", expected=addresses, got=now)


@contextmanager
def no_waits(device: torch.device) -> Iterator[None]:
    """Raise torch's RuntimeError where a guarded call waits for the device; a wait for an event is none."""
    if device.type != "cuda":
        yield
        return
    mode = torch.cuda.get_sync_debug_mode()
    _set_sync_debug_mode(2)
    try:
        yield
    finally:
        _set_sync_debug_mode(mode)


def _set_sync_debug_mode(mode: int) -> None:
    """Set what torch does when a call waits for the device: 0 nothing, 1 warn, 2 raise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is a prototype
        torch.cuda.set_sync_debug_mode(mode)


def _allocations(device: torch.device) -> tuple[int, int]:
    """Return how often torch allocated device and pinned memory so far."""
    on_device = torch.cuda.memory_stats(device).get("allocation.all.allocated", 0)
    pinned = torch.cuda.host_memory_stats()
    return int(on_device), int(pinned.get("active_requests.allocated", pinned["num_host_alloc"]))
