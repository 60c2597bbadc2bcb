"""The contract with trtllm-gen's decode kernels, against a kernel that takes their arguments: no Blackwell GPU here."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mstar_resident.attention.trtllm_gen import TrtllmGenAttention
from mstar_resident.engine import Engine, EngineConfig, PagedKV, PoolConfig, Request
from mstar_resident.errors import LayoutError
from mstar_resident.models.config import LlamaConfig, WhisperConfig
from mstar_resident.models.kernels import Kernels
from mstar_resident.models.llama import Llama
from mstar_resident.models.rope import RopeConfig
from mstar_resident.models.whisper import Whisper

LLAMA = LlamaConfig(101, 64, 2, 4, 2, 16, 96, RopeConfig(theta=1e4, rotary_dim=16))
WHISPER = WhisperConfig(101, 64, 2, 4, 96, max_positions=160, max_context=60)


class FakeKernel:
    """Attend in float64 from what the real kernel gets, and hold it to what the real one asks for."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def __call__(
        self,
        query: Tensor,
        kv_cache: Tensor,
        workspace_buffer: Tensor,
        block_tables: Tensor,
        seq_lens: Tensor,
        max_seq_len: int,
        bmm1_scale: float = 1.0,
        bmm2_scale: float = 1.0,
        out: Tensor | None = None,
        kv_layout: str = "HND",
    ) -> Tensor:
        b, heads, _ = query.shape
        pages, two, page_size, kv_heads, _ = kv_cache.shape
        assert kv_layout == "NHD"
        assert two == 2
        assert workspace_buffer.dtype == torch.uint8
        assert block_tables.dtype == seq_lens.dtype == torch.int32
        assert block_tables.is_contiguous()
        assert seq_lens.is_contiguous()
        assert block_tables.shape[0] == len(seq_lens) == b
        assert bmm2_scale == 1.0
        assert out is not None
        assert out.shape == query.shape
        # A kernel may read any cell of a table, and at least one token of any row.
        assert 0 <= int(block_tables.min()) <= int(block_tables.max()) < pages
        assert 1 <= int(seq_lens.min()) <= int(seq_lens.max()) <= max_seq_len == block_tables.shape[1] * page_size
        self.calls.append({"table": block_tables.data_ptr(), "lengths": seq_lens.data_ptr(), "rows": b})
        group = heads // kv_heads
        for i, length in enumerate(seq_lens.tolist()):
            used = block_tables[i, : -(-length // page_size)].long()
            k, v = (kv_cache[used, side].flatten(0, 1)[:length].double() for side in (0, 1))
            for head in range(heads):
                weights = torch.softmax(k[:, head // group] @ query[i, head].double() * bmm1_scale, 0)
                out[i, head] = (weights @ v[:, head // group]).to(out.dtype)
        return out


def run(model: Any, planning: str, context: bool = False) -> tuple[Engine, list[list[int]]]:
    pools = {"kv": PoolConfig(8, 100, 160), "self": PoolConfig(8, 100, 160), "context": PoolConfig(16, 30, 60)}
    config = EngineConfig(
        max_batch=4,
        max_requests=5,
        pools=pools,
        planning=planning,
        check=True,
        debug=True,  # type: ignore[arg-type]
    )
    engine = Engine(model, config)
    rng = np.random.default_rng(2)
    requests = [
        Request(
            str(i),
            rng.integers(0, 101, int(rng.integers(1, 30))),
            int(rng.integers(5, 30)),
            context=torch.from_numpy(rng.standard_normal((7 + i, 64))).float() if context else None,
        )
        for i in range(6)
    ]
    for request in requests:
        engine.add(request)
    engine.run()
    assert engine.counters.mismatches == []
    return engine, [request.outputs for request in requests]


@pytest.mark.parametrize("planning", ["resident", "host"])
@pytest.mark.parametrize("name", ["llama", "whisper"])
def test_the_kernel_gets_what_it_asks_for_and_tokens_are_the_same(name: str, planning: str) -> None:
    fake = FakeKernel()
    kernels = Kernels(attention=TrtllmGenAttention(fake, workspace_bytes=64))
    of = {"llama": lambda **k: Llama.seeded(LLAMA, **k), "whisper": lambda **k: Whisper.seeded(WHISPER, **k)}[name]
    _, expected = run(of(), "host", name == "whisper")
    engine, outputs = run(of(kernels=kernels), planning, name == "whisper")
    assert outputs == expected
    assert engine.node.host_plan_free
    assert len(fake.calls) > 40
    # One table per bucket and pool, read by all layers and both buffers: a graph may record its address.
    pools = 2 if name == "whisper" else 1
    assert len({call["table"] for call in fake.calls}) == pools * len({call["rows"] for call in fake.calls})


def test_a_row_is_read_through_its_slot() -> None:
    fake = FakeKernel()
    attention = TrtllmGenAttention(fake, workspace_bytes=64)
    generator = torch.Generator().manual_seed(0)
    layer = torch.randn(9, 2, 4, 2, 16, generator=generator)
    table = torch.tensor([[0, 0], [3, 4], [0, 0], [8, 5]], dtype=torch.int32)
    paged = PagedKV(table, torch.tensor([3, 1, 0]), torch.tensor([6, 3, 1], dtype=torch.int32), None, 4)
    q = torch.randn(3, 4, 16, generator=generator)
    attention.begin(layer, 4, paged)
    got = attention.decode(layer, q, paged)
    direct = replace(paged, table=table[[3, 1, 0]].contiguous(), rows=torch.arange(3))
    other = TrtllmGenAttention(fake, workspace_bytes=64)
    other.begin(layer, 4, direct)
    assert torch.equal(got, other.decode(layer, q, direct))
    k, v = (layer[[8, 5], side].flatten(0, 1)[:6].double() for side in (0, 1))
    weights = torch.softmax(k[:, 1] @ q[0, 3].double() / math.sqrt(16), 0)
    assert torch.allclose(got[0, 3].double(), weights @ v[:, 1], atol=1e-6)


def test_a_step_that_did_not_begin_and_a_missing_device_are_refused() -> None:
    paged = PagedKV(torch.zeros(1, 1, dtype=torch.int32), torch.zeros(1).long(), torch.ones(1).int(), None, 4)
    with pytest.raises(LayoutError, match="decode: expected begin before the first layer"):
        TrtllmGenAttention(FakeKernel()).decode(torch.zeros(1), torch.zeros(1, 1, 16), paged)
    if not torch.cuda.is_available():
        with pytest.raises(LayoutError, match=r"device: expected compute capability 10.0 or later"):
            TrtllmGenAttention()
