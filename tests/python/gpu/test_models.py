"""Decoders in bf16 on the GPU, Triton inside, against transformers in fp32 on the same rounded weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mstar_resident.models.base import Decoder
from mstar_resident.models.checkpoint import Init
from mstar_resident.models.config import LlamaConfig
from mstar_resident.models.kernels import Kernels
from mstar_resident.models.llama import Llama
from mstar_resident.models.qwen35 import SHAPES, Qwen35
from mstar_resident.models.rope import RopeConfig

from ..unit.models.recorded import Recorded
from ..unit.models.steps import Steps, relative_error

BF16 = torch.bfloat16
QWEN3 = LlamaConfig(
    vocab_size=49_152,
    hidden_size=576,
    layers=30,
    heads=9,
    kv_heads=3,
    head_dim=64,
    intermediate_size=1536,
    rope=RopeConfig(theta=1e5, rotary_dim=64),
    tie_embeddings=True,
    head_norms=True,
)


class Rounded(Recorded):
    """Draw weights on the GPU that bf16 holds exactly."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, "cuda")

    def get(self, name: str, shape: tuple[int, ...], init: Init = "matrix") -> Tensor:
        self.tensors[name] = super().get(name, shape, init).to(BF16).float()
        return self.tensors[name]


def theirs(config: Any, kind: str, weights: Rounded, tie: bool) -> Any:
    """Return transformers' module on the weights, fp32."""
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        module = getattr(transformers, kind)(config)
    module.model.rotary_emb = type(module.model.rotary_emb)(config).cuda()
    if tie:
        weights.tensors["lm_head.weight"] = weights.tensors["model.embed_tokens.weight"]
    module.load_state_dict(weights.tensors, assign=True)
    return module.eval().requires_grad_(False)


def worst(model: Decoder, reference: Any) -> float:
    """Prefill three requests, in chunks, then decode them; return the worst relative error of a step's logits."""
    run = Steps(model, page_size=16, device="cuda", dtype=BF16)
    g = torch.Generator().manual_seed(2)
    ids = {
        r: torch.randint(model.vocab_size, (n,), generator=g).tolist() for r, n in (("a", 150), ("b", 40), ("c", 90))
    }
    expected = {r: reference(torch.tensor([i], device="cuda")).logits[0] for r, i in ids.items()}
    done = {"a": 64, "b": 1, "c": 70}
    errors = []

    def compare(got: Tensor, rows: list[str]) -> None:
        errors.append(relative_error(got, torch.stack([expected[r][done[r] - 1] for r in rows])))

    compare(run.prefill({r: ids[r][:n] for r, n in done.items()}), ["a", "b", "c"])
    got = run.prefill({"a": ids["a"][64:130], "b": ids["b"][1:2]})
    done |= {"a": 130, "b": 2}
    compare(got, ["a", "b"])
    for _ in range(16):
        got = run.decode({r: ids[r][done[r]] for r in ("c", "a", "b")})
        for r in done:
            done[r] += 1
        compare(got, ["c", "a", "b"])
    return max(errors)


@pytest.mark.parametrize("name", ["0.8b", "2b", "4b", "9b"])
def test_the_hybrid_decoder_in_bf16_stays_near_transformers_in_fp32(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    c = SHAPES[name]
    weights = Rounded(0)
    model = Qwen35(c, weights, device="cuda", dtype=BF16, kernels=Kernels.triton())
    config = transformers.Qwen3_5TextConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        num_hidden_layers=c.layers,
        num_attention_heads=c.heads,
        num_key_value_heads=c.kv_heads,
        linear_num_value_heads=c.value_heads,
        tie_word_embeddings=c.tie_embeddings,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": c.rope.theta,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
    )
    error = worst(model, theirs(config, "Qwen3_5ForCausalLM", weights, c.tie_embeddings))
    print(f"{name}, {c.layers} layers, bf16: relative error {error:.1e}")
    assert error <= 2e-2


def test_a_qwen3_decoder_in_bf16_stays_near_transformers_in_fp32() -> None:
    transformers = pytest.importorskip("transformers")
    weights = Rounded(0)
    model = Llama(QWEN3, weights, device="cuda", dtype=BF16, kernels=Kernels.triton())
    config = transformers.Qwen3Config(
        vocab_size=QWEN3.vocab_size,
        hidden_size=QWEN3.hidden_size,
        intermediate_size=QWEN3.intermediate_size,
        num_hidden_layers=QWEN3.layers,
        num_attention_heads=QWEN3.heads,
        num_key_value_heads=QWEN3.kv_heads,
        head_dim=QWEN3.head_dim,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": QWEN3.rope.theta},
    )
    error = worst(model, theirs(config, "Qwen3ForCausalLM", weights, tie=True))
    print(f"qwen3, 30 layers, bf16: relative error {error:.1e}")
    assert error <= 2e-2


@pytest.mark.parametrize("triton", [False, True])
def test_a_captured_decode_gives_what_the_eager_one_gives(triton: bool) -> None:
    config = SHAPES["0.8b"]
    kernels = Kernels.triton() if triton else Kernels()
    model = Qwen35.seeded(config, 1, device="cuda", dtype=BF16, kernels=kernels)
    run = Steps(model, page_size=16, device="cuda", dtype=BF16)
    run.prefill({"a": [3, 1, 4, 1, 5], "b": [9, 2]})
    inputs = run.inputs({"a": [6], "b": [7]}, decode=True)
    assert run.recurrent is not None
    pools = (run.pools["kv"], run.recurrent.conv, run.recurrent.ssm)
    before = [pool.clone() for pool in pools]

    def rewind() -> None:
        for pool, old in zip(pools, before, strict=True):
            pool.copy_(old)

    eager = model.forward(inputs)
    rewind()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = model.forward(inputs)
    graph.replay()
    assert relative_error(captured, eager) <= 1e-2
    first = captured.clone()
    rewind()
    graph.replay()
    assert torch.equal(captured, first)
