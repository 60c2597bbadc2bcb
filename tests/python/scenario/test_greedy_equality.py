"""Greedy tokens of both arms and of transformers, on the real model's weights, are the same.

Transformers is asked by teacher forcing: one forward over a prompt with our answer gives its next token at every
position of the answer; if each is ours, then by induction its own greedy answer is ours.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mstar_resident.engine.config import EngineConfig, PoolConfig
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.request import Request
from mstar_resident.models import smollm2
from mstar_resident.models.llama import Llama

NEW = 64
PAGE = 16

SUBJECTS = (
    "a lighthouse keeper who collects clocks",
    "how bees find their way home",
    "the history of paper",
    "a train that crosses a desert at night",
    "why the sky is blue at noon and red in the evening",
    "two brothers who build a boat",
    "how to plan a small vegetable garden",
    "the life of a river from spring to sea",
    "a detective who is afraid of dogs",
    "what makes bread rise",
    "a city where nobody owns a car",
    "how vaccines work",
    "an old piano in an empty house",
    "the difference between weather and climate",
    "a girl who talks to birds",
    "how to learn a language in a year",
    "the first day of winter in a mountain village",
    "why cats sleep so much",
    "a chess game between a king and a farmer",
    "how a bridge carries its load",
    "a letter that arrives fifty years late",
    "the invention of the telescope",
    "a cook who loses her sense of taste",
    "how whales sing",
    "a museum of lost things",
    "why we dream",
    "a race between a snail and a cloud",
    "how glass is made",
    "a storm at sea",
    "the best way to pack a suitcase",
    "a robot that paints landscapes",
    "how volcanoes form islands",
)


@pytest.fixture(scope="module")
def folder() -> Path:
    try:
        return smollm2.ensure()
    except smollm2.ModelMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def model(folder: Path) -> Llama:
    return Llama.from_directory(folder)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def prompts(folder: Path) -> list[np.ndarray]:
    """Prompts whose lengths leave every remainder of a page, so that their rows cross at different steps."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    made = []
    for place, subject in enumerate(SUBJECTS):
        words = " In plain words, please, and take your time." * (place % 5)
        text = f"Tell me, in many sentences and without lists, about {subject}.{words}"
        chat = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
        )
        made.append(np.array(tokenizer(chat, add_special_tokens=False)["input_ids"], dtype=np.int64))
    return made


def answers(model: Llama, prompts: list[np.ndarray], planning: str, at_once: int) -> list[list[int]]:
    """Return ``NEW`` greedy tokens for every prompt, ``at_once`` of them decoding together."""
    config = EngineConfig(
        max_batch=8,
        max_requests=at_once,
        planning=planning,  # type: ignore[arg-type]
        pools={"kv": PoolConfig(PAGE, 200, 512)},
        check=True,
        debug=True,
    )
    engine = Engine(model, config)
    requests = [Request(f"prompt {i}", prompt, NEW) for i, prompt in enumerate(prompts)]
    for request in requests:
        engine.add(request)
    engine.run()
    assert engine.counters.mismatches == []
    if planning == "resident":
        assert engine.counters.rows_checked == engine.counters.resident_steps * at_once or at_once > 1
        assert engine.counters.resident_steps >= 0.95 * engine.counters.decode_steps > 0
    else:
        assert engine.planner is None
    return [request.outputs for request in requests]


@torch.no_grad()
def next_tokens(reference: Any, prompt: np.ndarray, answer: list[int]) -> list[int]:
    """Return transformers' greedy token at every position of an answer."""
    tokens = torch.from_numpy(np.concatenate([prompt, np.array(answer[:-1])]))[None]
    greatest: list[int] = reference(tokens).logits[0, len(prompt) - 1 :].argmax(-1).tolist()
    return greatest


def compare(model: Llama, reference: Any, prompts: list[np.ndarray], at_once: tuple[int, ...]) -> None:
    crossings = {(len(prompt) - 1) % PAGE for prompt in prompts}
    assert len(crossings) >= min(8, len(prompts) // 2), "prompts cross pages at different steps"
    answered: dict[tuple[int, ...], list[int]] = {}
    for count in at_once:
        for planning in ("host", "resident"):
            for prompt, answer in zip(prompts, answers(model, prompts, planning, count), strict=True):
                first = answered.setdefault(tuple(prompt.tolist()), answer)
                assert answer == first, f"{planning}, {count} at once"
    for prompt in prompts:
        answer = answered[tuple(prompt.tolist())]
        assert len(answer) == NEW
        assert next_tokens(reference, prompt, answer) == answer
    assert statistics.median(len(set(answer)) for answer in answered.values()) >= 32


def test_greedy_tokens_of_both_arms_and_transformers_are_equal_on_a_few_prompts(
    model: Llama, reference: Any, prompts: list[np.ndarray]
) -> None:
    compare(model, reference, prompts[:6], (8,))


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_greedy_tokens_of_both_arms_and_transformers_are_equal_on_all_prompts(
    model: Llama, reference: Any, prompts: list[np.ndarray]
) -> None:
    compare(model, reference, prompts, (1, 4, 8))
