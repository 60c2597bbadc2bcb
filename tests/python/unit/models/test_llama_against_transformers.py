"""The Llama family against transformers' own modules on the same weights: prefill, chunked prefill, decode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mstar_resident.models.base import CheckpointError
from mstar_resident.models.checkpoint import MappingWeights
from mstar_resident.models.config import LlamaConfig
from mstar_resident.models.llama import Llama
from mstar_resident.models.smollm2 import ensure

transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 97,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "max_position_embeddings": 512,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
FAMILY = {
    "llama": ("Llama", {}),
    "llama tied": ("Llama", {"tie_word_embeddings": True, "head_dim": 16}),
    "llama3 rope": ("Llama", {"rope_parameters": LLAMA3}),
    "linear rope": ("Llama", {"rope_parameters": LINEAR}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 24}),
}


def pair(name: str, seed: int = 0) -> tuple[Any, Llama]:
    """Return transformers' module with random weights, and ours on the same."""
    family, more = FAMILY[name]
    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(**SMALL, **more)
    theirs = getattr(transformers, f"{family}ForCausalLM")(config).eval().requires_grad_(False)
    for parameter in theirs.parameters():
        if parameter.ndim == 1:  # norms of one and biases of zero would hide a lost weight
            parameter.add_(torch.randn_like(parameter) * 0.2)
        else:
            parameter.mul_(4.0)
    return theirs, Llama(LlamaConfig.from_json(config.to_dict()), MappingWeights(theirs.state_dict()))


def reference(theirs: Any, ids: list[int]) -> Tensor:
    """Return their logits of every token of one sequence."""
    logits: Tensor = theirs(torch.tensor([ids])).logits[0]
    return logits


@pytest.mark.parametrize("name", FAMILY)
def test_logits_match_transformers(
    name: str, steps: Callable[..., Any], error: Callable[[Tensor, Tensor], float]
) -> None:
    theirs, ours = pair(name)
    run = steps(ours)
    g = torch.Generator().manual_seed(1)
    ids = {r: torch.randint(97, (n,), generator=g).tolist() for r, n in {"a": 41, "b": 23, "c": 60}.items()}
    expected = {r: reference(theirs, ids[r]) for r in ids}
    done = {"a": 9, "b": 1, "c": 30}
    got = run.prefill({r: ids[r][:n] for r, n in done.items()})
    assert error(got, torch.stack([expected[r][n - 1] for r, n in done.items()])) <= 1e-5
    for chunk in (4, 7, 1):  # chunks of some rows, a decode of one in the same step
        got = run.prefill({"c": ids["c"][done["c"] : done["c"] + chunk], "b": ids["b"][done["b"] : done["b"] + 1]})
        done["c"] += chunk
        done["b"] += 1
        assert error(got, torch.stack([expected[r][done[r] - 1] for r in ("c", "b")])) <= 1e-5
    for _ in range(12):
        got = run.decode({r: ids[r][done[r]] for r in ("b", "c", "a")})
        for r in done:
            done[r] += 1
        assert error(got, torch.stack([expected[r][done[r] - 1] for r in ("b", "c", "a")])) <= 1e-5


def test_smollm2s_real_weights_match_transformers(
    steps: Callable[..., Any], error: Callable[[Tensor, Tensor], float], smollm2: str
) -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    ours = Llama.from_directory(smollm2)
    ids = [1, 4093, 198, 1780, 359, 260, 3575, 282, 4649, 47, 2, 198] * 5
    with torch.no_grad():
        expected = reference(theirs, ids)
    run = steps(ours, page_size=16, pages=16)
    assert error(run.prefill({"a": ids[:40]})[0], expected[39]) <= 1e-4
    assert error(run.prefill({"a": ids[40:50]})[0], expected[49]) <= 1e-4
    for at in range(50, 60):
        assert error(run.decode({"a": ids[at]})[0], expected[at]) <= 1e-4


def test_a_seeded_decoder_repeats_itself_and_differs_by_seed(steps: Callable[..., Any]) -> None:
    config = LlamaConfig.from_json(transformers.LlamaConfig(**SMALL).to_dict())
    first, again, other = (steps(Llama.seeded(config, seed)).prefill({"a": [3, 1, 4]}) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model_type": "gpt2"}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"attention_bias": True}, "attention_bias"),
        ({"model_type": "mistral", "sliding_window": 64}, "sliding_window"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ],
)
def test_a_config_that_the_decoder_cannot_run_is_refused(change: dict[str, Any], field: str) -> None:
    config = {**transformers.LlamaConfig(**SMALL).to_dict(), **change}
    with pytest.raises(CheckpointError, match=field):
        LlamaConfig.from_json(config)


@pytest.fixture
def smollm2() -> str:
    """Return the cached model's folder; skip where its package was never installed."""
    try:
        return str(ensure())
    except RuntimeError as missing:
        pytest.skip(str(missing))
