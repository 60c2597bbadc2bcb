"""Seeded weights that another implementation can load."""

from __future__ import annotations

from torch import Tensor

from mstar_resident.models.checkpoint import Init, SeededWeights


class Recorded(SeededWeights):
    """Draw weights and keep them under their names."""

    def __init__(self, seed: int, device: str = "cpu") -> None:
        super().__init__(seed, device)
        self.tensors: dict[str, Tensor] = {}

    def get(self, name: str, shape: tuple[int, ...], init: Init = "matrix") -> Tensor:
        self.tensors[name] = super().get(name, shape, init)
        return self.tensors[name]
