"""Matrix products of few rows, which take as long as their weights take to be loaded, with their neighbours.

A program makes a few columns of the answer for every row, and sums over all of k: nothing is added up between
programs, so that an answer does not depend on their order. Products accumulate in float32. What lies in front (the
residual sum and its norm, or a sigmoid gate) is computed by every program again, as its row is small beside the
weights; the norm's scale, one number of a row, is multiplied to the finished product. Each thread multiplies and adds
a part of k for every column of a tile: from five rows on, a library's tensor cores are the better choice.

Launched early, where a device can, programs start before the kernel ahead of them has ended, load their first weights,
the norm's too, and wait for it before they read anything else.
"""

# mypy: disable-error-code="possibly-undefined, assignment"
# (the compiler takes one branch of a constant condition, and unrolls loops in which tuples grow)
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mstar_resident.errors import LayoutError
from mstar_resident.kernels.early import options, starts_early
from mstar_resident.kernels.few_rows_launch import FEW_ROWS, Launch, choose


@triton.jit
def _load(weight: tl.tensor, column: tl.tensor, k: tl.tensor, n: tl.tensor, shift: tl.tensor, K: tl.constexpr) -> Any:
    """Load a tile [columns, k] of the weights, ``shift`` columns on."""
    at = weight + (column + shift).to(tl.int64) * K + k
    return tl.load(at, mask=(column < n) & (k < K), other=0.0)


@triton.jit
def _sum_of_eight(x: tl.tensor, ROWS: tl.constexpr, BLOCK_K: tl.constexpr) -> Any:
    """Sum what a thread holds side by side; what crosses threads is summed once, at the end."""
    return tl.sum(tl.reshape(x, (ROWS, BLOCK_K // 8, 8)), 2)


@triton.jit
def _few_rows_kernel(
    x: tl.tensor,
    h: tl.tensor,
    gate: tl.tensor,
    norm: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    total: tl.tensor,
    out: tl.tensor,
    eps: tl.tensor,
    rows: tl.tensor,
    n: tl.tensor,
    x_row: tl.tensor,
    h_row: tl.tensor,
    gate_row: tl.tensor,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PAIR: tl.constexpr,
    HAS_ADD: tl.constexpr,
    HAS_GATE: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    pid = tl.program_id(0)
    first = pid * BLOCK_N
    column = first + tl.arange(0, BLOCK_N)[:, None]
    at = tl.arange(0, BLOCK_K)[None, :]
    CHUNKS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    # The weights are on their way before anything waits for the rows.
    tile = _load(weight, column, at, n, 0, K)
    if PAIR:
        other = _load(weight, column, at, n, n, K)
    if HAS_NORM:
        scale = tl.load(norm + at, mask=at < K, other=0.0).to(tl.float32)
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    if first >= n:  # one program more writes the sum, to where nobody reads
        if HAS_ADD:
            for r in tl.static_range(ROWS):
                for c in tl.static_range(CHUNKS):
                    d = c * BLOCK_K + tl.arange(0, BLOCK_K)
                    there = (d < K) & (r < rows)
                    summed = tl.load(x + r * x_row + d, mask=there, other=0.0).to(tl.float32)
                    summed += tl.load(h + r * h_row + d, mask=there, other=0.0).to(tl.float32)
                    tl.store(total + r * K + d, summed, mask=there)
    else:
        sums = ()
        others = ()
        squares = ()
        for c in tl.static_range(CHUNKS):
            k = c * BLOCK_K + at
            values = ()
            for r in tl.static_range(ROWS):
                live = (k < K) & (r < rows)
                value = tl.load(x + r * x_row + k, mask=live, other=0.0).to(tl.float32)
                if HAS_ADD:
                    value += tl.load(h + r * h_row + k, mask=live, other=0.0).to(tl.float32)
                if HAS_GATE:
                    by = tl.load(gate + r * gate_row + k, mask=live, other=0.0).to(tl.float32)
                    value /= 1.0 + tl.exp(-by)
                values += (value,)
            if HAS_NORM and c:
                scale = tl.load(norm + k, mask=k < K, other=0.0).to(tl.float32)
            if c + 1 < CHUNKS:
                following = _load(weight, column, k + BLOCK_K, n, 0, K)
                if PAIR:
                    following_other = _load(weight, column, k + BLOCK_K, n, n, K)
            more = ()
            more_others = ()
            more_squares = ()
            for r in tl.static_range(ROWS):
                value = values[r]
                if HAS_NORM:
                    part = _sum_of_eight(value * value, 1, BLOCK_K)
                    more_squares += (part if c == 0 else part + squares[r],)
                    value *= scale
                part = _sum_of_eight(tile.to(tl.float32) * value, BLOCK_N, BLOCK_K)
                more += (part if c == 0 else part + sums[r],)
                if PAIR:
                    part = _sum_of_eight(other.to(tl.float32) * value, BLOCK_N, BLOCK_K)
                    more_others += (part if c == 0 else part + others[r],)
            sums = more
            others = more_others
            squares = more_squares
            if c + 1 < CHUNKS:
                tile = following
                if PAIR:
                    other = following_other
        columns = first + tl.arange(0, BLOCK_N)
        for r in tl.static_range(ROWS):
            y = tl.sum(sums[r], 1)
            if HAS_NORM:
                root = tl.rsqrt(tl.sum(squares[r], 1) / K + eps)
                y *= root
            if PAIR:
                up = tl.sum(others[r], 1)
                if HAS_NORM:
                    up *= root
                y = y / (1.0 + tl.exp(-y)) * up
            if HAS_BIAS:
                y += tl.load(bias + columns, mask=columns < n, other=0.0).to(tl.float32)
            tl.store(out + r * n + columns, y.to(out.dtype.element_ty), mask=(columns < n) & (r < rows))


def product(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    h: Tensor | None = None,
    total: Tensor | None = None,
    norm: Tensor | None = None,
    eps: float = 0.0,
    gate: Tensor | None = None,
    bias: Tensor | None = None,
    swiglu: bool = False,
    _launch: Launch | None = None,
    _early: bool | None = None,
) -> None:
    """Write y = x weight^T, with what lies in front of it and behind. Does not wait.

    In front: x + h in float32, written to ``total``; its RMS norm times ``norm``; or x * sigmoid(gate). Behind: the
    bias, or silu of the first half of y times the second.

    Args:
        x: [t, k], last stride 1, t <= FEW_ROWS.
        weight: [n, k], contiguous; with ``swiglu`` [2 * n, k]. Launched early, a kernel loads weights before the one
            ahead of it has ended: that one must not have written them.
        out: [t, n], contiguous, overwritten.
        h: [t, k], last stride 1; goes with ``total``.
        total: float32[t, k], contiguous, overwritten; memory of its own.
        norm: [k], contiguous, loaded as early as the weights; none norms nothing.
        eps: of the norm.
        gate: [t, k], last stride 1; not with ``norm`` or ``h``.
        bias: [n], contiguous; not with ``swiglu``.
        swiglu: whether y is halved.

    Raises:
        LayoutError: a shape, stride or dtype does not fit.
    """
    (t, k), n = x.shape, weight.shape[0] // (2 if swiglu else 1)
    if t > FEW_ROWS:
        raise LayoutError.of("x", expected=f"[<= {FEW_ROWS}, k]", got=tuple(x.shape))
    _check("x", x, (t, k))
    _check("weight", weight, ((2 if swiglu else 1) * n, k), contiguous=True)
    _check("out", out, (t, n), contiguous=True)
    if (h is None) != (total is None) or (gate is not None and (h is not None or norm is not None)):
        got = [
            name for name, tensor in (("h", h), ("total", total), ("gate", gate), ("norm", norm)) if tensor is not None
        ]
        raise LayoutError.of("in front", expected="h with total, and a gate without h or norm", got=got)
    if swiglu and bias is not None:
        raise LayoutError.of("bias", expected=None, got=tuple(bias.shape))
    for name, tensor in (("h", h), ("gate", gate)):
        if tensor is not None:
            _check(name, tensor, (t, k))
    for name, tensor, shape in (("total", total, (t, k)), ("norm", norm, (k,)), ("bias", bias, (n,))):
        if tensor is not None:
            _check(name, tensor, shape, contiguous=True)
    if total is not None and total.dtype != torch.float32:
        raise LayoutError.of("total", expected=torch.float32, got=total.dtype)
    if t and total is not None and total.data_ptr() in (x.data_ptr(), h.data_ptr() if h is not None else 0):
        raise LayoutError.of("total", expected="memory of its own: every program reads x and h", got="x or h")
    launch = (_launch or choose(t, n, k, swiglu)).fitted(n, k)
    if not t:
        return
    early = starts_early(x.device) if _early is None else _early
    _few_rows_kernel[(triton.cdiv(n, launch.block_n) + (h is not None),)](
        x,
        h,
        gate,
        norm,
        weight,
        bias,
        total,
        out,
        eps,
        t,
        n,
        x.stride(0),
        0 if h is None else h.stride(0),
        0 if gate is None else gate.stride(0),
        ROWS=triton.next_power_of_2(t),
        HAS_ADD=h is not None,
        HAS_GATE=gate is not None,
        HAS_NORM=norm is not None,
        HAS_BIAS=bias is not None,
        K=k,
        BLOCK_N=launch.block_n,
        BLOCK_K=launch.block_k,
        PAIR=swiglu,
        num_warps=launch.warps,
        **options(early),
    )


def _check(name: str, tensor: Tensor, shape: tuple[int, ...], contiguous: bool = False) -> None:
    if tuple(tensor.shape) != shape or tensor.stride(-1) != 1 or (contiguous and not tensor.is_contiguous()):
        expected = (shape, "contiguous" if contiguous else "last stride 1")
        raise LayoutError.of(name, expected=expected, got=(tuple(tensor.shape), tensor.stride()))
