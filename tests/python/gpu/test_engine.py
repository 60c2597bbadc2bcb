"""The engine on a GPU: captured steps, both arms, the row check and the shadow."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
import torch

from mstar_resident.engine.config import EngineConfig, PoolConfig
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.inputs import StepInputs
from mstar_resident.engine.request import Request
from mstar_resident.models.config import LlamaConfig
from mstar_resident.models.kernels import Kernels
from mstar_resident.models.llama import Llama
from mstar_resident.models.rope import RopeConfig

CONFIG = LlamaConfig(
    vocab_size=2000,
    hidden_size=256,
    layers=4,
    heads=8,
    kv_heads=2,
    head_dim=64,
    intermediate_size=512,
    rope=RopeConfig(theta=1e4, rotary_dim=64),
    head_norms=True,
)


def engine(max_batch: int, **options: object) -> Engine:
    """Build an engine on a seeded model, its ladder captured."""
    model = Llama.seeded(CONFIG, 3, device="cuda", dtype=torch.bfloat16, kernels=Kernels.triton())
    settings: dict[str, object] = {
        "max_batch": max_batch,
        "device": "cuda",
        "dtype": torch.bfloat16,
        "pools": {"kv": PoolConfig(16, 600, 512)},
    }
    built = Engine(model, EngineConfig(**{**settings, **options}))  # type: ignore[arg-type]
    built.capture()
    return built


def prompts(count: int, seed: int = 5) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    return [draw.integers(1, CONFIG.vocab_size, int(draw.integers(3, 90))) for _ in range(count)]


def answers(built: Engine, asked: list[np.ndarray], at_once: int, new: int) -> list[list[int]]:
    """Serve prompts, ``at_once`` at a time, and return their tokens."""
    requests = [Request(str(number), prompt, new) for number, prompt in enumerate(asked)]
    for first in range(0, len(requests), at_once):
        for request in requests[first : first + at_once]:
            built.add(request)
        built.run()
    return [request.outputs for request in requests]


@pytest.mark.parametrize("at_once", [1, 8])
def test_both_arms_give_the_same_tokens(at_once: int) -> None:
    asked = prompts(32)
    resident = engine(8, shadow=True)
    host = engine(8, planning="host")
    ours = answers(resident, asked, at_once, 64)
    assert ours == answers(host, asked, at_once, 64)
    assert statistics.median(len(set(tokens)) for tokens in ours) >= 16  # equality of constant answers means nothing
    assert resident.counters.resident_steps == resident.counters.decode_steps > 0
    assert resident.shadow is not None
    assert resident.shadow.steps == resident.counters.resident_steps
    assert resident.counters.mismatches == []


def test_the_row_check_is_quiet_while_requests_come_and_go() -> None:
    built = engine(16, check=True, shadow=True)
    draw = np.random.default_rng(1)
    for number, prompt in enumerate(prompts(80, seed=9)):
        built.add(Request(str(number), prompt, int(draw.integers(1, 60))))
    built.run()
    assert built.counters.mismatches == []
    assert built.counters.rows_checked > 1000
    assert built.shadow is not None
    assert built.shadow.rows > 1000


def test_more_requests_than_the_widest_bucket_are_served() -> None:
    built = engine(8, shadow=True, max_requests=40)
    asked = prompts(40, seed=2)
    tokens = answers(built, asked, 40, 20)
    assert [len(one) for one in tokens] == [20] * 40
    assert built.counters.mismatches == []


def test_a_bucket_that_failed_runs_host_planned_and_marks_its_rows() -> None:
    built = engine(8, shadow=True, least_resident=0.0)
    built.arm.host_planned = frozenset({4})
    other = engine(8, planning="host")
    asked = prompts(8, seed=4)
    requests = [Request(str(number), prompt, 10 + 9 * number) for number, prompt in enumerate(asked)]
    for request in requests:
        built.add(request)
    built.run()
    twins = [Request(str(number), prompt, 10 + 9 * number) for number, prompt in enumerate(asked)]
    for request in twins:
        other.add(request)
    other.run()
    assert [request.outputs for request in requests] == [request.outputs for request in twins]
    assert 0 < built.counters.resident_steps < built.counters.decode_steps
    assert built.counters.mismatches == []
    assert built.planner is not None
    assert built.planner.stats().refreshed_lengths > 0


def test_a_wrong_cell_on_the_device_is_seen_by_both_checks() -> None:
    built = engine(8, check=True, shadow=True)
    for number, prompt in enumerate(prompts(8, seed=6)):
        built.add(Request(str(number), prompt, 40))
    for _ in range(15):
        built.step()
    assert built.counters.mismatches == []
    assert built.planner is not None
    torch.cuda.synchronize()
    built.planner.store.tables["kv"][1:, 0] += 1
    built.run()
    found = built.counters.mismatches
    assert any(text.startswith("page of kv") for text in found)
    assert any(text.startswith("shadow used cells of kv") for text in found)


def test_twice_as_many_requests_as_the_default_ladder_holds_are_served() -> None:
    built = engine(128, shadow=True, max_requests=256, pools={"kv": PoolConfig(16, 3000, 512)}, token_budget=2048)
    asked = prompts(256, seed=8)
    tokens = answers(built, asked, 256, 24)
    assert [len(one) for one in tokens] == [24] * 256
    assert built.counters.mismatches == []
    assert built.counters.resident_steps == built.counters.decode_steps > 0
    assert built.planner is not None
    assert built.planner.stats().displaced == 0  # in order of arrival rows run to completion


def test_steps_that_decode_and_prefill_say_the_same_bits_every_time() -> None:
    built = engine(64, pools={"kv": PoolConfig(128, 256, 512)}, token_budget=512)
    forward, fills = built.model.forward, []

    def watched(inputs: StepInputs) -> torch.Tensor:
        logits = forward(inputs)
        fills.append(logits.view(torch.int16).cpu())
        return logits

    built.model.forward = watched  # type: ignore[method-assign]  # prefill and mixed steps are not captured
    said = []
    for _ in range(4):
        fills.clear()
        said.append((answers(built, prompts(64), 64, 4), torch.cat(list(fills))))
    assert len(said[0][1]) > 2 * 64  # rows that decode beside others that prefill
    for tokens, bits in said[1:]:
        assert tokens == said[0][0]
        assert torch.equal(bits, said[0][1])


def test_the_phases_of_a_step_are_timed_and_marked() -> None:
    built = engine(8, ranges=True)
    answers(built, prompts(8), 8, 20)
    spent = built.counters.clock.spent_ns
    assert all(spent[phase] > 0 for phase in ("admit", "pre-plan stage", "plan", "flush", "launch", "commit", "read"))
