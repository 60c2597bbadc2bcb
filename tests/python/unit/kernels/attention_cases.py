"""Paged pools for decode attention and a float64 reference over them."""

from __future__ import annotations

import random

import torch
from torch import Tensor


class Pool:
    """Hold one layer of a KV pool whose unused places are not numbers, and rows over shuffled pages."""

    def __init__(
        self,
        lengths: list[int],
        kv_heads: int,
        head_dim: int,
        page_size: int,
        dtype: torch.dtype,
        device: str,
        seed: int,
    ) -> None:
        draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        used = [-(-length // page_size) for length in lengths]
        pages = sum(used)
        columns = max(used) + 2
        shape = (pages + 1, 2, page_size, kv_heads, head_dim)
        layer = torch.full(shape, float("nan"), dtype=torch.float64)
        ids = list(range(1, pages + 1))
        draw.shuffle(ids)
        table = torch.zeros(2 * len(lengths) + 1, columns, dtype=torch.int32)
        rows = draw.sample(range(1, 2 * len(lengths) + 1), len(lengths))
        self.keys, self.values = [], []
        for row, length, count in zip(rows, lengths, used, strict=True):
            mine, ids = ids[:count], ids[count:]
            table[row, :count] = torch.tensor(mine, dtype=torch.int32)
            tokens = torch.randn(length, 2, kv_heads, head_dim, generator=generator, dtype=torch.float64).to(dtype)
            for t in range(length):
                layer[mine[t // page_size], :, t % page_size] = tokens[t].double()
            self.keys.append(tokens[:, 0].double())
            self.values.append(tokens[:, 1].double())
        self.layer = layer.to(dtype).to(device)
        self.table = table.to(device)
        self.rows = torch.tensor(rows, device=device)
        self.lengths = torch.tensor(lengths, dtype=torch.int32, device=device)

    def expected(self, q: Tensor) -> Tensor:
        """Return float64[b, heads, head_dim], a row of no tokens zero."""
        out = torch.zeros(q.shape, dtype=torch.float64)
        for i, (key, value) in enumerate(zip(self.keys, self.values, strict=True)):
            if len(key):
                group = q.shape[1] // key.shape[1]
                k, v = (t.repeat_interleave(group, 1).transpose(0, 1) for t in (key, value))
                score = (k @ q[i].cpu().double()[:, :, None])[..., 0] * q.shape[2] ** -0.5
                out[i] = (score.softmax(-1)[:, None] @ v)[:, 0]
        return out


def relative_error(got: Tensor, expected: Tensor) -> float:
    return float((got.cpu().double() - expected).norm() / expected.norm())


#: Relative error that the rounding of inputs to products and of outputs explains.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}
