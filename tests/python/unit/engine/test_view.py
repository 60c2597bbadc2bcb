"""What a view holds for a step in flight."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
import torch

from mstar_resident.engine import view


def test_pinned_tokens_are_there_until_the_step_that_writes_them_was_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    array = np.zeros(4, dtype=np.int64)
    memory, there = weakref.ref(array), list[bool]()

    class Event:
        def synchronize(self) -> None:
            there.append(memory() is not None)

    pinned: list[Any] = [torch.from_numpy(array)]
    del array
    monkeypatch.setattr(torch, "zeros", lambda *shape, pin_memory, **more: pinned.pop())
    monkeypatch.setattr(torch.cuda, "Event", Event)
    sampled, done = view._read(4, torch.device("cuda"))
    assert isinstance(done, Event)
    row = sampled[:2]
    del sampled
    assert memory() is not None
    del row
    assert there == [True]
    assert memory() is None
