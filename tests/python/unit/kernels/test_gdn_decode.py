"""One step of the gated delta net, against float64 and against transformers' torch functions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mstar_resident.errors import LayoutError
from mstar_resident.kernels.gdn_launch import Launch

from .gdn_cases import Net, error

#: Of float32: a GPU's exp and rsqrt are within a few units of the last place.
FLOAT32_ERROR = 1e-5 if torch.cuda.is_available() else 2e-6
SHAPES = pytest.mark.parametrize(
    ("key_heads", "value_heads", "K", "V"), [(2, 2, 32, 32), (2, 6, 16, 32), (1, 2, 64, 16), (1, 1, 128, 128)]
)


def of_transformers(net: Net, norm: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return what transformers makes of the same rows: output, conv state and state, one row after another."""
    qwen = pytest.importorskip("transformers.models.qwen3_5.modeling_qwen3_5")
    rows = len(net.index)
    index = net.index.long().cpu()
    conv = net.conv_state.cpu()[index].float()
    qkv = qwen.causal_conv1d_update(
        net.qkv.cpu().float()[:, :, None], conv, net.conv_weight.cpu().float(), None, "silu"
    )[..., 0]
    q, k, v = qkv.split([net.key_heads * net.K] * 2 + [net.value_heads * net.V], -1)
    g = -net.a_log.cpu().exp() * F.softplus(net.a.cpu().float() + net.dt_bias.cpu())
    shared = net.value_heads // net.key_heads  # not every version of the function shares key heads by itself
    out, state = qwen.torch_recurrent_gated_delta_rule(
        q.view(rows, 1, net.key_heads, net.K).repeat_interleave(shared, 2),
        k.view(rows, 1, net.key_heads, net.K).repeat_interleave(shared, 2),
        v.view(rows, 1, net.value_heads, net.V),
        g[:, None],
        net.b.cpu().float().sigmoid()[:, None],
        initial_state=net.ssm_state.cpu()[index].float().transpose(-1, -2),
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    out = out[:, 0]
    if norm:
        gated = qwen.Qwen3_5RMSNormGated(net.V)
        gated.weight.data.copy_(net.norm_weight.cpu())
        out = gated(out, net.z.cpu()).detach()
    return out, conv, state.transpose(-1, -2)


@SHAPES
@pytest.mark.parametrize("norm", [False, True])
def test_the_float64_reference_matches_transformers(key_heads, value_heads, K, V, norm):
    net = Net.drawn(key_heads, value_heads, K, V, [3, 8, 1], torch.float32, torch.float32, "cpu")
    for one, other in zip(net.expected(norm), of_transformers(net, norm), strict=True):
        assert error(other, one) < 1e-6


@SHAPES
@pytest.mark.parametrize("norm", [False, True])
def test_a_step_matches_float64(key_heads, value_heads, K, V, norm, device):
    net = Net.drawn(key_heads, value_heads, K, V, [3, 8, 1], torch.float32, torch.float32, device)
    out = torch.full((3, value_heads, V), float("nan"), device=device)
    expected, conv, state = net.expected(norm)
    net.run(out, norm)
    assert error(out, expected) < FLOAT32_ERROR
    assert error(net.ssm_state[net.index.long()], state) < FLOAT32_ERROR
    assert error(net.conv_state[net.index.long()], conv) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16])
def test_half_precision_matches_float64(dtype, state_dtype, device):
    net = Net.drawn(2, 4, 32, 32, [5, 2], dtype, state_dtype, device)
    out = torch.full((2, 4, 32), float("nan"), dtype=dtype, device=device)
    expected, conv, state = net.expected()
    net.run(out)
    assert error(out, expected) < 5e-3
    assert error(net.ssm_state[net.index.long()], state) < (FLOAT32_ERROR if state_dtype == torch.float32 else 5e-3)
    assert error(net.conv_state[net.index.long()], conv) == 0


@pytest.mark.parametrize("value_heads", [2, 6])
@pytest.mark.parametrize(
    "launch",
    [
        *[Launch(fused, block, 4, ahead) for fused in (False, True) for block in (8, 32) for ahead in (False, True)],
        Launch(fused=False, block=128, warps=16),
    ],
)
def test_every_launch_gives_the_same_answer(launch, value_heads, device):
    net = Net.drawn(2, value_heads, 64, 32, [3, 0, 8], torch.float32, torch.float32, device)
    net.conv_state[0] = net.ssm_state[0] = float("nan")
    others = [i for i in range(9) if i not in (3, 8)]
    before = net.conv_state[others].clone(), net.ssm_state[others].clone()
    out = torch.full((3, value_heads, 32), float("nan"), device=device)
    expected, conv, state = net.expected(norm=True)
    net.run(out, norm=True, _launch=launch)
    live = [0, 2]
    assert error(out[live], expected[live]) < FLOAT32_ERROR
    assert error(net.ssm_state[[3, 8]], state[live]) < FLOAT32_ERROR
    assert error(net.conv_state[[3, 8]], conv[live]) == 0
    assert out.isfinite().all()
    torch.testing.assert_close((net.conv_state[others], net.ssm_state[others]), before, rtol=0, atol=0, equal_nan=True)


def test_a_launch_is_fitted_to_smaller_heads():
    asked = Launch(fused=True, block=128, warps=16)
    assert asked.fitted(1, 128, 128) == asked
    assert asked.fitted(3, 64, 16) == Launch(fused=False, block=16, warps=4)
    assert asked.fitted(1, 16, 8) == Launch(fused=True, block=8, warps=1)


def test_steps_one_after_another_match_float64(device):
    net = Net.drawn(1, 2, 32, 32, [4, 7], torch.float32, torch.float32, device)
    for seed in range(1, 6):
        net.qkv = torch.randn(net.qkv.shape, generator=torch.Generator().manual_seed(seed)).to(device)
        out = torch.empty(2, 2, 32, device=device)
        expected, _, _ = net.expected()
        net.run(out)
        assert error(out, expected) < FLOAT32_ERROR


def test_rows_of_the_sink_store_nothing_and_disturb_no_state(device):
    net = Net.drawn(2, 2, 32, 32, [0, 6, 0, 0], torch.float32, torch.float32, device)
    net.conv_state[0] = net.ssm_state[0] = float("nan")
    others = [i for i in range(9) if i != 6]
    before = net.conv_state[others].clone(), net.ssm_state[others].clone()
    out = torch.full((4, 2, 32), float("nan"), device=device)
    expected, _, _ = net.expected()
    net.run(out)
    assert error(out[1], expected[1]) < FLOAT32_ERROR
    assert out.isfinite().all()
    torch.testing.assert_close((net.conv_state[others], net.ssm_state[others]), before, rtol=0, atol=0, equal_nan=True)


def test_a_conv_bias_is_added(device):
    net = Net.drawn(1, 1, 16, 16, [2], torch.float32, torch.float32, device)
    bias = torch.randn(48, device=device)
    out = torch.empty(1, 1, 16, device=device)
    expected, _, _ = net.expected(bias=bias.cpu())
    net.run(out, conv_bias=bias)
    assert error(out, expected) < FLOAT32_ERROR


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # one over infinity is the zero meant
def test_gates_saturate(device):
    net = Net.drawn(1, 1, 16, 16, [2, 3], torch.float32, torch.float32, device)
    net.a[0], net.a[1] = 200.0, -200.0
    net.b[0], net.b[1] = -200.0, 200.0
    out = torch.empty(2, 1, 16, device=device)
    expected, _, state = net.expected()
    net.run(out)
    assert error(out, expected) < FLOAT32_ERROR
    assert error(net.ssm_state[net.index.long()], state) < FLOAT32_ERROR


def test_slices_of_a_fused_projection_and_one_layer_of_a_pool_need_no_copy(device):
    net = Net.drawn(1, 2, 16, 16, [1, 2], torch.float32, torch.float32, device)
    expected, _, _ = net.expected()
    fused = torch.cat([net.qkv, net.a, net.b], 1)
    net.qkv, net.a, net.b = fused.split([net.qkv.shape[1], 2, 2], 1)
    conv, ssm = (torch.stack([torch.zeros_like(t), t], 1) for t in (net.conv_state, net.ssm_state))
    net.conv_state, net.ssm_state = conv[:, 1], ssm[:, 1]
    wide = torch.zeros(2, 3, 2, 16, device=device)
    net.run(wide[:, 1])
    assert error(wide[:, 1], expected) < FLOAT32_ERROR
    assert not conv[:, 0].any()
    assert not ssm[:, 0].any()


@pytest.mark.parametrize("field", ["qkv", "a", "conv_weight", "conv_state", "ssm_state", "index", "dt_bias"])
def test_a_shape_that_does_not_fit_is_refused(field, device):
    net = Net.drawn(2, 2, 16, 16, [1, 2], torch.float32, torch.float32, device)
    setattr(net, field, getattr(net, field)[..., :-1])
    with pytest.raises(LayoutError, match="expected"):
        net.run(torch.empty(2, 2, 16, device=device))
