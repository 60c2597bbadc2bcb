"""The chunked delta rule against one step after another."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mstar_resident.models.gdn import delta_rule


def naive(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Follow the rule token by token."""
    out = []
    for t in range(v.shape[0]):
        state = state * g[t].exp()[:, None, None]
        change = beta[t][:, None] * (v[t] - torch.einsum("hvk,hk->hv", state, k[t]))
        state = state + torch.einsum("hv,hk->hvk", change, k[t])
        out.append(torch.einsum("hvk,hk->hv", state, q[t]))
    return torch.stack(out), state


@pytest.mark.parametrize("n", [2, 3, 63, 64, 65, 200])
def test_the_chunked_rule_matches_naive_steps(n: int) -> None:
    g = torch.Generator().manual_seed(n)
    heads, K, V = 3, 16, 8

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    q, k = (torch.nn.functional.normalize(draw(n, heads, K), dim=-1) for _ in range(2))
    rates = torch.tensor([1e-3, 0.3, 40.0], dtype=torch.float64)  # a head that keeps all, one that forgets at once
    decay = -rates * torch.rand(n, heads, generator=g, dtype=torch.float64)
    beta = torch.rand(n, heads, generator=g, dtype=torch.float64)
    v, state = draw(n, heads, V), draw(heads, V, K)
    got, after = delta_rule(q, k, v, decay, beta, state)
    expected, expected_after = naive(q, k, v, decay, beta, state)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(after, expected_after, rtol=1e-9, atol=1e-9)
