"""The chunked delta rule against one step after another."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mstar_resident.models.gdn import GROUP_TOKENS, DeltaInputs, DeltaWeights, Ranges, TorchGatedDelta, delta_rule


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
    rows, heads, K, V = 2, 3, 16, 8

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    q, k = (torch.nn.functional.normalize(draw(rows, n, heads, K), dim=-1) for _ in range(2))
    rates = torch.tensor([1e-3, 0.3, 40.0], dtype=torch.float64)  # a head that keeps all, one that forgets at once
    decay = -rates * torch.rand(rows, n, heads, generator=g, dtype=torch.float64)
    beta = torch.rand(rows, n, heads, generator=g, dtype=torch.float64)
    v, state = draw(rows, n, heads, V), draw(rows, heads, V, K)
    got, after = delta_rule(q, k, v, decay, beta, state)
    for row in range(rows):
        expected = naive(q[row], k[row], v[row], decay[row], beta[row], state[row])
        torch.testing.assert_close((got[row], after[row]), expected, rtol=1e-9, atol=1e-9)


def test_rows_of_equally_many_tokens_are_taken_together_up_to_a_limit() -> None:
    n = GROUP_TOKENS // 2
    counts = torch.tensor([1, n, 3, 0, n, 1, n, GROUP_TOKENS + 1])
    start = F.pad(counts.cumsum(0), (1, 0)).to(torch.int32)
    groups = [(group.rows.tolist(), group.tokens) for group in Ranges.of(start, torch.device("cpu")).groups]
    assert [rows for rows, _ in groups] == [[0, 5], [2], [1, 4], [6], [7]]
    for rows, tokens in groups:
        for row, at in zip(rows, tokens, strict=True):
            assert at.tolist() == list(range(int(start[row]), int(start[row + 1])))


def test_rows_taken_together_get_what_each_gets_alone_and_no_other_state_moves() -> None:
    g = torch.Generator().manual_seed(0)
    key_heads, heads, K, V, kernel = 2, 4, 16, 8, 4
    width = 2 * key_heads * K + heads * V

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g)

    w = DeltaWeights(key_heads, draw(width, kernel), draw(heads), draw(heads), draw(V), 1e-6)
    counts = torch.tensor([70, 1, 70, 3, 1, 70])
    start = F.pad(counts.cumsum(0), (1, 0))
    t = int(start[-1])
    x = DeltaInputs(draw(t, width), draw(t, heads, V), draw(t, heads), draw(t, heads))
    index = torch.tensor([4, 9, 2, 7, 1, 6], dtype=torch.int32)
    pools = draw(11, width, kernel - 1), draw(11, heads, V, K)
    together, alone = ([pool.clone() for pool in pools] for _ in range(2))
    delta = TorchGatedDelta()
    out = delta.prefill(x, w, *together, index, Ranges.of(start, torch.device("cpu")))
    for row in range(len(counts)):
        tokens = torch.arange(int(start[row]), int(start[row + 1]))
        ranges = Ranges.of(torch.tensor([0, len(tokens)]), torch.device("cpu"))
        expected = delta.prefill(x.take(tokens), w, *alone, index[row : row + 1], ranges)
        torch.testing.assert_close(out[tokens], expected, rtol=1e-5, atol=1e-5)
    for ours, expected, before in zip(together, alone, pools, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
        untouched = torch.tensor([0, 3, 5, 8, 10])
        assert torch.equal(ours[untouched], before[untouched])
