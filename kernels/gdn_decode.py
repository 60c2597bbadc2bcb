"""One decode step of a gated delta net, fused and in place, by recurrent index.

Arithmetic is float32. Rows of recurrent index 0 (the sink) see a zero state and store none. A program owns one value
head of one row: it computes the gates, updates the head's state tile by tile and writes the output, which it can also
normalise and gate. No other program reads or writes the conv channels and the state that a program changes, so the
convolution (and split, SiLU, norm of query and key) is done in one of two ways:

- fused, in the same launch, where value heads do not share key heads;
- apart, by a launch before it into a float32 scratch, one program per head of keys or of values.

Source: the recurrent form of the gated delta rule (Yang et al., 2024), with S [V, K]:
S' = exp(g) S + beta (v - exp(g) S k) k^T, output S' q.
"""

# mypy: disable-error-code="possibly-undefined"
# (the compiler takes one branch of a constant condition)
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mstar_resident.errors import LayoutError
from mstar_resident.kernels.early import options, starts_early
from mstar_resident.kernels.gdn_launch import Launch, choose

#: Inputs that the convolution sees: three of its state and the step's own.
CONV_WIDTH = 4
WIDTH = tl.constexpr(CONV_WIDTH)


@triton.jit
def _inputs(x: tl.tensor, state: tl.tensor, weight: tl.tensor, channel: tl.tensor, live: tl.tensor) -> tl.tuple:
    """Load channels' three old inputs and the new one, in the state's type, and their four taps."""
    old = state + channel * (WIDTH - 1)
    first = tl.load(old, mask=live, other=0.0)
    second = tl.load(old + 1, mask=live, other=0.0)
    third = tl.load(old + 2, mask=live, other=0.0)
    new = tl.load(x + channel).to(first.dtype)
    taps = weight + channel * WIDTH
    return first, second, third, new, tl.load(taps), tl.load(taps + 1), tl.load(taps + 2), tl.load(taps + 3)


@triton.jit
def _mix(inputs: tl.tuple, bias: tl.tensor, channel: tl.tensor, HAS_BIAS: tl.constexpr) -> tl.tensor:
    """Return SiLU of the convolution over what :func:`_inputs` loaded."""
    total = inputs[0].to(tl.float32) * inputs[4].to(tl.float32) + inputs[1].to(tl.float32) * inputs[5].to(tl.float32)
    total += inputs[2].to(tl.float32) * inputs[6].to(tl.float32) + inputs[3].to(tl.float32) * inputs[7].to(tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + channel).to(tl.float32)
    return total / (1.0 + tl.exp(-total))


@triton.jit
def _shift(state: tl.tensor, inputs: tl.tuple, channel: tl.tensor, live: tl.tensor) -> None:
    """Store the last three inputs, which the next step sees. A barrier must lie between the loads and this."""
    old = state + channel * (WIDTH - 1)
    tl.store(old, inputs[1], mask=live)
    tl.store(old + 1, inputs[2], mask=live)
    tl.store(old + 2, inputs[3], mask=live)


@triton.jit
def _normalised(q: tl.tensor, k: tl.tensor, K: tl.constexpr) -> tl.tuple:
    """Return the query at length 1/sqrt(K), the key at length 1, and their product."""
    q *= tl.rsqrt(tl.sum(q * q, 0) + 1e-6) * (K**-0.5)
    k *= tl.rsqrt(tl.sum(k * k, 0) + 1e-6)
    return q, k, tl.sum(k * q, 0)


@triton.jit
def _mix_kernel(
    qkv: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    conv_state: tl.tensor,
    recurrent_index: tl.tensor,
    mixed: tl.tensor,
    qkv_row: tl.tensor,
    conv_index: tl.tensor,
    KEY_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """Write float32 queries, keys, values and the product of each query and key: [rows, conv_dim + key_heads]."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    part = tl.program_id(0)  # key heads, then value heads; what each branch names is of its own width
    row = tl.program_id(1).to(tl.int64)
    index = tl.load(recurrent_index + row).to(tl.int64)
    live = index > 0
    conv = conv_state + index * conv_index
    x = qkv + row * qkv_row
    keys = KEY_HEADS * K
    y = mixed + row * (2 * keys + HEADS * V + KEY_HEADS)
    if part < KEY_HEADS:
        of_key = part * K + tl.arange(0, K)
        q_inputs = _inputs(x, conv, weight, of_key, live)
        k_inputs = _inputs(x, conv, weight, keys + of_key, live)
        q = _mix(q_inputs, bias, of_key, HAS_BIAS)
        k = _mix(k_inputs, bias, keys + of_key, HAS_BIAS)
        q, k, k_dot_q = _normalised(q, k, K)
        tl.store(y + of_key, q)
        tl.store(y + keys + of_key, k)
        tl.store(y + 2 * keys + HEADS * V + part, k_dot_q)
        tl.debug_barrier()  # warps that hold copies of a value have read it before one of them stores
        _shift(conv, q_inputs, of_key, live)
        _shift(conv, k_inputs, keys + of_key, live)
    else:
        of_value = 2 * keys + (part - KEY_HEADS) * V + tl.arange(0, V)
        inputs = _inputs(x, conv, weight, of_value, live)
        tl.store(y + of_value, _mix(inputs, bias, of_value, HAS_BIAS))
        tl.debug_barrier()  # as above
        _shift(conv, inputs, of_value, live)


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
    mixed: tl.tensor,  # what _mix_kernel wrote, unless FUSED
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
    FUSED: tl.constexpr,
    BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    head = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    index = tl.load(recurrent_index + row).to(tl.int64)
    live = index > 0
    TILES: tl.constexpr = V // BLOCK
    CONV_DIM: tl.constexpr = (2 * K + SHARE * V) * KEY_HEADS
    key_head = head // SHARE
    tile_of = tl.arange(0, TILES)[:, None]
    j = tl.arange(0, BLOCK)
    of_head = head * V + tile_of * BLOCK + j[None, :]  # [TILES, BLOCK]
    q_channel = key_head * K + tl.arange(0, K)
    k_channel = KEY_HEADS * K + q_channel
    tiles = ssm_state + index * ssm_index + head * (V * K) + j[:, None] * K + tl.arange(0, K)[None, :]

    # Every load goes out before anything waits for one; the small ones first, they would queue behind the tile.
    if FUSED:
        conv = conv_state + index * conv_index
        x = qkv + row * qkv_row
        v_channel = 2 * KEY_HEADS * K + of_head
        q_inputs = _inputs(x, conv, weight, q_channel, live)
        k_inputs = _inputs(x, conv, weight, k_channel, live)
        v_inputs = _inputs(x, conv, weight, v_channel, live)
    else:
        y = mixed + row * (CONV_DIM + KEY_HEADS)
        q = tl.load(y + q_channel)
        k = tl.load(y + k_channel)
        k_dot_q = tl.load(y + CONV_DIM + key_head)
    step = tl.load(a + row * a_row + head).to(tl.float32) + tl.load(dt_bias + head).to(tl.float32)
    rate = tl.load(a_log + head).to(tl.float32)
    strength = tl.load(b + row * b_row + head).to(tl.float32)
    if HAS_NORM:
        scale = tl.load(norm_weight + tile_of * BLOCK + j[None, :]).to(tl.float32)
        gate = tl.load(z + row * z_row + of_head).to(tl.float32)
    if AHEAD:
        tile = tl.load(tiles, mask=live, other=0.0)

    if FUSED:
        q = _mix(q_inputs, bias, q_channel, HAS_BIAS)
        k = _mix(k_inputs, bias, k_channel, HAS_BIAS)
        values = _mix(v_inputs, bias, v_channel, HAS_BIAS)
        q, k, k_dot_q = _normalised(q, k, K)
        tl.debug_barrier()  # warps that hold copies of a value have read it before one of them stores
        _shift(conv, q_inputs, q_channel, live)
        _shift(conv, k_inputs, k_channel, live)
        _shift(conv, v_inputs, v_channel, live)
    step = tl.where(step > 20.0, step, tl.log(1.0 + tl.exp(tl.minimum(step, 20.0))))
    decay = tl.exp(-tl.exp(rate) * step)
    beta = 1.0 / (1.0 + tl.exp(-strength))
    results = tl.zeros((TILES, BLOCK), tl.float32)
    for n in range(TILES):
        if AHEAD:
            following = tl.load(tiles + (n + 1) * (BLOCK * K), mask=live & (n + 1 < TILES), other=0.0)
        else:
            tile = tl.load(tiles + n * (BLOCK * K), mask=live, other=0.0)
        if FUSED:
            v = tl.sum(tl.where(tile_of == n, values, 0.0), 0)
        else:
            v = tl.load(y + 2 * KEY_HEADS * K + head * V + n * BLOCK + j)
        state = tile.to(tl.float32)
        delta = (v - decay * tl.sum(state * k[None, :], 1)) * beta
        # Of the new state, without waiting for it: S' q = exp(g) S q + delta (k q).
        result = decay * tl.sum(state * q[None, :], 1) + delta * k_dot_q
        state = decay * state + delta[:, None] * k[None, :]
        # No barrier: every thread has elements of a tile for itself, so no other warp holds copies of them.
        tl.store(tiles + n * (BLOCK * K), state.to(ssm_state.dtype.element_ty), mask=live)
        results = tl.where(tile_of == n, result[None, :], results)
        if AHEAD:
            tile = following
    if HAS_NORM:
        results *= tl.rsqrt(tl.sum(tl.sum(results * results, 1), 0) / V + eps) * scale
        results *= gate / (1.0 + tl.exp(-gate))
    tl.store(out + row * out_row + of_head, results.to(out.dtype.element_ty))


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
    _launch: Launch | None = None,
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
    share = heads // key_heads
    launch = (_launch or choose(rows, share, ssm_state.element_size())).fitted(share, K, V)
    early = options(starts_early(qkv.device))
    mixed = None
    if not launch.fused:
        mixed = torch.empty(rows, conv_dim + key_heads, dtype=torch.float32, device=qkv.device)
        _mix_kernel[(key_heads + heads, rows)](
            qkv,
            conv_weight,
            conv_bias,
            conv_state,
            recurrent_index,
            mixed,
            qkv.stride(0),
            conv_state.stride(0),
            KEY_HEADS=key_heads,
            HEADS=heads,
            K=K,
            V=V,
            HAS_BIAS=conv_bias is not None,
            num_warps=max(1, min(4, K // 32)),
            **early,
        )
    _step_kernel[(heads, rows)](
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
        mixed,
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
        SHARE=share,
        K=K,
        V=V,
        HAS_BIAS=conv_bias is not None,
        HAS_NORM=z is not None,
        FUSED=launch.fused,
        BLOCK=launch.block,
        AHEAD=launch.ahead,
        num_warps=launch.warps,
        **early,
    )


def _check(name: str, tensor: Tensor, shape: tuple[int, ...], packed: int) -> None:
    """Raise unless a tensor has the shape and its last ``packed`` dimensions are contiguous."""
    inner = tensor[(0,) * (tensor.dim() - packed)] if tensor.dim() == len(shape) and 0 not in tensor.shape else tensor
    if tuple(tensor.shape) != shape or not inner.is_contiguous():
        got = (tuple(tensor.shape), tensor.stride())
        raise LayoutError.of(name, expected=(shape, f"last {packed} dimensions contiguous"), got=got)
