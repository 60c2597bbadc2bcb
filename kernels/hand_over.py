"""Hand a step's tokens over: to the next step on the device, and to the host, whose memory the kernel writes itself.

A copy behind the graph keeps the device from the next graph while a copy engine takes over and gives back; a store
to pinned memory is done when the kernel is.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mstar_resident.errors import LayoutError


@triton.jit
def _hand_over_kernel(
    drawn: tl.tensor,
    seats: tl.tensor,
    last: tl.tensor,
    sampled: tl.tensor,
    b: tl.tensor,
    drawn_row: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < b
    token = tl.load(drawn + i * drawn_row, mask=inside)
    tl.store(last + tl.load(seats + i, mask=inside), token, mask=inside)
    tl.store(sampled + i, token, mask=inside)


def hand_over(drawn: Tensor, seats: Tensor, last: Tensor, sampled: Tensor) -> None:
    """Write every row's token to ``last`` at its seat, and to ``sampled``. Does not wait.

    Args:
        drawn: int64[b], of any stride: a sampler's column, say.
        seats: int64[b], contiguous; seats repeat in padding rows only, where any token may stay.
        last: int64[seats], contiguous, changed in place.
        sampled: int64[b], contiguous, overwritten: on the device, or in pinned memory of the host.

    Raises:
        LayoutError: a shape, stride or dtype does not fit, or ``sampled`` is host memory that is not pinned.
    """
    b = drawn.shape[0]
    for name, tensor, size in (("drawn", drawn, b), ("seats", seats, b), ("last", last, None), ("sampled", sampled, b)):
        strided = tensor is not drawn and not tensor.is_contiguous()
        if tensor.dtype != torch.int64 or tensor.dim() != 1 or strided:
            got = (tensor.dtype, tuple(tensor.shape), tensor.stride())
            expected = f"int64, one dimension{'' if tensor is drawn else ', contiguous'}"
            raise LayoutError.of(name, expected=expected, got=got)
        if size is not None and tensor.shape[0] != size:
            raise LayoutError.of(name, expected=f"{size} rows", got=tensor.shape[0])
    if sampled.device != drawn.device and not sampled.is_pinned():
        raise LayoutError.of("sampled", expected="pinned memory, or the device of drawn", got=str(sampled.device))
    if b:
        block = min(128, triton.next_power_of_2(b))
        _hand_over_kernel[(triton.cdiv(b, block),)](
            drawn, seats, last, sampled, b, drawn.stride(0), BLOCK=block, num_warps=1
        )
