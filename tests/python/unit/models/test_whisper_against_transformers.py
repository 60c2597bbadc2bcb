"""Whisper's decoder against transformers' own, token for token, with a context of its own per request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mstar_resident.engine.inputs import PagedKV
from mstar_resident.errors import LayoutError
from mstar_resident.models.base import CheckpointError
from mstar_resident.models.config import WhisperConfig
from mstar_resident.models.whisper import Whisper

from .recorded import Recorded

transformers = pytest.importorskip("transformers")

SMALL = WhisperConfig(
    vocab_size=211, hidden_size=48, layers=3, heads=4, intermediate_size=96, max_positions=64, max_context=40
)


def their_config(c: WhisperConfig) -> Any:
    return transformers.WhisperConfig(
        vocab_size=c.vocab_size,
        d_model=c.hidden_size,
        decoder_layers=c.layers,
        decoder_attention_heads=c.heads,
        decoder_ffn_dim=c.intermediate_size,
        max_target_positions=c.max_positions,
        max_source_positions=c.max_context,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )


def pair(config: WhisperConfig, seed: int = 0) -> tuple[Any, Whisper]:
    """Return transformers' decoder and ours on the same seeded weights."""
    weights = Recorded(seed)
    ours = Whisper(config, weights)
    with torch.device("meta"):
        theirs = transformers.models.whisper.modeling_whisper.WhisperDecoder(their_config(config))
    theirs.load_state_dict({n.removeprefix("model.decoder."): t for n, t in weights.tensors.items()}, assign=True)
    return theirs.eval().requires_grad_(False), ours


def listen(run: Any, request: str, context: Tensor) -> None:
    """Fill the request's context before its first step, as an engine does."""
    run.known.setdefault(request, (run.rows[len(run.known)], 0))
    loc = torch.tensor(run.grow(request, "context", len(context)))
    paged = PagedKV(run.tables["context"], torch.zeros(1).long(), torch.tensor([len(context)]), loc, run.page_size)
    run.model.encode(context, {"context": paged})


def follow(config: WhisperConfig, tokens: int, steps: Callable[..., Any], error: Callable[..., float]) -> float:
    """Decode both greedily, checking tokens; return the worst relative error of logits."""
    theirs, ours = pair(config)
    run = steps(ours, page_size=8, pages=3 * (-(-config.max_context // 8) + 8))
    g = torch.Generator().manual_seed(3)
    contexts = {r: torch.randn(n, config.hidden_size, generator=g) for r, n in zip("abc", (40, 1, 17), strict=True)}
    prompts = {"a": [1, 5, 9, 17], "b": [1], "c": [1, 30, 8, 8, 100, 7]}
    for request, context in contexts.items():
        listen(run, request, context)

    def reference(request: str) -> Tensor:
        ids = torch.tensor([prompts[request]])
        hidden = theirs(input_ids=ids, encoder_hidden_states=contexts[request][None]).last_hidden_state
        logits: Tensor = hidden[0, -1] @ theirs.embed_tokens.weight.T
        return logits

    got = run.prefill({r: p[:4] for r, p in prompts.items()})
    got[2] = run.prefill({"c": prompts["c"][4:]})[0]  # the rest of its prompt, in a chunk of its own
    worst = 0.0
    for _ in range(tokens):
        expected = torch.stack([reference(r) for r in "abc"])
        worst = max(worst, error(got, expected))
        assert got.argmax(-1).tolist() == expected.argmax(-1).tolist()
        for request, token in zip("abc", got.argmax(-1).tolist(), strict=True):
            prompts[request].append(token)
        got = run.decode({r: prompts[r][-1] for r in "abc"})
    assert len({t for p in prompts.values() for t in p}) >= tokens // 2
    return worst


def test_greedy_tokens_and_logits_match_transformers(steps: Callable[..., Any], error: Callable[..., float]) -> None:
    assert follow(SMALL, 24, steps, error) <= 1e-5


@pytest.mark.slow
def test_greedy_tokens_match_transformers_at_large_v3s_width(
    steps: Callable[..., Any], error: Callable[..., float]
) -> None:
    worst = follow(replace(WhisperConfig(), layers=4), 24, steps, error)
    print(f"whisper large-v3, 4 layers: relative error {worst:.1e}")
    assert worst <= 1e-4


def test_a_decode_step_leaves_the_context_as_it_was(steps: Callable[..., Any]) -> None:
    run = steps(Whisper.seeded(SMALL, 1))
    listen(run, "a", torch.arange(11))
    before = run.pools["context"].clone()
    run.prefill({"a": [1, 2, 3]})
    run.decode({"a": 4})
    assert torch.equal(run.pools["context"], before)


def test_another_context_gives_other_logits(steps: Callable[..., Any]) -> None:
    run = steps(Whisper.seeded(SMALL, 1))
    for i, request in enumerate("ab"):
        listen(run, request, torch.arange(11) + 100 * i)
    logits = run.prefill({"a": [1, 2, 3], "b": [1, 2, 3]})
    assert not torch.allclose(logits[0], logits[1])


def test_a_context_that_does_not_fit_is_refused(steps: Callable[..., Any]) -> None:
    _, ours = pair(SMALL)
    run = steps(ours)
    with pytest.raises(LayoutError, match="context"):
        listen(run, "a", torch.arange(4))  # codes, but the weights are not seeded ones
    with pytest.raises(LayoutError, match="context"):
        listen(run, "b", torch.zeros(4, SMALL.hidden_size + 1))
    paged = PagedKV(run.tables["context"], torch.zeros(1).long(), torch.tensor([4]), None, run.page_size)
    with pytest.raises(LayoutError, match="write_loc"):
        ours.encode(torch.zeros(4, SMALL.hidden_size), {"context": paged})


def test_a_config_is_read_as_it_was_written() -> None:
    for config in (SMALL, WhisperConfig()):
        assert replace(WhisperConfig.from_json(their_config(config).to_dict()), eos_token_ids=()) == config
    for change in ({"activation_function": "relu"}, {"scale_embedding": True}, {"model_type": "t5"}):
        with pytest.raises(CheckpointError, match=next(iter(change))):
            WhisperConfig.from_json({**their_config(SMALL).to_dict(), **change})
