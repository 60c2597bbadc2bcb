"""Every bucket of the ladder is resident and host-plan-free, with each backend, and says so."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch

from mstar_resident.attention.select import Backend, select_attention
from mstar_resident.engine.capture_report import CaptureReport
from mstar_resident.engine.config import BUCKETS, EngineConfig, PoolConfig
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.request import Request
from mstar_resident.models.config import LlamaConfig, Qwen35Config, WhisperConfig
from mstar_resident.models.kernels import Kernels
from mstar_resident.models.llama import Llama
from mstar_resident.models.qwen35 import SHAPES, Qwen35
from mstar_resident.models.rope import RopeConfig
from mstar_resident.models.whisper import Whisper

BF16 = torch.bfloat16
SMOLLM2 = LlamaConfig(49_152, 576, 4, 9, 3, 64, 1536, RopeConfig(theta=1e5, rotary_dim=64), max_positions=8192)
#: One attention layer of each shape is enough to capture; widths and heads are the shape's own.
CONFIGS = {name: replace(config, layers=4) for name, config in SHAPES.items()} | {"smollm2": SMOLLM2}


def captured(model: Llama | Qwen35 | Whisper, page_size: int) -> tuple[Engine, CaptureReport]:
    pool = PoolConfig(page_size, 4000 // page_size * 16, 2048)
    config = EngineConfig(
        max_batch=128,
        max_requests=130,
        recurrent_states=130,
        pools=dict.fromkeys(("kv", "self", "context"), pool),
        device="cuda",
        dtype=BF16,
        shadow=True,
    )
    engine = Engine(model, config)
    return engine, engine.capture()


@pytest.mark.parametrize("backend", ["auto", "triton", "flashinfer"])
@pytest.mark.parametrize("shape", CONFIGS)
def test_every_bucket_captures_host_plan_free(shape: str, backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    if backend == "flashinfer":
        pytest.importorskip("flashinfer", reason="FlashInfer is not installed")
    c, page_size = CONFIGS[shape], 16
    with caplog.at_level(logging.INFO, "mstar_resident"):
        attention = select_attention(backend, c.heads, c.kv_heads, c.head_dim, page_size, BF16, "cuda")
        kernels = Kernels.triton(attention)
        kind = Qwen35 if isinstance(c, Qwen35Config) else Llama
        engine, report = captured(kind.seeded(c, 0, device="cuda", dtype=BF16, kernels=kernels), page_size)  # type: ignore[arg-type]
    print(f"{shape}, {backend}\n{report}")
    assert report.host_plan_free
    assert [bucket.bucket for bucket in report.buckets] == list(BUCKETS)
    assert all(bucket.attention["kv"] for bucket in report.buckets)
    measured = [record for record in caplog.records if record.message.startswith("attention of ")]
    if backend == "auto" and "flashinfer" in report.buckets[0].attention["kv"]:
        assert len(measured) == len(BUCKETS)
    for number in range(3):
        engine.add(Request(str(number), torch.arange(1, 30 + number).numpy(), 40))
    engine.run()
    assert engine.counters.resident_steps == engine.counters.decode_steps > 0
    assert engine.counters.mismatches == []


@pytest.mark.parametrize("backend", ["auto", "triton", "flashinfer"])
def test_cross_attention_over_a_read_only_pool_is_host_plan_free(backend: Backend) -> None:
    if backend == "flashinfer":
        pytest.importorskip("flashinfer", reason="FlashInfer is not installed")
    c = replace(WhisperConfig(), layers=2)
    attention = select_attention(backend, c.heads, c.heads, c.hidden_size // c.heads, 16, BF16, "cuda")
    engine, report = captured(Whisper.seeded(c, 0, device="cuda", dtype=BF16, kernels=Kernels.triton(attention)), 16)
    print(f"whisper, {backend}\n{report}")
    assert report.host_plan_free
    draw = torch.Generator().manual_seed(0)
    for number in range(3):
        context = torch.randint(0, 1000, (200 + 300 * number,), generator=draw).numpy()
        engine.add(Request(str(number), torch.arange(1, 4).numpy(), 40, context=context))
    engine.run()
    assert engine.counters.resident_steps == engine.counters.decode_steps > 0
    assert engine.counters.mismatches == []
