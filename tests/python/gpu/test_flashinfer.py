"""FlashInfer's fa2 on the plan that the graph writes: equal to its host planner's, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mstar_resident.attention import flashinfer_fa2
from mstar_resident.attention.flashinfer_fa2 import FlashInferAttention
from mstar_resident.engine.inputs import PagedKV
from mstar_resident.kernels.fa2_planner import Fa2Planner

pytest.importorskip("flashinfer", reason="FlashInfer is not installed")

BF16 = torch.bfloat16
SHAPES = {"0.8B": (8, 2, 256), "9B": (16, 4, 256), "Llama-8B": (32, 8, 128), "SmolLM2": (9, 3, 64)}
COLUMNS = 64


@pytest.mark.parametrize("page_size", [16, 128])
@pytest.mark.parametrize("shape", SHAPES)
def test_this_release_plans_as_the_graph_does(shape: str, page_size: int) -> None:
    assert flashinfer_fa2.refusal(*SHAPES[shape], page_size, BF16, "cuda") is None


def lengths_of(kind: str, b: int, page_size: int, generator: np.random.Generator) -> np.ndarray:
    most = COLUMNS * page_size
    if kind == "skewed":
        return np.where(generator.random(b) < 0.1, most, generator.integers(1, most // 16, b))
    if kind == "edges":
        return np.clip(generator.integers(1, COLUMNS, b) * page_size + generator.integers(-1, 2, b), 1, most)
    return generator.integers(1, most + 1, b)


@pytest.mark.parametrize("gather", [False, True])
@pytest.mark.parametrize("b", [1, 2, 16, 64, 128, 256])
def test_a_replayed_step_gives_what_the_host_planned_one_gives(b: int, gather: bool) -> None:
    heads, kv_heads, head_dim = SHAPES["0.8B"]
    page_size, device = 16, torch.device("cuda")
    generator = np.random.default_rng(b)
    table_host = generator.permutation((2 * b + 1) * COLUMNS).reshape(2 * b + 1, COLUMNS).astype(np.int32)
    table_host[0] = 0
    table = torch.from_numpy(table_host).to(device)
    layer = torch.randn(table.numel(), 2, page_size, kv_heads, head_dim, dtype=BF16, device=device)
    q = torch.randn(b, heads, head_dim, dtype=BF16, device=device)
    rows, lengths = torch.zeros(b, dtype=torch.int64, device=device), torch.ones(b, dtype=torch.int32, device=device)
    paged, attention = PagedKV(table, rows, lengths, None, page_size), FlashInferAttention(gather=gather)
    between = torch.zeros(1024, device=device)

    def step() -> torch.Tensor:
        attention.begin(layer, heads, paged)
        between.add_(1.0)  # a plan is read before the kernel in front is waited for
        between.add_(1.0)
        return attention.decode(layer, q, paged)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    plan = attention._bucket(layer, heads, paged).plan
    theirs = flashinfer_fa2.wrapper(Fa2Planner(plan, table, gather=True), flashinfer_fa2.float_workspace(device))
    for kind in ("any", "skewed", "edges", "any"):
        attended = lengths_of(kind, b, page_size, generator)
        used_rows = generator.permutation(2 * b)[:b] + 1
        padding = int(generator.integers(0, b))
        attended[b - padding :], used_rows[b - padding :] = 1, 0
        rows.copy_(torch.from_numpy(used_rows))
        lengths.copy_(torch.from_numpy(attended.astype(np.int32)))
        graph.replay()
        got = out.clone()
        used = [table_host[r, : -(-n // page_size)] for r, n in zip(used_rows, attended, strict=True)]
        indices = torch.from_numpy(np.concatenate(used)).to(device)
        flashinfer_fa2.plan_pages(theirs, plan, head_dim, BF16, attended, indices)
        expected = theirs.run(q, layer, out=torch.empty_like(q))
        assert torch.equal(got, expected), f"{kind}: {(got != expected).sum()} of {got.numel()} differ"
