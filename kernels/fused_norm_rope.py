"""The pointwise parts of a decode step, fused: embedding, norms, angles, rotation with the write of keys, and gates.

Arithmetic is float32, rounded once where a result is stored.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mstar_resident.errors import LayoutError
from mstar_resident.kernels.early import options, starts_early


@triton.jit
def _embed_kernel(
    tokens: tl.tensor, table: tl.tensor, out: tl.tensor, SIZE: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr
) -> None:
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = d < SIZE
    value = tl.load(table + tl.load(tokens + row) * SIZE + d, mask=inside, other=0.0)
    tl.store(out + row * SIZE + d, value.to(tl.float32), mask=inside)


@triton.jit
def _add_rms_norm_kernel(
    x: tl.tensor,
    h: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    eps: tl.tensor,
    h_row: tl.tensor,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_ADD: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    inside = d < SIZE
    total = tl.load(x + row * SIZE + d, mask=inside, other=0.0)
    if HAS_ADD:
        total += tl.load(h + row * h_row + d, mask=inside, other=0.0).to(tl.float32)
        tl.debug_barrier()  # warps that hold copies have read before one of them stores
        tl.store(x + row * SIZE + d, total, mask=inside)
    scale = tl.rsqrt(tl.sum(total * total, 0) / SIZE + eps)
    normed = total * scale * tl.load(weight + d, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * SIZE + d, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _norm_rope_write_kernel(
    heads: tl.tensor,
    norms: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    q_out: tl.tensor,
    kv: tl.tensor,
    write_loc: tl.tensor,
    eps: tl.tensor,
    heads_token: tl.tensor,
    q_token: tl.tensor,
    kv_page: tl.tensor,
    kv_side: tl.tensor,
    kv_token: tl.tensor,
    kv_head: tl.tensor,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    ROTARY: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HAS_NORM: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    if EARLY:
        gdc_wait()  # and nothing starts beside it: attention is next
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    d = tl.arange(0, D)
    source = heads + token * heads_token + head * D
    value = tl.load(source + d).to(tl.float32)
    loc = tl.load(write_loc + token)
    place = kv + (loc // PAGE_SIZE) * kv_page + (loc % PAGE_SIZE) * kv_token + d
    if head < HEADS + KV_HEADS:
        turns = d < ROTARY
        other = tl.where(turns, (d + ROTARY // 2) % ROTARY, d)
        partner = tl.load(source + other).to(tl.float32)
        if HAS_NORM:
            scale = tl.rsqrt(tl.sum(value * value, 0) / D + eps)
            value *= scale * tl.load(norms + head * D + d)
            partner *= scale * tl.load(norms + head * D + other)
        c = tl.load(cos + token * ROTARY + d, mask=turns, other=1.0)
        s = tl.load(sin + token * ROTARY + d, mask=turns, other=0.0)
        value = value * c + partner * s
        if head < HEADS:
            tl.store(q_out + token * q_token + head * D + d, value.to(q_out.dtype.element_ty))
        else:
            tl.store(place + (head - HEADS) * kv_head, value.to(kv.dtype.element_ty))
    else:
        tl.store(place + kv_side + (head - HEADS - KV_HEADS) * kv_head, value.to(kv.dtype.element_ty))


@triton.jit
def _gate_kernel(
    x: tl.tensor,
    gate: tl.tensor,
    out: tl.tensor,
    x_row: tl.tensor,
    gate_row: tl.tensor,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    SILU: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = d < SIZE
    g = tl.load(gate + row * gate_row + d, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x + row * x_row + d, mask=inside, other=0.0).to(tl.float32) / (1.0 + tl.exp(-g))
    if SILU:
        value *= g
    tl.store(out + row * SIZE + d, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _angles_kernel(
    positions: tl.tensor,
    inv_freq: tl.tensor,
    angles: tl.tensor,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    inside = d < SIZE
    half = d % (SIZE // 2)
    turn = tl.load(positions + row).to(tl.float32) * tl.load(inv_freq + half, mask=inside, other=0.0)
    sin = tl.sin(turn)
    cosines = angles + row * SIZE + d
    tl.store(cosines, tl.cos(turn), mask=inside)
    tl.store(cosines + tl.num_programs(0) * SIZE, tl.where(d < SIZE // 2, -sin, sin), mask=inside)


def embed(tokens: Tensor, table: Tensor, out: Tensor) -> None:
    """Write the embedding of every token in float32.

    Args:
        tokens: int64[t], contiguous; each within the table.
        table: [vocab, d], contiguous.
        out: float32[t, d], contiguous, overwritten.

    Raises:
        LayoutError: a shape, stride or dtype does not fit.
    """
    t, size = tokens.shape[0], table.shape[1]
    _check("tokens", tokens, (t,), contiguous=True)
    _check("table", table, tuple(table.shape), contiguous=True)
    _check("out", out, (t, size), contiguous=True)
    for name, tensor, dtype in (("tokens", tokens, torch.int64), ("out", out, torch.float32)):
        if tensor.dtype != dtype:
            raise LayoutError.of(name, expected=dtype, got=tensor.dtype)
    if t:
        block = min(1024, triton.next_power_of_2(size))
        early = options(starts_early(tokens.device))
        grid = (t, triton.cdiv(size, block))
        _embed_kernel[grid](tokens, table, out, SIZE=size, BLOCK=block, num_warps=_warps(block), **early)


def add_rms_norm(x: Tensor, h: Tensor | None, weight: Tensor, eps: float, out: Tensor) -> None:
    """Add ``h`` to the residual ``x`` in place, and write rmsnorm(x) * weight to ``out``.

    Args:
        x: float32[t, d], contiguous, changed in place.
        h: [t, d], last stride 1; None adds nothing.
        weight: [d], contiguous.
        eps: added to the mean square.
        out: [t, d], contiguous, overwritten.

    Raises:
        LayoutError: a shape, stride or dtype does not fit.
    """
    t, size = x.shape
    _check("x", x, (t, size), contiguous=True)
    _check("weight", weight, (size,), contiguous=True)
    _check("out", out, (t, size), contiguous=True)
    if x.dtype != torch.float32:
        raise LayoutError.of("x", expected=torch.float32, got=x.dtype)
    if h is not None:
        _check("h", h, (t, size))
    if t:
        block = triton.next_power_of_2(size)
        row = 0 if h is None else h.stride(0)
        early = options(starts_early(x.device))
        _add_rms_norm_kernel[(t,)](
            x, h, weight, out, eps, row, SIZE=size, BLOCK=block, HAS_ADD=h is not None, num_warps=_warps(block), **early
        )


def norm_rope_write(
    heads: Tensor,
    head_norms: Tensor | None,
    eps: float,
    angles: tuple[Tensor, Tensor],
    q_out: Tensor,
    kv_layer: Tensor,
    write_loc: Tensor,
) -> None:
    """Norm and rotate query and key heads; write queries to ``q_out``, keys and values to their places in the pool.

    Args:
        heads: [t, n, head_dim], last two dimensions contiguous: query, key and value heads, then any others.
        head_norms: float32[heads + kv_heads, head_dim], contiguous: weights of the norm; None norms nothing.
        eps: of the norm.
        angles: cosine and signed sine, float32[t, 1, rotary_dim] each, contiguous: the first rotary_dim dimensions
            become x * cosine + x rolled by half of them * sine.
        q_out: [t, heads, head_dim], last two dimensions contiguous, overwritten.
        kv_layer: [pages, 2, page_size, kv_heads, head_dim], last stride 1, changed in place: keys, then values.
        write_loc: int64[t], contiguous: page * page_size + offset.

    Raises:
        LayoutError: a shape, stride or dtype does not fit.
    """
    t, count, head_dim = q_out.shape
    _, _, page_size, kv_heads, _ = kv_layer.shape
    rotary = angles[0].shape[-1]
    if head_dim & (head_dim - 1) or rotary % 2 or not 0 < rotary <= head_dim:
        expected = "a power of two, and an even part of it"
        raise LayoutError.of("head_dim, rotary_dim", expected=expected, got=(head_dim, rotary))
    if heads.dim() != 3 or heads.shape[1] < count + 2 * kv_heads:
        raise LayoutError.of("heads", expected=f"[t, >= {count + 2 * kv_heads}, head_dim]", got=tuple(heads.shape))
    for name, tensor, shape in (("heads", heads, (t, heads.shape[1], head_dim)), ("q_out", q_out, q_out.shape)):
        _check(name, tensor, tuple(shape))
        if tensor.stride(1) != head_dim:
            raise LayoutError.of(name, expected=f"head stride {head_dim}", got=tensor.stride())
    for name, tensor in zip(("cosine", "sine"), angles, strict=True):
        _check(name, tensor, (t, 1, rotary), contiguous=True)
    _check("kv_layer", kv_layer, (kv_layer.shape[0], 2, page_size, kv_heads, head_dim))
    _check("write_loc", write_loc, (t,), contiguous=True)
    if write_loc.dtype != torch.int64:
        raise LayoutError.of("write_loc", expected=torch.int64, got=write_loc.dtype)
    if head_norms is not None:
        _check("head_norms", head_norms, (count + kv_heads, head_dim), contiguous=True)
    if t:
        _norm_rope_write_kernel[(t, count + 2 * kv_heads)](
            heads,
            head_norms,
            *angles,
            q_out,
            kv_layer,
            write_loc,
            eps,
            heads.stride(0),
            q_out.stride(0),
            *kv_layer.stride()[:4],
            HEADS=count,
            KV_HEADS=kv_heads,
            D=head_dim,
            ROTARY=rotary,
            PAGE_SIZE=page_size,
            HAS_NORM=head_norms is not None,
            num_warps=1,
            **options(starts_early(heads.device)),
        )


def rope_angles(positions: Tensor, inv_freq: Tensor, angles: Tensor) -> None:
    """Write the cosine and signed sine of each position times each inverse frequency.

    Args:
        positions: int64[t], contiguous.
        inv_freq: float32[rotary_dim / 2], contiguous.
        angles: float32[2, t, 1, rotary_dim], contiguous, overwritten: cosines, then sines, the first half negative.

    Raises:
        LayoutError: a shape, stride or dtype does not fit.
    """
    t, size = positions.shape[0], 2 * inv_freq.shape[0]
    _check("positions", positions, (t,), contiguous=True)
    _check("inv_freq", inv_freq, (size // 2,), contiguous=True)
    _check("angles", angles, (2, t, 1, size), contiguous=True)
    for name, tensor in (("inv_freq", inv_freq), ("angles", angles)):
        if tensor.dtype != torch.float32:
            raise LayoutError.of(name, expected=torch.float32, got=tensor.dtype)
    if t:
        block = triton.next_power_of_2(size)
        early = options(starts_early(positions.device))
        _angles_kernel[(t,)](positions, inv_freq, angles, SIZE=size, BLOCK=block, num_warps=1, **early)


def gate(x: Tensor, by: Tensor, out: Tensor, *, silu: bool) -> None:
    """Write x * silu(by), or x * sigmoid(by).

    Args:
        x: [t, d], last stride 1.
        by: [t, d], last stride 1.
        out: [t, d], contiguous, overwritten.
        silu: silu, else sigmoid.

    Raises:
        LayoutError: a shape or stride does not fit.
    """
    t, size = x.shape
    _check("x", x, (t, size))
    _check("by", by, (t, size))
    _check("out", out, (t, size), contiguous=True)
    if t:
        block = min(1024, triton.next_power_of_2(size))
        grid = (t, triton.cdiv(size, block))
        strides, early = (x.stride(0), by.stride(0)), options(starts_early(x.device))
        _gate_kernel[grid](x, by, out, *strides, SIZE=size, BLOCK=block, SILU=silu, num_warps=_warps(block), **early)


def _warps(block: int) -> int:
    return max(1, min(8, block // 256))


def _check(name: str, tensor: Tensor, shape: tuple[int, ...], contiguous: bool = False) -> None:
    if tuple(tensor.shape) != shape or tensor.stride(-1) != 1 or (contiguous and not tensor.is_contiguous()):
        expected = (shape, "contiguous" if contiguous else "last stride 1")
        raise LayoutError.of(name, expected=expected, got=(tuple(tensor.shape), tensor.stride()))
