"""How ranks hear of each other's decisions; what the model exchanges is the model's."""

from __future__ import annotations

import copy
import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch.distributed as dist

from mstar_resident.engine.ranks.moves import Move

if TYPE_CHECKING:
    from mstar_resident.engine.engine import Engine

#: A follower waits this long for its leader's next step.
PATIENCE = datetime.timedelta(hours=24)


class RankGroup(Protocol):
    """Carry moves from rank 0 to the others, in order, and answers from all to all."""

    @property
    def rank(self) -> int:
        """This rank, 0 to ``size - 1``."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    def tell(self, moves: Sequence[Move]) -> None:
        """Send moves to every other rank; rank 0 calls it."""

    def hear(self) -> list[Move]:
        """Wait for rank 0's next moves; every other rank calls it."""

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, in the order of ranks; all ranks call it."""


class TorchGroup:
    """Be a :class:`RankGroup` over ``torch.distributed``, whose default group must be initialised.

    Moves travel on the host, through a gloo group of their own, so that they wait for no device and a device's
    collectives wait for none of them.
    """

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._group = dist.new_group(backend="gloo", timeout=PATIENCE)

    def tell(self, moves: Sequence[Move]) -> None:
        """Broadcast moves."""
        dist.broadcast_object_list([list(moves)], src=0, group=self._group)

    def hear(self) -> list[Move]:
        """Receive a broadcast."""
        heard: list[Any] = [None]
        dist.broadcast_object_list(heard, src=0, group=self._group)
        moves: list[Move] = heard[0]
        return moves

    def gather(self, value: Any) -> list[Any]:
        """Gather a value of every rank's."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def leave(self, *engines: Engine) -> None:
        """Free the graphs of engines, wait for the other ranks, and end ``torch.distributed``; all ranks call it.

        NCCL's end waits for every graph that holds one of its collectives.
        """
        for engine in engines:
            if engine.graphs is not None:
                engine.graphs.drop()
        self.gather(None)
        dist.destroy_process_group()


class LocalGroup:
    """Be rank 0 of a group that only keeps what it is told: for one rank, for tests and for records.

    Attributes:
        told: what was told, one list a call; arrays are copies.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size
        self.told: list[list[Move]] = []

    def tell(self, moves: Sequence[Move]) -> None:
        """Keep moves."""
        self.told.append(copy.deepcopy(list(moves)))

    def hear(self) -> list[Move]:
        """Return the oldest moves that were told and not heard."""
        return self.told.pop(0)

    def gather(self, value: Any) -> list[Any]:
        """Return the value as every rank's."""
        return [value] * self.size
