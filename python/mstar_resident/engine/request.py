"""One request, from its prompt to its last token."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from mstar_resident.engine.pages import Ints


class State(enum.Enum):
    """Say where in its life a request is."""

    WAITING = "waiting"
    """Not admitted: it holds nothing."""
    PREFILL = "prefill"
    """Tokens before its next one are not all stored yet."""
    DECODE = "decode"
    """Every step can add a token."""
    OFFLOADED = "offloaded"
    """Its pages lie in host memory; it holds a seat and a handle."""
    IDLE = "idle"
    """Stopped, and kept for a next turn."""
    DONE = "done"
    """Over: it holds nothing."""

    @property
    def holds_pages(self) -> bool:
        """Whether its streams are on the device."""
        return self in (State.PREFILL, State.DECODE, State.IDLE)


@dataclass(frozen=True, slots=True)
class Sampling:
    """Say how the next token is drawn; temperature 0 is greedy, top_k 0 and top_p 1 cut nothing off."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


@dataclass(slots=True, eq=False)
class Request:
    """Hold what a caller asked for and what became of it.

    ``positions`` are a prompt's explicit positions, one a token (images advance them by less than their tokens);
    later tokens continue from the last. ``context`` fills the read-only pools: tokens, or an encoder's states
    ``[t, d]``. A request with ``keep`` turns idle when it stops, and can be given a next turn.
    """

    id: str
    prompt: Ints
    max_new: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: frozenset[int] = frozenset()
    positions: Ints | None = None
    context: Ints | Tensor | None = None
    keep: bool = False
    on_token: Callable[[int], None] | None = None

    state: State = State.WAITING
    seat: int = 0
    """Its place in the engine's arrays and in the sampler's device state, for its whole life; 0 is padding's."""
    filled: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Tokens that a prefill must store before the next one is sampled."""
    outputs: list[int] = field(default_factory=list)
    """Sampled tokens that the host has read, those of earlier turns included."""
    turn: int = 0
    """How many outputs belong to earlier turns, and so to the prompt."""
    reason: str = ""
    """Why it stopped: ``stop``, ``length``, ``abort`` or ``error``."""

    @property
    def offset(self) -> int:
        """Position of a token after the prompt minus its index: one constant per prompt, negative after images."""
        if self.positions is None:
            return 0
        return int(self.positions[-1]) + 1 - len(self.positions)

    def positions_of(self, first: int, count: int) -> Ints:
        """Return the positions of tokens ``first`` to ``first + count``."""
        index = np.arange(first, first + count, dtype=np.int64)
        if self.positions is None:
            return index
        known = len(self.positions)
        return np.where(index < known, self.positions[np.minimum(index, known - 1)], index + self.offset)

    def tokens(self) -> Ints:
        """Return every token that the host knows: the prompt, with all turns so far, and the outputs."""
        return np.concatenate([self.prompt, np.asarray(self.outputs[self.turn :], dtype=np.int64)])
