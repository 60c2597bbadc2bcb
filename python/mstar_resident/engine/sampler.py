"""Draw the next tokens, and keep the last ones on the device."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from mstar_resident.engine.request import Sampling


class Sampler(Protocol):
    """Turn what a forward returned into one token a row."""

    def admit(self, seat: int, sampling: Sampling) -> None:
        """Set a seat's parameters; every one, since an earlier request may have left others."""

    def draw(self, logits: Tensor, seats: Tensor, positions: Tensor) -> Tensor:
        """Return ``int64[b]``; a row's token depends on that row alone, whatever else is in the batch."""
        ...


class TokenSampler:
    """Draw from logits: the greatest, or at random under temperature, top-k and top-p.

    Its parameters live on the device by seat. The random number of a row is a hash of its seed and its position, so
    that a request draws the same tokens alone or in any batch, and again after it was filled anew.

    Attributes:
        greedy: whether every request so far is greedy; a step then takes the greatest and nothing else.
    """

    def __init__(self, seats: int, device: torch.device) -> None:
        self.greedy = True
        self._temperature = torch.zeros(seats, dtype=torch.float32, device=device)
        self._top_p = torch.ones(seats, dtype=torch.float32, device=device)
        self._top_k = torch.zeros(seats, dtype=torch.int64, device=device)
        self._seed = torch.zeros(seats, dtype=torch.int64, device=device)

    def admit(self, seat: int, sampling: Sampling) -> None:
        """Set a seat's parameters."""
        self.greedy = self.greedy and sampling.temperature == 0
        self._temperature[seat] = sampling.temperature
        self._top_p[seat] = sampling.top_p
        self._top_k[seat] = sampling.top_k
        self._seed[seat] = sampling.seed

    def draw(self, logits: Tensor, seats: Tensor, positions: Tensor) -> Tensor:
        """Return ``int64[b]``: a token per row of ``logits``, ``float[b, vocab]``."""
        greatest = logits.argmax(dim=-1)
        if self.greedy:
            return greatest
        temperature = self._temperature[seats, None]
        scaled = logits.float() / torch.where(temperature > 0, temperature, 1.0)
        probability, token = scaled.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
        before = probability.cumsum(dim=-1) - probability
        rank = torch.arange(token.shape[1], device=token.device)
        top_k, top_p = self._top_k[seats, None], self._top_p[seats, None]
        kept = (before < top_p) & ((top_k == 0) | (rank < top_k))
        kept[:, 0] = True  # the most likely token always stays
        mass = (probability * kept).cumsum(dim=-1, dtype=torch.float64)
        wanted = uniform(self._seed[seats], positions) * mass[:, -1]
        place = torch.searchsorted(mass, wanted[:, None], right=True).clamp(max=token.shape[1] - 1)
        place = torch.minimum(place, kept.sum(dim=-1, keepdim=True) - 1)
        drawn = token.gather(1, place)[:, 0]
        return torch.where(temperature[:, 0] > 0, drawn, greatest)


def mix(value: Tensor) -> Tensor:
    """Hash int64 values to int64 values, elementwise, in wrapping arithmetic."""
    value = (value ^ ((value >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    value = (value ^ ((value >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return value ^ ((value >> 31) & 0x1FFFFFFFF)


def uniform(seed: Tensor, position: Tensor) -> Tensor:
    """Return ``float64`` numbers in [0, 1), one per (seed, position)."""
    hashed = mix(mix(seed + 0x1E3779B97F4A7C15) + position * 0x2545F4914F6CDD1D)
    return ((hashed >> 11) & ((1 << 53) - 1)).double() / float(1 << 53)
