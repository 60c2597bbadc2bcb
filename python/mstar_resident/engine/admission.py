"""A request's way in, out, to host memory and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from mstar_resident.engine.arm import HostArm
from mstar_resident.engine.config import EngineConfig
from mstar_resident.engine.counters import Counters
from mstar_resident.engine.indices import Indices
from mstar_resident.engine.inputs import PagedKV
from mstar_resident.engine.memory import Memory
from mstar_resident.engine.node import Node
from mstar_resident.engine.offload import HostCopy
from mstar_resident.engine.owned_memory import OwnedMemory
from mstar_resident.engine.prefix import PrefixCache
from mstar_resident.engine.request import Request, State
from mstar_resident.engine.sampler import Sampler
from mstar_resident.engine.streams import Streams
from mstar_resident.models.base import Decoder


@runtime_checkable
class Encoder(Protocol):
    """Fill read-only pools with a request's context; a model that has such pools implements it."""

    def encode(self, context: Tensor, kv: dict[str, PagedKV]) -> None:
        """Write the context, tokens ``int64[t]`` or states ``[t, d]``, to every read-only pool's ``write_loc``."""


class Admission:
    """Give a request all that it holds, and take it back, on every way out."""

    def __init__(
        self,
        config: EngineConfig,
        model: Decoder,
        node: Node,
        memory: Memory,
        arm: HostArm,
        sampler: Sampler,
        counters: Counters,
    ) -> None:
        self._config = config
        self._model = model
        self._node = node
        self._memory = memory
        self._arm = arm
        self._sampler = sampler
        self._counters = counters
        self.states = Indices("recurrent index", config.recurrent_states)
        self._offloaded: dict[Request, tuple[HostCopy, State]] = {}
        self._parents: list[Request] = []
        self._prefix: PrefixCache | None = None
        self._pool: Streams | None = None
        appending = [entry for entry in node.streams.values() if entry.span]
        # A hit skips tokens, which only paged state allows; with several pools every one would have to hit.
        if config.prefix_cache and node.recurrent is None and len(node.streams) == len(appending) == 1:
            self._pool = appending[0]
            if not isinstance(memory, OwnedMemory):
                self._prefix = memory.prefix = PrefixCache(appending[0].pool)

    def has_place(self) -> bool:
        """Return whether a request could get a seat and, for a recurrent model, an index."""
        return bool(self._node.seats.free and (self._node.recurrent is None or self.states.free))

    def has_pages(self, request: Request) -> bool:
        """Return whether every pool has the pages for a request's prompt or context."""
        for entry in self._node.streams.values():
            length = len(request.prompt) if entry.span else len(request.context if request.context is not None else ())
            if self._memory.free(entry) < -(-length // entry.pool.page_size):
                return False
        return True

    def admit(self, request: Request) -> None:
        """Give a waiting request a seat, a recurrent index and its context; ask first whether there are any."""
        node, seats = self._node, self._node.seats
        seats.take(request)
        seat = request.seat
        seats.offset[seat] = request.offset
        seats.granted[seat] = request.max_new
        if node.recurrent is not None:
            seats.recurrent[seat] = self.states.take()
        self._sampler.admit(seat, request.sampling)
        self._arm.opened(request)
        self._encode(request)
        request.filled = request.prompt
        request.state = State.PREFILL
        self._match(request)

    def release(self, request: Request, reason: str) -> None:
        """End a request, wherever it is, and take back all that it holds."""
        if request.seat:
            self._offloaded.pop(request, None)
            if request in self._parents:
                self._parents.remove(request)
            self._arm.released(request)
            self._memory.release(request)
            self._give_index(request)
            self._node.seats.give(request)
        request.state, request.reason = State.DONE, reason

    def offload(self, request: Request) -> None:
        """Copy a request's streams and state to the host and take its pages and its index."""
        node, seat = self._node, request.seat
        copy = HostCopy.take(node.kv, node.streams, seat, node.recurrent, int(node.seats.recurrent[seat]))
        self._offloaded[request] = (copy, request.state)
        self._arm.offloaded(request)
        self._memory.release(request)
        self._give_index(request)
        request.state = State.OFFLOADED
        self._counters.offloads += 1

    def reload(self, request: Request) -> bool:
        """Put an offloaded request on other pages, maybe another index; return whether there was room."""
        node, seat = self._node, request.seat
        copy, state = self._offloaded[request]
        if node.recurrent is not None and not self.states.free:
            return False
        for name, entry in node.streams.items():
            # One page above what it needs, so that its next step does not send it away again.
            if self._memory.free(entry) < -(-copy.lengths[name] // entry.pool.page_size) + entry.span:
                return False
        for name, entry in node.streams.items():
            if not self._memory.place(entry, seat, copy.lengths[name]):
                raise RuntimeError(f"pool {name} said it had pages for {copy.lengths[name]} tokens")
        if node.recurrent is not None:
            node.seats.recurrent[seat] = self.states.take()
            self._arm.offset_changed(request)
        copy.put(node.kv, node.streams, seat, node.recurrent, int(node.seats.recurrent[seat]))
        del self._offloaded[request]
        request.state = state
        self._counters.reloads += 1
        return True

    def park(self, request: Request, length: int) -> None:
        """Have an offloaded request come back idle, with streams of ``length`` tokens."""
        copy, _ = self._offloaded[request]
        lengths = {name: length if self._node.streams[name].span else had for name, had in copy.lengths.items()}
        self._offloaded[request] = (replace(copy, lengths=lengths), State.IDLE)
        self._node.seats.stored[request.seat] = length

    def refill(self, request: Request) -> None:
        """Have a request's tokens stored anew, from the first: its recurrent state is not to be trusted.

        An idle request waits for its next turn with that.
        """
        self._memory.rewind(request, 0)
        self._node.seats.epoch[request.seat] += 1
        self._node.seats.launched[request.seat] = len(request.outputs)
        if request.state is not State.IDLE:
            request.filled = request.tokens()
            request.state = State.PREFILL
        self._counters.refills += 1

    def sealed(self, request: Request) -> None:
        """Hear that a request's prompt is stored: its full pages can be shared from now on."""
        if self._pool is None or request.positions is not None:
            return
        if self._prefix is not None:
            self._prefix.seal(request.filled, self._pool.pages(request.seat))
        elif request not in self._parents:
            self._parents.append(request)

    def _match(self, request: Request) -> None:
        """Begin with pages that hold the same tokens already, if there are any."""
        if self._pool is None or request.positions is not None:
            return
        size, seat = self._pool.pool.page_size, request.seat
        if self._prefix is not None:
            pages = self._prefix.match(request.filled)
            if len(pages):
                self._memory.adopt(self._pool, seat, pages, len(pages) * size)
        elif isinstance(self._memory, OwnedMemory):
            for parent in (p for p in self._parents if p.state.holds_pages):
                most = min(len(request.filled) - 1, int(self._pool.length[parent.seat]), len(parent.filled))
                same = parent.filled[:most] == request.filled[:most]
                tokens = (most if same.all() else int(same.argmin())) // size * size
                if tokens:
                    self._memory.fork(self._pool, parent.seat, seat, tokens)
                    break
        stored = int(self._pool.length[seat])
        self._node.seats.stored[seat] = stored
        self._counters.prefix_pages += stored // size

    def _encode(self, request: Request) -> None:
        kv = {}
        for name, entry in self._node.streams.items():
            if entry.span or request.context is None:
                continue
            length = len(request.context)
            if not self._memory.place(entry, request.seat, length):
                raise RuntimeError(f"pool {name} said it had pages for {length} tokens")
            index = np.arange(length)
            loc = torch.from_numpy(entry.locate(np.full(length, request.seat), index)).to(self._config.device)
            table = torch.from_numpy(entry.table[request.seat : request.seat + 1].copy()).to(self._config.device)
            lengths = torch.tensor([length], dtype=torch.int32)
            kv[name] = PagedKV(table, torch.zeros(1, dtype=torch.int64), lengths, loc, entry.pool.page_size)
        if kv and isinstance(self._model, Encoder):
            self._model.encode(torch.as_tensor(request.context).to(self._config.device), kv)

    def _give_index(self, request: Request) -> None:
        index = int(self._node.seats.recurrent[request.seat])
        if index:
            self.states.give(index)
            self._node.seats.recurrent[request.seat] = 0
