"""Decoders on the Triton kernels give what they give on torch's."""

from __future__ import annotations

import pytest
import torch

from mstar_resident.models.config import LlamaConfig, Qwen35Config
from mstar_resident.models.kernels import Kernels
from mstar_resident.models.llama import Llama
from mstar_resident.models.qwen35 import Qwen35
from mstar_resident.models.rope import RopeConfig

from ..models.steps import Steps, relative_error

ROPE = RopeConfig(theta=1e4, rotary_dim=32)
DECODERS = {
    "qwen3.5": (Qwen35, Qwen35Config(64, 4, 4, 2, 96, 4, vocab_size=101, head_dim=64, key_heads=2, rope=ROPE)),
    "qwen3": (Llama, LlamaConfig(101, 64, 2, 4, 2, 64, 96, RopeConfig(1e4, 64), head_norms=True)),
    "llama": (Llama, LlamaConfig(101, 64, 2, 9, 3, 64, 96, RopeConfig(1e4, 64))),
}


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_on_triton_kernels_matches_torchs(name, device):
    kind, config = DECODERS[name]
    logits = []
    for kernels in (Kernels.triton(), Kernels()):
        run = Steps(kind.seeded(config, 3, device=device, kernels=kernels), page_size=16, device=device)
        steps = [run.prefill({"a": list(range(1, 17)), "b": [9, 2], "c": [5]})]
        steps += [run.decode({"b": 7, "a": 6, "c": 3})]  # "a" enters a page; few enough rows to fuse products
        steps += [run.decode({"c": 11})]
        logits.append(torch.cat(steps))
    assert relative_error(*logits) <= 1e-5
    assert logits[1].std() > 0.1  # of constant logits nothing would be learned
