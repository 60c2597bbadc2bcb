"""What rank 0 tells the other ranks: its decisions, in order, by request number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from mstar_resident.engine.pages import Ints
from mstar_resident.engine.request import Sampling


@dataclass(frozen=True, slots=True)
class Add:
    """A request was queued; it has this number from now on."""

    number: int
    id: str
    prompt: Ints
    max_new: int
    sampling: Sampling
    positions: Ints | None
    context: Ints | Tensor | None
    keep: bool


@dataclass(frozen=True, slots=True)
class Extend:
    """An idle request got its next turn."""

    number: int
    tokens: Ints
    max_new: int


@dataclass(frozen=True, slots=True)
class TakeIn:
    """A waiting request was admitted."""

    number: int


@dataclass(frozen=True, slots=True)
class Offload:
    """A request gave its pages up; its streams are in host memory."""

    number: int


@dataclass(frozen=True, slots=True)
class Reload:
    """An offloaded request got pages again; not ``done`` if there was no room, and then nothing happened."""

    number: int
    done: bool


@dataclass(frozen=True, slots=True)
class Empty:
    """The pages of an idle request were taken."""

    number: int


@dataclass(frozen=True, slots=True)
class Reserve:
    """Rows were to get the pages for so many tokens each; not ``done`` if that was refused and rolled back."""

    numbers: tuple[int, ...]
    tokens: tuple[int, ...]
    done: bool


@dataclass(frozen=True, slots=True)
class Step:
    """A step was launched, decode rows first."""

    numbers: tuple[int, ...]
    tokens: tuple[int, ...]
    samples: tuple[int, ...]
    decode_rows: int


@dataclass(frozen=True, slots=True)
class Read:
    """The oldest unread step's tokens were read."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """A request was found to have stopped."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class End:
    """A request was ended from outside, in whatever state."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Finish:
    """There is nothing left to follow; ``error`` says why if rank 0 failed."""

    error: str = ""


Move: TypeAlias = Add | Extend | TakeIn | Offload | Reload | Empty | Reserve | Step | Read | Stop | End | Finish
