"""What the tests of the decoders share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import Tensor

from .steps import Steps, relative_error


@pytest.fixture
def steps() -> Callable[..., Steps]:
    """Return the class, so that a test makes its own pools."""
    return Steps


@pytest.fixture
def error() -> Callable[[Tensor, Tensor], float]:
    """Return :func:`relative_error`."""
    return relative_error
