"""How paged decode attention is launched: choices tuned offline by ``benches/gpu/tune_attention.py``, kept here."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Launch:
    """Say how the kernels are compiled and how wide their grid is.

    Args:
        tile: tokens of a tile.
        warps: warps of a program.
        stages: of the loop over tiles: one more than the tiles of keys and values held in shared memory.
        programs: programs that a multiprocessor holds at once.
    """

    tile: int
    warps: int
    stages: int
    programs: int


#: By head dim: the most rows of a bucket that a launch is for, and the launch, in order of rows.
LAUNCHES: dict[int, tuple[tuple[float, Launch], ...]] = {
    64: ((32, Launch(64, 4, 3, 2)), (math.inf, Launch(64, 4, 4, 4))),
    128: ((32, Launch(64, 4, 3, 2)), (math.inf, Launch(32, 4, 4, 4))),
    256: ((48, Launch(32, 4, 3, 2)), (math.inf, Launch(64, 4, 2, 3))),
}


def launch_of(head_dim: int, rows: int) -> Launch:
    """Return the launch of a bucket; a head dim of :data:`LAUNCHES`."""
    return next(launch for most, launch in LAUNCHES[head_dim] if rows <= most)
