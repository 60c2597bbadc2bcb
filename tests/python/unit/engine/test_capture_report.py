"""What capturing says of every bucket."""

from __future__ import annotations

from typing import Any

import torch

from mstar_resident.attention.torch_planned import PlannedTorchAttention
from mstar_resident.engine.capture_report import CaptureReport
from mstar_resident.engine.config import EngineConfig, PoolConfig
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.graph_runner import GraphRunner
from mstar_resident.engine.toy import ToyModel
from mstar_resident.models.config import LlamaConfig
from mstar_resident.models.kernels import Kernels
from mstar_resident.models.llama import Llama
from mstar_resident.models.rope import RopeConfig

CONFIG = LlamaConfig(61, 32, 2, 4, 2, 16, 64, RopeConfig(theta=1e4, rotary_dim=16))


def captured(kernels: Kernels, **options: Any) -> CaptureReport:
    config = EngineConfig(max_batch=4, max_requests=4, pools={"kv": PoolConfig(4, 20, 64)}, **options)
    return Engine(Llama.seeded(CONFIG, 0, kernels=kernels), config).capture()


def test_a_resident_ladder_is_host_plan_free_and_names_what_attends() -> None:
    report = captured(Kernels())
    assert report.host_plan_free
    assert [bucket.bucket for bucket in report.buckets] == [1, 2, 4]
    assert str(report.buckets[0]) == "bucket 1: resident, host-plan-free, kv: torch"
    assert str(report).count("\n") == 2


def test_attention_that_is_planned_by_the_host_is_said_of_every_bucket() -> None:
    report = captured(Kernels(attention=PlannedTorchAttention()))
    assert not report.host_plan_free
    assert all(bucket.resident and not bucket.host_plan_free for bucket in report.buckets)
    assert "attention planned by the host" in str(report)


def test_a_node_without_a_planner_says_why() -> None:
    report = captured(Kernels(), planning="off")
    assert not report.host_plan_free
    assert {bucket.reason for bucket in report.buckets} == {"resident_planning: it is off"}


def test_a_bucket_that_was_not_captured_says_why() -> None:
    engine = Engine(ToyModel(), EngineConfig(max_batch=2, max_requests=2))
    engine.graphs = GraphRunner(engine.runner)  # type: ignore[arg-type]
    engine.graphs.failed[2] = "out of memory"
    report = CaptureReport.of(engine)
    assert [bucket.reason for bucket in report.buckets] == ["", "out of memory"]
    assert "host-planned (out of memory)" in str(report)
    assert report.buckets[0].attention == {}
    assert torch.device(engine.config.device).type == "cpu"
