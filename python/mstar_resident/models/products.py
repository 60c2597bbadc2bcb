"""The decoders' matrix products with what lies before and behind them, and their implementation in torch."""

from __future__ import annotations

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from mstar_resident.models.layers import Pointwise, TorchPointwise


class Products(Protocol):
    """Make a decoder's matrix products. An object holds no state of a step.

    Weights are ``[n, k]``, in the dtype of activations; answers have that dtype. A residual sum stays in fp32.
    """

    def normed(
        self, x: Tensor, h: Tensor | None, norm: Tensor, eps: float, weight: Tensor, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return ``x + h``, fp32 ``[t, k]``, and the product of its RMS norm times ``norm``, fp32 ``[k]``.

        The sum may be ``x`` itself, changed in place.
        """

    def normed_swiglu(
        self, x: Tensor, h: Tensor | None, norm: Tensor, eps: float, gate_up: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the sum as :meth:`normed` does, and silu of the product's first half times its second."""

    def plain(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the product of ``x [t, k]``."""

    def gated(self, x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
        """Return the product of x * sigmoid(gate); both ``[t, k]``."""


class TorchProducts:
    """Be the :class:`Products` of torch's matrix products, each neighbour a step of its own."""

    def __init__(self, pointwise: Pointwise | None = None) -> None:
        self.pointwise = pointwise or TorchPointwise()

    def normed(
        self, x: Tensor, h: Tensor | None, norm: Tensor, eps: float, weight: Tensor, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the sum and the product of its norm."""
        x, normed = self.pointwise.add_norm(x, h, norm, eps, weight.dtype)
        return x, F.linear(normed, weight, bias)

    def normed_swiglu(
        self, x: Tensor, h: Tensor | None, norm: Tensor, eps: float, gate_up: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the sum and the gated product of its norm."""
        x, normed = self.pointwise.add_norm(x, h, norm, eps, gate_up.dtype)
        return x, self.pointwise.swiglu(F.linear(normed, gate_up))

    def plain(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the product."""
        return F.linear(x, weight)

    def gated(self, x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
        """Return the product of what is gated."""
        return F.linear(self.pointwise.sigmoid_gate(x, gate), weight)
