"""Run the kernels on the GPU where there is one, else interpreted on the CPU."""

from __future__ import annotations

import pytest
import torch

from ...native_free import prepare

prepare()


@pytest.fixture
def device() -> str:
    """The device that kernels run on in this process."""
    return "cuda" if torch.cuda.is_available() else "cpu"
