"""What a view holds for a step in flight."""

from __future__ import annotations

import weakref

import numpy as np
import torch

from mstar_resident.engine.view import outlive


def test_memory_that_a_step_may_still_write_is_there_until_the_step_was_waited_for() -> None:
    array = np.zeros(4, dtype=np.int64)
    memory, tokens = weakref.ref(array), torch.from_numpy(array)
    del array
    there: list[bool] = []
    outlive(tokens, lambda: there.append(memory() is not None))
    row = tokens[:2]
    del tokens
    assert memory() is not None
    del row
    assert there == [True]
    assert memory() is None
