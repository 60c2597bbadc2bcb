"""Memory allocated, freed and given back between captured steps: what a graph recorded stays where it was."""

from __future__ import annotations

import random

import torch

from .test_engine import answers, engine, prompts


def test_memory_that_comes_and_goes_between_steps_changes_no_answer() -> None:
    asked = prompts(24, seed=12)
    calm = answers(engine(8), asked, 24, 96)
    built = engine(8, shadow=True)
    planner, draw = built.planner, random.Random(2)
    assert planner is not None
    addresses = (*planner.store.addresses(), *planner.stager.addresses())
    decode, kept, taken = built.arm.decode, [], 0

    def churned(*step: object) -> object:
        nonlocal taken
        size = 1 << draw.randrange(9, 26)
        kept.append(torch.full((size,), 0x7F, dtype=torch.uint8, device="cuda"))  # whatever it lies over is spoilt
        taken += size
        if len(kept) > 12:
            kept.pop(draw.randrange(len(kept)))
        if draw.random() < 0.1:
            kept.clear()
            torch.cuda.empty_cache()
        return decode(*step)  # type: ignore[arg-type]

    built.arm.decode = churned  # type: ignore[method-assign,assignment]
    assert answers(built, asked, 24, 96) == calm
    assert built.counters.mismatches == []
    assert built.shadow is not None
    assert built.shadow.steps == built.counters.resident_steps > 200
    assert taken > 1 << 28
    assert (*planner.store.addresses(), *planner.stager.addresses()) == addresses
