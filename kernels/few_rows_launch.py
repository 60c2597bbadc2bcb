"""How a matrix product of few rows is spread over programs and threads, by its shape."""

from __future__ import annotations

from typing import NamedTuple


class Launch(NamedTuple):
    """Say how a product is spread over programs and threads; every choice gives the same answer but for rounding."""

    block_n: int  # columns of the answer that a program makes (of each half, where there are two)
    block_k: int  # what it loads of each at once, a tile ahead of the one it works on
    warps: int

    def fitted(self, n: int, k: int) -> Launch:
        """Return the same for n columns of k elements: tiles no larger, eight elements of one for every thread."""
        block_n, block_k = min(self.block_n, _power_of_two(n)), min(self.block_k, max(16, _power_of_two(k)))
        return Launch(block_n, block_k, min(self.warps, max(1, block_k // 256)))


#: Most rows of a product that the kernel makes faster than a library: measured on an H200, as all of this file.
FEW_ROWS = 4
#: Most rows, at so many elements of k, for which a norm in front costs less in every program than in a kernel.
NORMED_ROWS, NORMED_K = 2, 1024
#: Columns from which a product is so long that a library's kernels reach the bandwidth, too.
MANY_COLUMNS = 65_536


def fuses_norm(rows: int, k: int) -> bool:
    """Return whether a norm is computed by every program of the product behind it."""
    return rows == 1 or (rows <= NORMED_ROWS and k <= NORMED_K)


def choose(rows: int, n: int, k: int, pair: bool = False) -> Launch:
    """Return the launch for rows and columns of k elements, halved by a pair of them."""
    columns = 2 if pair else 1
    if k <= 1024:
        launch = Launch(8 // columns, 512, 2) if rows == 1 else Launch(4, 1024, 4)
    elif n > 4096:
        launch = Launch(4 // columns, 512, 2)
    elif k <= 2048:
        launch = Launch(2 if rows == 1 else 4, 2048, 4)
    elif k <= 4096 and n < 2048:
        launch = Launch(2, 4096, 4)
    elif rows == 1:
        launch = Launch(2, 1024, 4)
    else:
        launch = Launch(4 if k <= 4096 else 8, 1024, 4)
    return launch.fitted(n, k)


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
