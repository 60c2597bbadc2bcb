"""One decode step of a gated delta net, fused and in place, by recurrent index.

A program owns one key head of one row and the value heads that share it: no other program reads or writes the conv
channels and states that it changes. It convolves and splits, applies SiLU, normalises query and key, computes the
gates, updates the states and writes the output, which it can also normalise and gate. Arithmetic is float32. Rows of
recurrent index 0 (the sink) see a zero state and store none.

Source: the recurrent form of the gated delta rule (Yang et al., 2024), with S [V, K]:
S' = exp(g) S + beta (v - exp(g) S k) k^T, output S' q.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from mstar_resident.errors import LayoutError

#: Inputs that the convolution sees: three of its state and the step's own.
CONV_WIDTH = 4
WIDTH = tl.constexpr(CONV_WIDTH)


@triton.jit
def _convolve(
    x: tl.tensor,
    state: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    channel: tl.tensor,
    live: tl.tensor,
    HAS_BIAS: tl.constexpr,
) -> tl.tuple:
    """Return SiLU of the convolution over three old inputs and the new one, and the four inputs, [channels, 4]."""
    t = tl.arange(0, WIDTH)[None, :]
    c = channel[:, None]
    old = tl.load(state + c * (WIDTH - 1) + t, mask=live & (t < WIDTH - 1), other=0.0)
    new = tl.load(x + c + t * 0, mask=t == WIDTH - 1, other=0.0)
    window = tl.where(t < WIDTH - 1, old, new.to(old.dtype))
    taps = tl.load(weight + c * WIDTH + t)
    total = tl.sum(window.to(tl.float32) * taps.to(tl.float32), 1)
    if HAS_BIAS:
        total += tl.load(bias + channel).to(tl.float32)
    return total / (1.0 + tl.exp(-total)), window


@triton.jit
def _shift(state: tl.tensor, channel: tl.tensor, window: tl.tensor, live: tl.tensor) -> None:
    """Store the last three inputs, which the next step sees."""
    t = tl.arange(0, WIDTH)[None, :]
    tl.store(state + channel[:, None] * (WIDTH - 1) + t - 1, window, mask=live & (t > 0))


@triton.jit
def _step_kernel(
    qkv: tl.tensor,
    a: tl.tensor,
    b: tl.tensor,
    z: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    a_log: tl.tensor,
    dt_bias: tl.tensor,
    norm_weight: tl.tensor,
    conv_state: tl.tensor,
    ssm_state: tl.tensor,
    recurrent_index: tl.tensor,
    out: tl.tensor,
    eps: tl.tensor,
    qkv_row: tl.tensor,
    a_row: tl.tensor,
    b_row: tl.tensor,
    z_row: tl.tensor,
    out_row: tl.tensor,
    conv_index: tl.tensor,
    ssm_index: tl.tensor,
    KEY_HEADS: tl.constexpr,
    SHARE: tl.constexpr,  # value heads of one key head
    K: tl.constexpr,
    V: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_NORM: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    key_head = tl.program_id(1)
    index = tl.load(recurrent_index + row).to(tl.int64)
    live = index > 0
    conv = conv_state + index * conv_index
    x = qkv + row * qkv_row
    i = tl.arange(0, K)
    j = tl.arange(0, V)
    states = ssm_state + index * ssm_index + j[:, None] * K + i[None, :]
    state = tl.load(states + key_head * SHARE * V * K, mask=live, other=0.0).to(tl.float32)  # ahead of the conv

    q_channel = key_head * K + i
    k_channel = (KEY_HEADS + key_head) * K + i
    q, q_window = _convolve(x, conv, weight, bias, q_channel, live, HAS_BIAS)
    k, k_window = _convolve(x, conv, weight, bias, k_channel, live, HAS_BIAS)
    q *= tl.rsqrt(tl.sum(q * q, 0) + 1e-6) * (K**-0.5)
    k *= tl.rsqrt(tl.sum(k * k, 0) + 1e-6)
    k_dot_q = tl.sum(k * q, 0)
    for share in range(SHARE):
        head = key_head * SHARE + share
        if SHARE > 1:
            state = tl.load(states + head * V * K, mask=live, other=0.0).to(tl.float32)
        channel = 2 * KEY_HEADS * K + head * V + j
        v, window = _convolve(x, conv, weight, bias, channel, live, HAS_BIAS)
        step = tl.load(a + row * a_row + head).to(tl.float32) + tl.load(dt_bias + head).to(tl.float32)
        step = tl.where(step > 20.0, step, tl.log(1.0 + tl.exp(tl.minimum(step, 20.0))))
        state *= tl.exp(-tl.exp(tl.load(a_log + head).to(tl.float32)) * step)
        beta = 1.0 / (1.0 + tl.exp(-tl.load(b + row * b_row + head).to(tl.float32)))
        delta = (v - tl.sum(state * k[None, :], 1)) * beta
        # Of the new state, without waiting for it: S' q = S q + delta (k q).
        result = tl.sum(state * q[None, :], 1) + delta * k_dot_q
        state += delta[:, None] * k[None, :]
        tl.debug_barrier()  # warps that hold copies of a value have read it before one of them stores
        tl.store(states + head * V * K, state.to(ssm_state.dtype.element_ty), mask=live)
        _shift(conv, channel, window, live)
        if HAS_NORM:
            result *= tl.rsqrt(tl.sum(result * result, 0) / V + eps) * tl.load(norm_weight + j).to(tl.float32)
            gate = tl.load(z + row * z_row + head * V + j).to(tl.float32)
            result *= gate / (1.0 + tl.exp(-gate))
        tl.store(out + row * out_row + head * V + j, result.to(out.dtype.element_ty))
    _shift(conv, q_channel, q_window, live)
    _shift(conv, k_channel, k_window, live)


def step(
    qkv: Tensor,
    a: Tensor,
    b: Tensor,
    conv_weight: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    conv_state: Tensor,
    ssm_state: Tensor,
    recurrent_index: Tensor,
    out: Tensor,
    *,
    conv_bias: Tensor | None = None,
    z: Tensor | None = None,
    norm_weight: Tensor | None = None,
    eps: float = 1e-6,
) -> None:
    """Advance the states of a step's rows by one token and write its output. Does not wait.

    Args:
        qkv: [rows, conv_dim], last stride 1: queries, keys and values before the convolution;
            conv_dim = 2 * key_heads * K + value_heads * V.
        a: [rows, value_heads], last stride 1: the decay's input; softplus(a + dt_bias) * -exp(a_log) is its log.
        b: [rows, value_heads], last stride 1: the write strength before its sigmoid.
        conv_weight: [conv_dim, 4], contiguous.
        a_log: [value_heads], contiguous.
        dt_bias: [value_heads], contiguous.
        conv_state: [states + 1, conv_dim, 3], contiguous but for the first stride, changed in place: oldest first.
        ssm_state: float32|bfloat16[states + 1, value_heads, V, K], likewise; K and V are powers of two.
        recurrent_index: int32[rows] or int64[rows], contiguous; 0 for padding, no other index twice.
        out: [rows, value_heads, V], last two dimensions contiguous, overwritten.
        conv_bias: [conv_dim], contiguous.
        z: [rows, value_heads, V], last two dimensions contiguous: with ``norm_weight`` the output is
            rmsnorm(output) * norm_weight * silu(z).
        norm_weight: [V], contiguous.
        eps: of that norm.

    Raises:
        LayoutError: a shape or stride does not fit.
    """
    rows, conv_dim = qkv.shape
    _, heads, V, K = ssm_state.shape
    key_heads, rest = divmod(conv_dim - heads * V, 2 * K)
    if key_heads < 1 or rest or heads % key_heads or K & (K - 1) or V & (V - 1):
        got = (conv_dim, tuple(ssm_state.shape))
        raise LayoutError.of("conv_dim, ssm_state", expected="2*key_heads*K + value_heads*V, powers of two", got=got)
    if (z is None) != (norm_weight is None):
        raise LayoutError.of("z, norm_weight", expected="both or neither", got=(z is not None, norm_weight is not None))
    _check("qkv", qkv, (rows, conv_dim), 1)
    for name, gate in (("a", a), ("b", b)):
        _check(name, gate, (rows, heads), 1)
    _check("conv_weight", conv_weight, (conv_dim, CONV_WIDTH), 2)
    for name, per_head in (("a_log", a_log), ("dt_bias", dt_bias)):
        _check(name, per_head, (heads,), 1)
    _check("conv_state", conv_state, (ssm_state.shape[0], conv_dim, CONV_WIDTH - 1), 2)
    _check("ssm_state", ssm_state, tuple(ssm_state.shape), 3)
    _check("recurrent_index", recurrent_index, (rows,), 1)
    _check("out", out, (rows, heads, V), 2)
    if conv_bias is not None:
        _check("conv_bias", conv_bias, (conv_dim,), 1)
    if z is not None and norm_weight is not None:
        _check("z", z, (rows, heads, V), 2)
        _check("norm_weight", norm_weight, (V,), 1)
    _step_kernel[(rows, key_heads)](
        qkv,
        a,
        b,
        z,
        conv_weight,
        conv_bias,
        a_log,
        dt_bias,
        norm_weight,
        conv_state,
        ssm_state,
        recurrent_index,
        out,
        eps,
        qkv.stride(0),
        a.stride(0),
        b.stride(0),
        0 if z is None else z.stride(0),
        out.stride(0),
        conv_state.stride(0),
        ssm_state.stride(0),
        KEY_HEADS=key_heads,
        SHARE=heads // key_heads,
        K=K,
        V=V,
        HAS_BIAS=conv_bias is not None,
        HAS_NORM=z is not None,
        num_warps=max(1, min(8, K * V // 2048)),
    )


def _check(name: str, tensor: Tensor, shape: tuple[int, ...], packed: int) -> None:
    """Raise unless a tensor has the shape and its last ``packed`` dimensions are contiguous."""
    inner = tensor[(0,) * (tensor.dim() - packed)] if tensor.dim() == len(shape) and 0 not in tensor.shape else tensor
    if tuple(tensor.shape) != shape or not inner.is_contiguous():
        got = (tuple(tensor.shape), tensor.stride())
        raise LayoutError.of(name, expected=(shape, f"last {packed} dimensions contiguous"), got=got)
