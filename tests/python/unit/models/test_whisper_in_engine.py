"""Whisper through the engine, its decode rows resident, token for token what transformers' decoder says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mstar_resident.engine import Engine, EngineConfig, PoolConfig, Request
from mstar_resident.models.config import WhisperConfig

from .test_whisper_against_transformers import SMALL, pair


def greedy(theirs: Any, prompt: list[int], context: torch.Tensor, count: int) -> list[int]:
    """Return transformers' greedy tokens, each from the whole sequence anew."""
    tokens = list(prompt)
    for _ in range(count):
        hidden = theirs(input_ids=torch.tensor([tokens]), encoder_hidden_states=context[None]).last_hidden_state
        tokens.append(int((hidden[0, -1] @ theirs.embed_tokens.weight.T).argmax()))
    return tokens[len(prompt) :]


def compare(model: WhisperConfig, config: EngineConfig, lengths: list[int], outputs: int) -> Engine:
    theirs, ours = pair(model)
    engine = Engine(ours, config)
    engine.capture()
    generator = torch.Generator().manual_seed(5)
    rng = np.random.default_rng(5)
    requests = []
    for number, length in enumerate(lengths):
        prompt = rng.integers(3, model.vocab_size, 1 + number)
        context = torch.randn(length, model.hidden_size, generator=generator)
        requests.append(Request(str(number), prompt, outputs - number, context=context))
        engine.add(requests[-1])
    engine.run()
    for request in requests:
        context = torch.as_tensor(request.context)
        assert request.outputs == greedy(theirs, request.prompt.tolist(), context, request.max_new)
    assert len({token for request in requests for token in request.outputs}) > len(requests)
    assert engine.counters.mismatches == []
    return engine


@pytest.mark.parametrize("planning", ["resident", "host"])
def test_tokens_are_those_of_transformers(planning: str) -> None:
    pools = {"self": PoolConfig(4, 60, 64), "context": PoolConfig(8, 30, 40)}
    config = EngineConfig(
        max_batch=3,
        max_requests=5,
        pools=pools,
        planning=planning,
        check=True,
        debug=True,  # type: ignore[arg-type]
    )
    engine = compare(SMALL, config, [40, 1, 17, 25, 8], 24)
    assert (engine.planner is not None) == (planning == "resident")
    if engine.planner is not None:
        assert engine.counters.rows_checked > 80
        assert engine.planner.stats().crossings > 10


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_tokens_are_those_of_transformers_at_large_v3s_width_and_rows() -> None:
    """Two layers of it: 4 + 12 pages and 3 narrow cells a row, besides the seat's, and 128 slots at 64 rows."""
    model = replace(WhisperConfig(), layers=2)
    pools = {"self": PoolConfig(128, 12, 448), "context": PoolConfig(128, 40, 1500)}
    config = EngineConfig(max_batch=64, max_requests=64, pools=pools, planning="resident", check=True, debug=True)
    engine = compare(model, config, [1500, 7, 300, 129], 20)
    assert engine.planner is not None
    assert engine.counters.rows_checked > 60
    layout = engine.planner.layout
    assert layout.table_pages == (4, 12)
    assert layout.width == 3 + 4 + 12 + 1
    assert engine.planner.store.narrow.shape[0] - 1 == 128
