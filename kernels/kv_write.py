"""Write a step's keys and values to their places in one layer of a KV pool."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mstar_resident.errors import LayoutError


@triton.jit
def _write_kernel(
    kv: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    write_loc: tl.tensor,
    kv_page: tl.tensor,
    kv_side: tl.tensor,
    kv_token: tl.tensor,
    kv_head: tl.tensor,
    k_token: tl.tensor,
    k_head: tl.tensor,
    v_token: tl.tensor,
    v_head: tl.tensor,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    loc = tl.load(write_loc + token).to(tl.int64)
    e = tl.arange(0, BLOCK)
    head = e // D
    d = e % D
    inside = e < HEADS * D
    key = tl.load(k + token * k_token + head * k_head + d, mask=inside)
    value = tl.load(v + token * v_token + head * v_head + d, mask=inside)
    at = kv + (loc // PAGE_SIZE) * kv_page + (loc % PAGE_SIZE) * kv_token + head * kv_head + d
    tl.store(at, key.to(kv.dtype.element_ty), mask=inside)
    tl.store(at + kv_side, value.to(kv.dtype.element_ty), mask=inside)


def write(kv_layer: Tensor, k: Tensor, v: Tensor, write_loc: Tensor) -> None:
    """Write ``k`` and ``v`` of t tokens; locations repeat in the sink page only, where any of them may stay.

    Args:
        kv_layer: [pages, 2, page_size, kv_heads, head_dim], last stride 1, changed in place: keys, then values.
        k: [t, kv_heads, head_dim], last stride 1.
        v: [t, kv_heads, head_dim], last stride 1.
        write_loc: int64[t], contiguous: page * page_size + offset.

    Raises:
        LayoutError: shapes, strides or dtypes do not fit.
    """
    _, _, page_size, heads, head_dim = kv_layer.shape
    shape = (write_loc.shape[0], heads, head_dim)
    for name, tensor in (("k", k), ("v", v)):
        if tuple(tensor.shape) != shape or tensor.stride(2) != 1:
            got = (tuple(tensor.shape), tensor.stride())
            raise LayoutError.of(name, expected=(shape, "last stride 1"), got=got)
    if write_loc.dtype != torch.int64 or not write_loc.is_contiguous():
        raise LayoutError.of("write_loc", expected="int64, contiguous", got=(write_loc.dtype, write_loc.stride()))
    if kv_layer.shape[1] != 2 or kv_layer.stride(4) != 1:
        got = (tuple(kv_layer.shape), kv_layer.stride())
        raise LayoutError.of("kv_layer", expected="[pages, 2, page_size, kv_heads, head_dim], last stride 1", got=got)
    if shape[0] == 0:
        return
    _write_kernel[(shape[0],)](
        kv_layer,
        k,
        v,
        write_loc,
        *kv_layer.stride()[:4],
        *k.stride()[:2],
        *v.stride()[:2],
        HEADS=heads,
        D=head_dim,
        PAGE_SIZE=page_size,
        BLOCK=triton.next_power_of_2(heads * head_dim),
        num_warps=4 if heads * head_dim >= 512 else 1,
    )
