"""Layers of gated delta nets and what a step makes of them in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mstar_resident.kernels import gdn_decode


@dataclass
class Net:
    """Hold one layer's weights and states, and a step's inputs."""

    key_heads: int
    value_heads: int
    K: int
    V: int
    qkv: Tensor
    a: Tensor
    b: Tensor
    z: Tensor
    conv_weight: Tensor
    a_log: Tensor
    dt_bias: Tensor
    norm_weight: Tensor
    conv_state: Tensor
    ssm_state: Tensor
    index: Tensor

    @classmethod
    def drawn(cls, key_heads, value_heads, K, V, index, dtype, state_dtype, device, seed=0, states=9):
        g = torch.Generator().manual_seed(seed)

        def randn(*shape):
            return torch.randn(*shape, generator=g)

        rows, conv_dim = len(index), 2 * key_heads * K + value_heads * V
        tensors = (
            randn(rows, conv_dim).to(dtype),
            randn(rows, value_heads).to(dtype),
            randn(rows, value_heads).to(dtype),
            randn(rows, value_heads, V).to(dtype),
            randn(conv_dim, 4).to(dtype),
            randn(value_heads).exp().log1p().log(),
            randn(value_heads),
            1 + 0.2 * randn(V),
            randn(states, conv_dim, 3).to(dtype),
            randn(states, value_heads, V, K).to(state_dtype),
            torch.tensor(index, dtype=torch.int32),
        )
        return cls(key_heads, value_heads, K, V, *(t.to(device) for t in tensors))

    def run(self, out: Tensor, norm: bool = False, **more) -> None:
        if norm:
            more |= {"z": self.z, "norm_weight": self.norm_weight}
        gdn_decode.step(
            self.qkv, self.a, self.b, self.conv_weight, self.a_log, self.dt_bias,
            self.conv_state, self.ssm_state, self.index, out, **more,
        )  # fmt: skip

    def expected(self, norm: bool = False, bias: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return float64 output, conv state and state of every row."""
        index = self.index.long().cpu()
        window = torch.cat([self.conv_state.cpu()[index], self.qkv.cpu()[:, :, None]], 2).double()
        mixed = (window * self.conv_weight.cpu().double()).sum(2)
        mixed = F.silu(mixed if bias is None else mixed + bias.double())
        keys, share = self.key_heads * self.K, self.value_heads // self.key_heads
        q, k = (part.view(-1, self.key_heads, self.K) for part in (mixed[:, :keys], mixed[:, keys : 2 * keys]))
        q, k = (t * torch.rsqrt((t * t).sum(2, keepdim=True) + 1e-6) for t in (q, k))
        q, k = (t.repeat_interleave(share, 1) for t in (q * self.K**-0.5, k))
        v = mixed[:, 2 * keys :].view(-1, self.value_heads, self.V)
        decay = torch.exp(-self.a_log.cpu().double().exp() * F.softplus((self.a.cpu() + self.dt_bias.cpu()).double()))
        state = self.ssm_state.cpu()[index].double() * decay[:, :, None, None]
        delta = (v - (state @ k[..., None])[..., 0]) * self.b.cpu().double().sigmoid()[:, :, None]
        state = state + delta[..., None] * k[:, :, None, :]
        out = (state @ q[..., None])[..., 0]
        if norm:
            out = out * torch.rsqrt((out * out).mean(2, keepdim=True) + 1e-6) * self.norm_weight.cpu().double()
            out = out * F.silu(self.z.cpu().double())
        return out, window[:, :, 1:], state


def error(got: Tensor, expected: Tensor) -> float:
    return float((got.cpu().double() - expected.double()).norm() / expected.double().norm())
