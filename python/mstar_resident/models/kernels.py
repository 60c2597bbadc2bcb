"""The kernels that a decoder runs on: attention, delta net, its matrix products and what lies between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mstar_resident.attention.torch_paged import TorchAttention
from mstar_resident.models.gdn import GatedDelta, TorchGatedDelta
from mstar_resident.models.layers import Pointwise, TorchPointwise
from mstar_resident.models.products import Products, TorchProducts

if TYPE_CHECKING:
    from mstar_resident.attention.base import Attention


@dataclass(frozen=True, slots=True)
class Kernels:
    """Name the kernels of a decoder; torch's, on any device, where none is named.

    Their workspaces are shared by what decodes with one object: engines that do, run after one another on one
    cuda_stream.
    """

    attention: Attention = field(default_factory=TorchAttention)
    delta: GatedDelta = field(default_factory=TorchGatedDelta)
    pointwise: Pointwise = field(default_factory=TorchPointwise)
    products: Products = field(default_factory=TorchProducts)

    @classmethod
    def triton(cls, attention: Attention | None = None) -> Kernels:
        """Return this package's Triton kernels, for cuda, head dims powers of two; another attention if given."""
        from mstar_resident.attention.triton_split import TritonAttention
        from mstar_resident.models.gdn_triton import TritonGatedDelta
        from mstar_resident.models.layers_triton import TritonPointwise
        from mstar_resident.models.products_triton import TritonProducts

        return cls(attention or TritonAttention(), TritonGatedDelta(), TritonPointwise(), TritonProducts())
