"""The gated delta net between its projections: convolution, gates, delta rule and gated norm, in plain torch.

Per value head a state S [V, K] follows S' = exp(g) S + beta (v - exp(g) S k) k^T and gives S' q (Yang et al., 2024).
Decode takes one such step; prefill solves a chunk of them at once. Both work in fp32 and round once at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_TOKENS = 64
#: Tokens at most of rows that are taken together: a token has tens of KiB of fp32 intermediates.
GROUP_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class DeltaWeights:
    """Hold what one layer's delta net has between its projections."""

    key_heads: int
    conv: Tensor
    """[conv_dim, kernel], contiguous; channels are queries, keys, values."""
    a_log: Tensor
    """fp32[value_heads]."""
    dt_bias: Tensor
    """fp32[value_heads]."""
    norm: Tensor
    """fp32[value_dim]."""
    eps: float


@dataclass(frozen=True, slots=True)
class DeltaInputs:
    """Hold the projections of a step's tokens; each is row-strided with a contiguous last dimension."""

    qkv: Tensor
    """[t, conv_dim]."""
    z: Tensor
    """[t, value_heads, value_dim]: gate of the output."""
    a: Tensor
    """[t, value_heads]: input of the decay."""
    b: Tensor
    """[t, value_heads]: write strength before its sigmoid."""

    def take(self, tokens: Tensor) -> DeltaInputs:
        """Return the projections of some tokens, int64[n]."""
        return DeltaInputs(self.qkv[tokens], self.z[tokens], self.a[tokens], self.b[tokens])


@dataclass(frozen=True, slots=True)
class Group:
    """Name rows of a prefill that bring equally many tokens and are taken together."""

    rows: Tensor
    """int64[r]."""
    tokens: Tensor
    """int64[r, n]: each row's n tokens among those of the step."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """Split a prefill's rows into groups of equally many tokens, of at most :data:`GROUP_TOKENS` or of one row."""

    groups: list[Group]

    @classmethod
    def of(cls, query_start: Tensor, device: torch.device) -> Ranges:
        """Read ``query_start``, which is on the host."""
        counts, alike = query_start.diff(), []
        for n in counts.unique().tolist():
            if n > 0:
                alike += [(rows, n) for rows in (counts == n).nonzero()[:, 0].split(max(1, GROUP_TOKENS // n))]
        return cls(
            [
                Group(rows.to(device), (query_start[rows].long()[:, None] + torch.arange(n)).to(device))
                for rows, n in alike
            ]
        )


class GatedDelta(Protocol):
    """Advance one layer's recurrent states, in place, and return the gated and normed output.

    ``conv [states + 1, conv_dim, kernel - 1]`` and ``ssm [states + 1, value_heads, value_dim, key_dim]`` are the
    pool's tensors of the layer; ``recurrent_index`` int32[b] names each row's state, 0 on padding rows.
    """

    def decode(self, x: DeltaInputs, w: DeltaWeights, conv: Tensor, ssm: Tensor, recurrent_index: Tensor) -> Tensor:
        """Take one token a row, ``[b, value_heads, value_dim]``. Can be captured: no wait, no shape from a value."""

    def prefill(
        self, x: DeltaInputs, w: DeltaWeights, conv: Tensor, ssm: Tensor, recurrent_index: Tensor, ranges: Ranges
    ) -> Tensor:
        """Take ranges of tokens, ``[t, value_heads, value_dim]``."""


class TorchGatedDelta:
    """Be a :class:`GatedDelta` in plain torch, on any device."""

    def decode(self, x: DeltaInputs, w: DeltaWeights, conv: Tensor, ssm: Tensor, recurrent_index: Tensor) -> Tensor:
        """Take one token a row; see :meth:`GatedDelta.decode`."""
        window = torch.cat((conv.index_select(0, recurrent_index), x.qkv[..., None]), dim=-1)
        conv.index_copy_(0, recurrent_index.long(), window[..., 1:])
        mixed = F.silu((window.float() * w.conv.float()).sum(-1)).to(x.qkv.dtype)
        q, k, v = _split(mixed, w, ssm)
        g, beta = gates(x, w)
        state = ssm.index_select(0, recurrent_index).float() * g.exp()[..., None, None]
        change = (v - (state @ k[..., None]).squeeze(-1)) * beta[..., None]
        state = torch.addcmul(state, change[..., None], k[..., None, :])
        ssm.index_copy_(0, recurrent_index.long(), state.to(ssm.dtype))
        return gated_norm((state @ q[..., None]).squeeze(-1), x.z, w)

    def prefill(
        self, x: DeltaInputs, w: DeltaWeights, conv: Tensor, ssm: Tensor, recurrent_index: Tensor, ranges: Ranges
    ) -> Tensor:
        """Take ranges of tokens; see :meth:`GatedDelta.prefill`."""
        out = torch.empty_like(x.z)
        for group in ranges.groups:
            index, taken = recurrent_index[group.rows], x.take(group.tokens.flatten())
            one = group.tokens.shape[1] == 1
            mixed = self.decode(taken, w, conv, ssm, index) if one else _prefill(taken, w, conv, ssm, index.long())
            out[group.tokens.flatten()] = mixed
        return out


def gates(x: DeltaInputs, w: DeltaWeights) -> tuple[Tensor, Tensor]:
    """Return the log decay (at most 0) and the write strength, fp32 ``[t, value_heads]``."""
    return -w.a_log.exp() * F.softplus(x.a.float() + w.dt_bias), x.b.float().sigmoid()


def gated_norm(out: Tensor, z: Tensor, w: DeltaWeights) -> Tensor:
    """Return rmsnorm(out) * norm * silu(z) of fp32 ``out [t, value_heads, value_dim]``, in ``z``'s dtype."""
    return (F.rms_norm(out, (out.shape[-1],), w.norm, w.eps) * F.silu(z.float())).to(z.dtype)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Follow the rule over n tokens of each of r rows, a chunk at a time.

    fp32: ``q, k [r, n, heads, K]``, ``v [r, n, heads, V]``, ``g, beta [r, n, heads]``, ``state [r, heads, V, K]``.
    Returns the output ``[r, n, heads, V]`` and the states after. Within a chunk, with G the running sum of g and S the
    state before it, the written values U solve (I + tril(beta exp(G_t - G_j) k_t.k_j, -1)) U = beta (V - exp(G) K S^T):
    linear in S, so that one triangular solve serves all chunks and only products with S are left for the loop.
    """
    rows, n, heads, _ = v.shape
    size = min(CHUNK_TOKENS, n)
    pad = -n % size

    def chunked(x: Tensor) -> Tensor:  # [r * heads, chunks, size, ...]; a padded token writes and decays nothing
        x = F.pad(x, (0, 0) * (x.dim() - 2) + (0, pad)).transpose(1, 2)
        return x.reshape(rows * heads, -1, size, *x.shape[3:])

    q, k, v, g, beta = (chunked(x) for x in (q, k, v, g, beta))
    state = state.flatten(0, 1)
    total = g.cumsum(-1)
    decay = (total[..., :, None] - total[..., None, :]).tril().exp()
    grown = total.exp()[..., None]
    system = (beta[..., None] * (k @ k.mT) * decay).tril(-1)
    sides = torch.cat((beta[..., None] * v, beta[..., None] * grown * k), dim=-1)
    solved = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True)
    written, read = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    within = ((q @ k.mT) * decay).tril()
    q = q * grown
    k = k * (total[..., -1:] - total).exp()[..., None]
    last = total[..., -1].exp()[..., None, None]
    out = torch.empty_like(v)
    for c in range(v.shape[1]):
        values = written[:, c] - read[:, c] @ state.mT
        out[:, c] = q[:, c] @ state.mT + within[:, c] @ values
        state = last[:, c] * state + values.mT @ k[:, c]
    out = out.reshape(rows, heads, -1, out.shape[-1])[:, :, :n].transpose(1, 2)
    return out, state.unflatten(0, (rows, heads))


def _prefill(x: DeltaInputs, w: DeltaWeights, conv: Tensor, ssm: Tensor, index: Tensor) -> Tensor:
    """Take equally many tokens of each row, one row after another; ``index`` is int64[r]."""
    rows, kernel = index.shape[0], w.conv.shape[1]
    window = torch.cat((conv.index_select(0, index).mT, x.qkv.unflatten(0, (rows, -1))), dim=1)
    n = window.shape[1] - (kernel - 1)
    conv.index_copy_(0, index, window[:, n:].mT)
    taps, window = w.conv.float(), window.float()
    mixed = window[:, :n] * taps[:, 0]
    for tap in range(1, kernel):
        mixed = torch.addcmul(mixed, window[:, tap : tap + n], taps[:, tap])
    given = (*_split(F.silu(mixed).to(x.qkv.dtype).flatten(0, 1), w, ssm), *gates(x, w))
    q, k, v, g, beta = (y.unflatten(0, (rows, n)) for y in given)
    out, state = delta_rule(q, k, v, g, beta, ssm.index_select(0, index).float())
    ssm.index_copy_(0, index, state.to(ssm.dtype))
    return gated_norm(out.flatten(0, 1), x.z, w)


def _split(mixed: Tensor, w: DeltaWeights, ssm: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return fp32 queries, keys (unit length, one per value head; queries scaled) and values of ``[t, conv_dim]``."""
    _, heads, value_dim, key_dim = ssm.shape
    keys = w.key_heads * key_dim
    q, k, v = mixed.float().split([keys, keys, heads * value_dim], dim=-1)

    def unit(x: Tensor) -> Tensor:
        x = x.reshape(x.shape[0], w.key_heads, key_dim)
        x = x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
        return x.repeat_interleave(heads // w.key_heads, dim=1)

    return unit(q) * key_dim**-0.5, unit(k), v.reshape(v.shape[0], heads, value_dim)
