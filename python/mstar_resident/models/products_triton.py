"""The decoders' matrix products on cuda: a kernel with its neighbours where rows are few, else torch's."""

from __future__ import annotations

import torch
from torch import Tensor

from mstar_resident.kernels import few_rows
from mstar_resident.kernels.few_rows_launch import FEW_ROWS, MANY_COLUMNS, NORMED_ROWS, fuses_norm
from mstar_resident.models.layers_triton import TritonPointwise
from mstar_resident.models.products import TorchProducts


class TritonProducts(TorchProducts):
    """Be a :class:`~mstar_resident.models.products.Products` that chooses by rows."""

    def __init__(self) -> None:
        super().__init__(TritonPointwise())

    def normed(
        self, x: Tensor, h: Tensor | None, norm: Tensor, eps: float, weight: Tensor, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the sum, in memory of its own where rows are few, and the product of its norm."""
        if not fuses_norm(*x.shape) or weight.shape[0] >= MANY_COLUMNS:
            return super().normed(x, h, norm, eps, weight, bias)
        out = torch.empty(x.shape[0], weight.shape[0], dtype=weight.dtype, device=x.device)
        return self._made(x, h, norm, eps, weight, out, bias, swiglu=False), out

    def normed_swiglu(
        self, x: Tensor, h: Tensor | None, norm: Tensor, eps: float, gate_up: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the sum likewise, and the gated product of its norm."""
        if not fuses_norm(*x.shape):
            return super().normed_swiglu(x, h, norm, eps, gate_up)
        out = torch.empty(x.shape[0], gate_up.shape[0] // 2, dtype=gate_up.dtype, device=x.device)
        return self._made(x, h, norm, eps, gate_up, out, None, swiglu=True), out

    def plain(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the product."""
        if x.shape[0] > FEW_ROWS or weight.shape[0] >= MANY_COLUMNS:
            return super().plain(x, weight)
        out = torch.empty(x.shape[0], weight.shape[0], dtype=weight.dtype, device=x.device)
        few_rows.product(x, weight, out)
        return out

    def gated(self, x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
        """Return the product of what is gated."""
        if x.shape[0] > NORMED_ROWS:
            return self.plain(self.pointwise.sigmoid_gate(x, gate), weight)
        out = torch.empty(x.shape[0], weight.shape[0], dtype=weight.dtype, device=x.device)
        few_rows.product(x, weight, out, gate=gate)
        return out

    def _made(
        self,
        x: Tensor,
        h: Tensor | None,
        norm: Tensor,
        eps: float,
        weight: Tensor,
        out: Tensor,
        bias: Tensor | None,
        swiglu: bool,
    ) -> Tensor:
        """Write the product of the norm to ``out``, and return the sum."""
        total = x if h is None else torch.empty_like(x)
        added = None if h is None else total
        few_rows.product(x, weight, out, h=h, total=added, norm=norm, eps=eps, bias=bias, swiglu=swiglu)
        return total
