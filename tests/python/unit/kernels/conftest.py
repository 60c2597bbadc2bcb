"""Run the kernels on the GPU where there is one, else interpreted on the CPU."""

from __future__ import annotations

import os

import pytest
import torch

from ...native_free import prepare

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is decorated
prepare()


@pytest.fixture
def device() -> str:
    """The device that kernels run on in this process."""
    return DEVICE
