"""The models and engines of the GPU soak."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from soak_runs import Run

from mstar_resident.bench.shapes import QWEN3, SHAPES, TINY
from mstar_resident.engine.config import EngineConfig
from mstar_resident.engine.engine import Engine
from mstar_resident.models.config import LlamaConfig, WhisperConfig
from mstar_resident.models.kernels import Kernels
from mstar_resident.models.llama import Llama
from mstar_resident.models.qwen35 import Qwen35
from mstar_resident.models.rope import RopeConfig
from mstar_resident.models.whisper import Whisper

TINY_LLAMA = LlamaConfig(101, 32, 2, 4, 2, 16, 64, RopeConfig(theta=1e4, rotary_dim=16))
TINY_WHISPER = WhisperConfig(101, 32, 2, 4, 64, max_positions=448, max_context=1500)


def decoder(run: Run, shape: str, seed: int, device: str) -> Any:
    """Return a decoder with seeded weights; ``tiny`` and ``tiny-hybrid`` are for a CPU."""
    cuda = device != "cpu"
    given: dict[str, Any] = {
        "device": device,
        "dtype": torch.bfloat16 if cuda else torch.float32,
        "kernels": Kernels.triton() if cuda else Kernels(),
    }
    if run.shape == "large-v3":
        return Whisper.seeded(TINY_WHISPER if shape == "tiny" else WhisperConfig(), seed, **given)
    if run.shape == "qwen3-0.6b" or shape == "tiny":
        return Llama.seeded(TINY_LLAMA if shape == "tiny" else QWEN3, seed, **given)
    config: Any = replace(TINY, vocab_size=101) if shape == "tiny-hybrid" else SHAPES[shape].config
    return Qwen35.seeded(config, seed, **given)


def build(run: Run, model: Any, device: str, planning: str, check: str) -> Engine:
    """Build a run's engine, its graphs captured; ``check`` is both, row, shadow or none."""
    cuda, resident = device != "cpu", planning == "resident"
    settings: dict[str, Any] = {
        "max_batch": run.rows,
        "max_requests": run.rows + 8,
        "pools": run.pools,
        "device": device,
        "dtype": torch.bfloat16 if cuda else torch.float32,
        "planning": planning,
        "check": resident and check in ("row", "both"),
        "shadow": resident and check in ("shadow", "both"),
        **run.config,
    }
    settings.setdefault("recurrent_states", settings["max_requests"])
    engine = Engine(model, EngineConfig(**settings))
    engine.capture()
    return engine
