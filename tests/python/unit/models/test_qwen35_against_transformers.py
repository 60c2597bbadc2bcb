"""The Qwen3.5 decoder against transformers' own modules on the same weights: prefill, chunked prefill, decode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mstar_resident.errors import LayoutError
from mstar_resident.models.base import CheckpointError
from mstar_resident.models.checkpoint import MappingWeights
from mstar_resident.models.config import Qwen35Config
from mstar_resident.models.gdn import TorchGatedDelta
from mstar_resident.models.gdn_triton import TritonGatedDelta
from mstar_resident.models.kernels import Kernels
from mstar_resident.models.qwen35 import SHAPES, Qwen35
from mstar_resident.models.rope import RopeConfig

from .recorded import Recorded

transformers = pytest.importorskip("transformers")

SMALL = Qwen35Config(
    hidden_size=64,
    layers=8,
    heads=4,
    kv_heads=2,
    intermediate_size=96,
    value_heads=8,
    vocab_size=101,
    head_dim=32,
    key_heads=4,
    key_dim=16,
    value_dim=8,
    rope=RopeConfig(theta=1e4, rotary_dim=8),
)


def their_config(c: Qwen35Config) -> Any:
    return transformers.Qwen3_5TextConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        num_hidden_layers=c.layers,
        num_attention_heads=c.heads,
        num_key_value_heads=c.kv_heads,
        head_dim=c.head_dim,
        max_position_embeddings=c.max_positions,
        tie_word_embeddings=c.tie_embeddings,
        linear_num_key_heads=c.key_heads,
        linear_num_value_heads=c.value_heads,
        linear_key_head_dim=c.key_dim,
        linear_value_head_dim=c.value_dim,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": c.rope.theta,
            "partial_rotary_factor": c.rope.rotary_dim / c.head_dim,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
    )


def pair(config: Qwen35Config, seed: int = 0) -> tuple[Any, Qwen35]:
    """Return transformers' module and ours on the same seeded weights."""
    weights = Recorded(seed)
    ours = Qwen35(config, weights)
    with torch.device("meta"):
        theirs = transformers.Qwen3_5ForCausalLM(their_config(config))
    theirs.model.rotary_emb = type(theirs.model.rotary_emb)(theirs.config)
    if config.tie_embeddings:
        weights.tensors["lm_head.weight"] = weights.tensors["model.embed_tokens.weight"]
    theirs.load_state_dict(weights.tensors, assign=True)
    return theirs.eval().requires_grad_(False), ours


def follow(run: Any, ids: dict[str, list[int]], expected: dict[str, Tensor], error: Callable[..., float]) -> float:
    """Prefill in chunks beside one-token rows, then decode; return the worst relative error of all logits."""
    a, b, c = ids
    done = {a: len(ids[a]) // 2, b: 1, c: len(ids[c]) // 3}
    worst = 0.0

    def compare(got: Tensor, rows: list[str]) -> None:
        nonlocal worst
        worst = max(worst, error(got, torch.stack([expected[r][done[r] - 1] for r in rows])))

    compare(run.prefill({r: ids[r][:n] for r, n in done.items()}), [a, b, c])
    for chunk in (1, 2, 5):
        step = {c: chunk, b: 1, a: 1}
        got = run.prefill({r: ids[r][done[r] : done[r] + n] for r, n in step.items()})
        for r, n in step.items():
            done[r] += n
        compare(got, list(step))
    for _ in range(8):
        got = run.decode({r: ids[r][done[r]] for r in (b, c, a)})
        for r in done:
            done[r] += 1
        compare(got, [b, c, a])
    return worst


def worst_error(
    config: Qwen35Config, lengths: list[int], steps: Callable[..., Any], error: Callable[..., float]
) -> float:
    theirs, ours = pair(config)
    g = torch.Generator().manual_seed(5)
    ids = {f"r{n}": torch.randint(config.vocab_size, (n,), generator=g).tolist() for n in lengths}
    expected = {r: theirs(torch.tensor([i])).logits[0] for r, i in ids.items()}
    return follow(steps(ours), ids, expected, error)


@pytest.mark.parametrize("tie", [False, True])
def test_logits_match_transformers(tie: bool, steps: Callable[..., Any], error: Callable[..., float]) -> None:
    assert worst_error(replace(SMALL, tie_embeddings=tie), [170, 21, 96], steps, error) <= 1e-5


@pytest.mark.slow
def test_logits_match_transformers_at_the_full_depth_of_08b(
    steps: Callable[..., Any], error: Callable[..., float]
) -> None:
    worst = worst_error(replace(SHAPES["0.8b"], vocab_size=8192), [40, 21, 30], steps, error)
    print(f"0.8b, 24 layers, vocabulary 8192: relative error {worst:.1e}")
    assert worst <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["2b", "4b", "9b"])
def test_logits_match_transformers_at_larger_widths(
    name: str, steps: Callable[..., Any], error: Callable[..., float]
) -> None:
    narrow = {"layers": 4, "vocab_size": 4096, "intermediate_size": 1024}  # half a minute less to draw
    worst = worst_error(replace(SHAPES[name], **narrow), [24, 18, 30], steps, error)
    print(f"{name}, {narrow}: relative error {worst:.1e}")
    assert worst <= 1e-4


def test_a_config_is_read_as_it_was_written() -> None:
    for config in (SMALL, SHAPES["0.8b"], SHAPES["27b"]):
        written = their_config(config).to_dict()
        assert Qwen35Config.from_json(written) == config
        whole = {"text_config": written, "model_type": "qwen3_5", "tie_word_embeddings": config.tie_embeddings}
        assert Qwen35Config.from_json(whole) == config


def test_a_pattern_of_layers_without_one_interval_is_refused() -> None:
    written = their_config(SMALL).to_dict()
    kinds = ["linear_attention", "full_attention", "full_attention", "linear_attention"] * 2
    with pytest.raises(CheckpointError, match="layer_types"):
        Qwen35Config.from_json({**written, "layer_types": kinds})
    with pytest.raises(CheckpointError, match="model_type"):
        Qwen35Config.from_json({**written, "model_type": "qwen3_next"})


def test_a_checkpoint_of_the_whole_model_is_read_by_its_prefix(steps: Callable[..., Any]) -> None:
    theirs, ours = pair(SMALL)
    whole = {
        name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name: tensor
        for name, tensor in theirs.state_dict().items()
    }
    again = Qwen35(SMALL, MappingWeights(whole))
    tokens = {"a": [3, 1, 4, 1, 5], "b": [9]}
    assert torch.equal(steps(ours).prefill(tokens), steps(again).prefill(tokens))


def test_padding_rows_leave_every_live_state_alone(steps: Callable[..., Any]) -> None:
    model = Qwen35.seeded(SMALL, 1)
    run = steps(model)
    run.prefill({"a": [3, 1, 4]})
    before = run.recurrent.conv.clone(), run.recurrent.ssm.clone()
    inputs = run.inputs({"a": [5]}, decode=True)
    padded = replace(
        inputs,
        tokens=torch.tensor([5, 0, 0]),
        positions=torch.cat((inputs.positions, torch.zeros(2, dtype=torch.int64))),
        recurrent_index=torch.cat((inputs.recurrent_index, torch.zeros(2, dtype=torch.int32))),
        kv={
            "kv": replace(
                inputs.kv["kv"],
                rows=torch.cat((inputs.kv["kv"].rows, torch.zeros(2, dtype=torch.int64))),
                lengths=torch.cat((inputs.kv["kv"].lengths, torch.ones(2, dtype=torch.int32))),
                write_loc=torch.cat((inputs.kv["kv"].write_loc, torch.zeros(2, dtype=torch.int64))),
            )
        },
    )
    model.forward(padded)
    mine = run.known["a"][1]
    for pool, old in zip((run.recurrent.conv, run.recurrent.ssm), before, strict=True):
        others = [i for i in range(1, pool.shape[1]) if i != mine]
        assert torch.equal(pool[:, others], old[:, others])
        assert not torch.equal(pool[:, mine], old[:, mine])


@pytest.mark.parametrize("delta", [TorchGatedDelta, TritonGatedDelta])
@pytest.mark.parametrize("tokens", [1, 2, 70])
def test_a_fresh_request_reads_no_state_of_an_earlier_one_on_any_path(
    delta: Callable[[], Any], tokens: int, steps: Callable[..., Any]
) -> None:
    said = []
    for left in (0.0, 1e4):
        run = steps(Qwen35.seeded(SMALL, 1, kernels=Kernels(delta=delta())))
        run.recurrent.conv.fill_(left)
        run.recurrent.ssm.fill_(-left)
        first = run.prefill({"a": [3, 1, 4, 1, 5, 9, 2] * 10 if tokens == 70 else [3, 1, 4][:tokens]})
        said.append(torch.cat((first, run.decode({"a": 8}))))
    assert torch.equal(*said)


def test_pools_of_another_shape_are_refused(steps: Callable[..., Any]) -> None:
    model = Qwen35.seeded(SMALL, 1)
    run = steps(model)
    with pytest.raises(LayoutError, match="recurrent"):
        model.bind(run.pools, None)
    with pytest.raises(LayoutError, match="recurrent"):
        model.bind(run.pools, replace(run.recurrent, ssm=run.recurrent.ssm[:, :, :-1]))
    with pytest.raises(LayoutError, match="kv"):
        model.bind({"kv": run.pools["kv"][:-1]}, run.recurrent)
    with pytest.raises(LayoutError, match="kv"):
        model.bind({}, run.recurrent)


def test_a_seeded_decoder_says_many_different_tokens(steps: Callable[..., Any]) -> None:
    config = replace(SMALL, vocab_size=4096, hidden_size=128, tie_embeddings=True)
    run = steps(Qwen35.seeded(config, 0))
    token = int(run.prefill({"a": [17, 4, 99]})[0].argmax())
    said = [token]
    for _ in range(127):
        said.append(int(run.decode({"a": said[-1]})[0].argmax()))
    assert len(set(said)) >= 32
