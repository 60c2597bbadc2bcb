"""Arrays that cross the native boundary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mstar_resident.errors import LayoutError

#: Handles, counts, pages and values: int64[n], cpu, contiguous. Any sequence of ints is converted.
Ints = npt.NDArray[np.int64] | Sequence[int]


def as_int64(values: Ints, name: str) -> npt.NDArray[np.int64]:
    """Return ``values`` as a contiguous ``int64[n]`` array, the same object if it already is one.

    Raises:
        LayoutError: not one-dimensional, or not ints.
    """
    array = np.asarray(values)
    if array.dtype != np.int64:
        if array.size and (array.dtype.kind not in "iu" or array.dtype == np.uint64):
            raise LayoutError.of(name, expected="ints that fit int64", got=str(array.dtype))
        array = array.astype(np.int64)
    if array.ndim != 1:
        raise LayoutError.of(name, expected="one dimension", got=array.ndim)
    return np.ascontiguousarray(array)
