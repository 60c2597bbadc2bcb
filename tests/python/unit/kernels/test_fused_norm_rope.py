"""The fused pointwise parts, against float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mstar_resident.errors import LayoutError
from mstar_resident.kernels.fused_norm_rope import add_rms_norm, embed, gate, norm_rope_write, rope_angles
from mstar_resident.models.rope import Rope, RopeConfig

from .attention_cases import relative_error

#: Relative error of one rounding; the interpreter rounds to bfloat16 toward zero.
ROUNDING = {torch.float32: 1e-6, torch.float16: 4e-4, torch.bfloat16: 5e-3}
DTYPES = pytest.mark.parametrize("dtype", list(ROUNDING))


@DTYPES
@pytest.mark.parametrize("size", [16, 576, 1024, 5120])
@pytest.mark.parametrize("adds", [True, False])
def test_residual_and_norm_match_float64(dtype, size, adds, device):
    x, h = torch.randn(3, size), torch.randn(3, size + 8).to(dtype)[:, :size]
    weight = 1 + 0.3 * torch.randn(size)
    total = x.double() + (h.double() if adds else 0)
    expected = F.rms_norm(total, (size,), weight.double(), 0.5)  # an eps that counts
    got, out = x.to(device, copy=True), torch.full((3, size), float("nan"), dtype=dtype, device=device)
    add_rms_norm(got, h.to(device) if adds else None, weight.to(device), 0.5, out)
    assert relative_error(out, expected) < ROUNDING[dtype]
    assert relative_error(got, total) < 1e-6


def rotated(x, cos, sin):
    rotary = cos.shape[-1]
    turned = x[..., :rotary] * cos + x[..., :rotary].roll(rotary // 2, -1) * sin
    return torch.cat((turned, x[..., rotary:]), -1)


@DTYPES
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "rotary"), [(8, 2, 256, 64), (3, 1, 64, 64), (4, 4, 128, 32)]
)
@pytest.mark.parametrize("norms", [True, False])
def test_norm_rotation_and_write_match_float64(dtype, heads, kv_heads, head_dim, rotary, norms, device):
    t, page_size = 3, 16
    packed = torch.randn(t, heads + 2 * kv_heads + 5, head_dim).to(dtype)  # and heads that are not its business
    head_norms = 1 + 0.3 * torch.randn(heads + kv_heads, head_dim)
    angle = torch.rand(t, 1, rotary // 2) * 100
    cos, sin = (torch.cat(pair, -1) for pair in ((angle.cos(), angle.cos()), (-angle.sin(), angle.sin())))
    loc = torch.tensor([17, 16 * 3 + 15, 0])
    qk = packed[:, : heads + kv_heads].double()
    if norms:
        qk = F.rms_norm(qk, (head_dim,), None, 1e-6) * head_norms
    qk = rotated(qk, cos.double(), sin.double())
    layer = torch.full((5, 2, page_size, kv_heads, head_dim), 7.0, dtype=dtype)
    expected = layer.double()
    for i, at in enumerate(loc.tolist()):
        expected[at // page_size, 0, at % page_size] = qk[i, heads:]
        expected[at // page_size, 1, at % page_size] = packed[i, heads + kv_heads : heads + 2 * kv_heads].double()
    got, q = layer.to(device), torch.full((t, heads, head_dim), float("nan"), dtype=dtype, device=device)
    angles = (cos.to(device), sin.to(device))
    norm_weights = head_norms.to(device) if norms else None
    norm_rope_write(packed.to(device), norm_weights, 1e-6, angles, q, got, loc.to(device))
    assert relative_error(q, qk[:, :heads]) < ROUNDING[dtype]
    assert relative_error(got, expected) < ROUNDING[dtype]
    untouched = got.cpu().flatten(2, 2)[[1, 2, 4], :, 0]
    assert (untouched == 7).all()


def test_heads_queries_and_pool_may_be_views_of_wider_tensors(device):
    t, heads, kv_heads, size = 3, 2, 2, 16
    wide = torch.randn(t, (heads + 2 * kv_heads) * size + 8)
    packed = wide[:, :-8].view(t, -1, size)
    qk = F.rms_norm(packed[:, : heads + kv_heads].double(), (size,), None, 0.5)  # an eps that counts
    angles = torch.ones(t, 1, size, device=device), torch.zeros(t, 1, size, device=device)
    pool = torch.full((3, 2, 2, 4, kv_heads, size + 4), 7.0)
    q, loc, expected = torch.full((t, heads + 1, size), 7.0), torch.tensor([5, 11, 2]), pool.double()
    for i, at in enumerate(loc.tolist()):
        expected[at // 4, 1, 0, at % 4, :, :size] = qk[i, heads:]
        expected[at // 4, 1, 1, at % 4, :, :size] = packed[i, heads + kv_heads :].double()
    q, pool, wide, ones = (tensor.to(device) for tensor in (q, pool, wide, torch.ones(heads + kv_heads, size)))
    packed = wide[:, :-8].view(t, -1, size)
    norm_rope_write(packed, ones, 0.5, angles, q[:, :heads], pool[:, 1, ..., :size], loc.to(device))
    assert relative_error(q[:, :heads], qk[:, :heads]) < ROUNDING[torch.float32]
    assert relative_error(pool, expected) < ROUNDING[torch.float32]
    assert (q[:, heads] == 7).all()


@DTYPES
@pytest.mark.parametrize("size", [24, 1024, 3000])
def test_embeddings_are_the_tables_rows(dtype, size, device):
    table, tokens = torch.randn(11, size).to(dtype), torch.tensor([10, 0, 3, 3])
    out = torch.full((4, size), float("nan"), device=device)
    embed(tokens.to(device), table.to(device), out)
    assert torch.equal(out.cpu(), table[tokens].float())


@pytest.mark.parametrize("rotary", [32, 48])
def test_angles_match_torch_at_far_positions(rotary, device):
    rope = Rope(RopeConfig(1e7, rotary), "cpu")
    positions = torch.tensor([0, 1, 77, 4096, 262_143])
    got = torch.full((2, 5, 1, rotary), float("nan"), device=device)
    rope_angles(positions.to(device), rope.inv_freq.to(device), got)
    torch.testing.assert_close(got.cpu(), torch.stack(rope.angles(positions)), rtol=0, atol=1e-6)


@DTYPES
@pytest.mark.parametrize("silu", [True, False])
@pytest.mark.parametrize("size", [24, 1024, 3000])
def test_gates_match_float64(dtype, silu, size, device):
    fused = torch.randn(3, 2 * size).to(dtype)
    by, x = fused.double().chunk(2, 1)
    out = torch.full((3, size), float("nan"), dtype=dtype, device=device)
    moved = fused.to(device)
    gate(moved[:, size:], moved[:, :size], out, silu=silu)
    assert relative_error(out, x * (F.silu(by) if silu else by.sigmoid())) < ROUNDING[dtype]


def test_shapes_that_do_not_fit_are_refused(device):
    x, w = torch.zeros(2, 8, device=device), torch.ones(8, device=device)
    with pytest.raises(LayoutError, match="tokens"):
        embed(torch.zeros(2, dtype=torch.int32, device=device), x, x.clone())
    with pytest.raises(LayoutError, match="out"):
        embed(torch.zeros(3, dtype=torch.int64, device=device), x, x.clone())
    with pytest.raises(LayoutError, match="weight"):
        add_rms_norm(x, None, w[:-1], 1e-6, x.clone())
    with pytest.raises(LayoutError, match="float32"):
        add_rms_norm(x.half(), None, w, 1e-6, x.clone())
    with pytest.raises(LayoutError, match="by"):
        gate(x, x[:1], x.clone(), silu=True)
    with pytest.raises(LayoutError, match="angles"):
        rope_angles(torch.zeros(2, dtype=torch.int64, device=device), w, torch.zeros(2, 2, 1, 8, device=device))
    layer, angles = torch.zeros(2, 2, 4, 1, 16, device=device), (torch.zeros(1, 1, 16, device=device),) * 2
    loc = torch.zeros(1, dtype=torch.int64, device=device)
    with pytest.raises(LayoutError, match="heads"):
        norm_rope_write(torch.zeros(1, 3, 16, device=device), None, 0.0, angles, torch.zeros(1, 2, 16), layer, loc)
