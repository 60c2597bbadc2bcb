"""How a gated delta net's step is spread over programs, by rows, shared key heads and type of state."""

from __future__ import annotations

import math
from typing import NamedTuple


class Launch(NamedTuple):
    """Say how a step is spread over programs and threads; every choice gives the same answer."""

    fused: bool  # one launch, or the convolution in one of its own; apart wherever key heads are shared
    block: int  # value channels of a tile
    warps: int
    ahead: bool = False  # a tile is loaded before the one before it is worked on

    def fitted(self, share: int, K: int, V: int) -> Launch:
        """Return the same for such heads: tiles within V, eight elements of a tile or more for every thread."""
        block = min(self.block, V)
        warps = max(1, min(self.warps, block * K // 256))
        return self._replace(fused=self.fused and share == 1, block=block, warps=warps)


#: By bytes of a state's element and value heads of a key head (more than two as two): up to how many rows, and how.
CHOSEN: dict[tuple[int, int], list[tuple[float, Launch]]] = {
    (4, 1): [(16, Launch(True, 64, 8, ahead=True)), (math.inf, Launch(True, 16, 4))],
    (4, 2): [(8, Launch(False, 128, 8, ahead=True)), (math.inf, Launch(False, 8, 4, ahead=True))],
    (2, 1): [(math.inf, Launch(True, 32, 4, ahead=True))],
    (2, 2): [(32, Launch(False, 128, 16, ahead=True)), (math.inf, Launch(False, 16, 4, ahead=True))],
}


def choose(rows: int, share: int, state_bytes: int) -> Launch:
    """Return the launch for a number of rows, of value heads of a key head and of bytes of a state's element."""
    chosen = CHOSEN[2 if state_bytes <= 2 else 4, min(share, 2)]
    return next(launch for most, launch in chosen if rows <= most)
