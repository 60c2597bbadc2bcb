"""FlashInfer's fa2 on the plan that the graph writes: equal to its host planner's, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mstar_resident.attention import flashinfer_fa2
from mstar_resident.attention.flashinfer_fa2 import FlashInferAttention
from mstar_resident.engine.inputs import PagedKV
from mstar_resident.kernels.fa2_planner import Fa2Buffers

pytest.importorskip("flashinfer", reason="FlashInfer is not installed")

BF16 = torch.bfloat16
MODELS = {
    "0.8B": (8, 2, 256),
    "9B": (16, 4, 256),
    "Llama-8B": (32, 8, 128),
    "SmolLM2": (9, 3, 64),
    "Whisper": (20, 20, 64),
}
OTHERS = {
    f"{group} of {head_dim}": (2 * group, 2, head_dim)
    for group, head_dim in ((1, 128), (1, 256), (2, 64), (2, 128), (3, 128), (3, 256), (4, 64))
}
SHAPES = MODELS | OTHERS
REPLAYED = [(shape, b) for shape in ("0.8B", "SmolLM2", "Whisper") for b in (1, 2, 16, 64, 128, 256)]
REPLAYED += [(shape, b) for shape in OTHERS for b in (5, 200)]
COLUMNS = 64
PAGES = 16384
"""Pages of the pool; rows of large buckets share some."""


@pytest.mark.parametrize("page_size", [16, 128])
@pytest.mark.parametrize("shape", MODELS)
def test_this_release_plans_as_the_graph_does(shape: str, page_size: int) -> None:
    assert flashinfer_fa2.refusal(*SHAPES[shape], page_size, BF16, "cuda") is None


@pytest.mark.parametrize(("shape", "tensor_cores"), [("0.8B", False), ("SmolLM2", True), ("Whisper", True)])
def test_this_release_plans_as_the_graph_does_for_the_other_cores(shape: str, tensor_cores: bool) -> None:
    assert flashinfer_fa2.refusal(*SHAPES[shape], 16, BF16, "cuda", tensor_cores=tensor_cores) is None


def lengths_of(kind: str, b: int, page_size: int, generator: np.random.Generator) -> np.ndarray:
    most = COLUMNS * page_size
    if kind == "skewed":
        return np.where(generator.random(b) < 0.1, most, generator.integers(1, most // 16, b))
    if kind == "edges":
        return np.clip(generator.integers(1, COLUMNS, b) * page_size + generator.integers(-1, 2, b), 1, most)
    return generator.integers(1, most + 1, b)


@pytest.mark.parametrize("gather", [False, True])
@pytest.mark.parametrize(("shape", "b"), REPLAYED)
def test_a_replayed_step_gives_what_the_host_planned_one_gives(shape: str, b: int, gather: bool) -> None:
    heads, kv_heads, head_dim = SHAPES[shape]
    page_size, device = 16, torch.device("cuda")
    generator = np.random.default_rng(b)
    cells = generator.permutation((2 * b + 1) * COLUMNS) % PAGES
    table_host = cells.reshape(2 * b + 1, COLUMNS).astype(np.int32)
    table_host[0] = 0
    table = torch.from_numpy(table_host).to(device)
    pages = min(cells.size, PAGES)
    layer = torch.randn(pages, 2, page_size, kv_heads, head_dim, dtype=BF16, device=device)
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
    ours = attention._bucket(layer, heads, paged)
    assert ours.plan.tensor_cores == (heads >= 4 * kv_heads)
    host = Fa2Buffers.of(b, table, page_size, gather=True)
    theirs = flashinfer_fa2.wrapper(host, flashinfer_fa2.float_workspace(device), ours.plan.tensor_cores)
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
        flashinfer_fa2.plan_pages(theirs, heads, layer, attended, torch.from_numpy(np.concatenate(used)).to(device))
        assert list(theirs._plan_info) == ours.plan.info(head_dim)
        planned, expected_plan = (
            ours.plan.read(buffers.workspace.cpu().numpy()) for buffers in (ours.planner.buffers, host)
        )
        assert planned.difference(expected_plan) is None, kind
        assert planned.difference(ours.plan.naive(attended)) is None, kind
        expected = theirs.run(q, layer, out=torch.empty_like(q))
        assert torch.equal(got, expected), f"{kind}: {(got != expected).sum()} of {got.numel()} differ"


def test_rows_that_fill_the_device_are_not_split_and_others_are() -> None:
    split = {}
    for b in (1, 256):
        layer = torch.zeros(8, 2, 16, 20, 64, dtype=BF16, device="cuda")
        table = torch.zeros(3, 8, dtype=torch.int32, device="cuda")
        ones = torch.ones(b, dtype=torch.int32, device="cuda")
        paged, attention = PagedKV(table, ones.long(), ones, None, 16), FlashInferAttention()
        split[b] = attention._bucket(layer, 20, paged).plan.split
    assert split == {1: True, 256: False}
