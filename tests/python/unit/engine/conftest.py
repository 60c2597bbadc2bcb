"""Small engines with a toy model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from mstar_resident.engine.config import EngineConfig, PoolConfig
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.request import Request
from mstar_resident.engine.scenarios.hooks import HookRunner
from mstar_resident.engine.toy import ToyModel, ToySampler

Make = Callable[..., Engine]


@pytest.fixture
def make() -> Make:
    """Build an engine: pages of 4 tokens, four rows, eight seats, checks on, unless told otherwise."""

    def build(model: ToyModel | None = None, pages: int = 100, **settings: Any) -> Engine:
        model = model or ToyModel()
        settings = {
            "max_batch": 4,
            "max_requests": 8,
            "recurrent_states": 8,
            "pools": {spec.name: PoolConfig(4, pages, 256) for spec in model.kv_spec()},
            "check": True,
            "debug": True,
            "dtype": torch.int64,
            "state_dtype": torch.int64,
        } | settings
        return Engine(
            model,
            EngineConfig(**settings),
            sampler=lambda seats, device: ToySampler(model.vocab_size, seats, device),
            wrap_runner=HookRunner,
        )

    return build


@pytest.fixture
def submit() -> Callable[..., Request]:
    """Queue a request with a prompt of so many tokens, or of these."""

    def add(engine: Engine, prompt: int | list[int], max_new: int, **fields: Any) -> Request:
        tokens = np.arange(1, prompt + 1) if isinstance(prompt, int) else np.array(prompt)
        request = Request(f"r{id(tokens)}", tokens.astype(np.int64), max_new, **fields)
        engine.add(request)
        return request

    return add
