"""Rotary position embedding: inverse frequencies at build, one cosine and sine per step, shared by all layers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mstar_resident.models.base import CheckpointError


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Describe the rotation: its base, how many dimensions of a head it turns, and llama3's stretching if any."""

    theta: float
    rotary_dim: int
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 0
    """0 = frequencies are divided by ``factor`` alike (1.0: not at all); else llama3's rule."""

    @classmethod
    def from_json(cls, config: dict[str, Any], head_dim: int) -> RopeConfig:
        """Read `rope_parameters`, or the older `rope_theta` and `rope_scaling`, of a model's config.

        Raises CheckpointError: a kind other than default, linear, llama3 or (for equal positions) mrope.
        """
        rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
        kind = rope.get("rope_type", rope.get("type", "default"))
        theta = float(rope.get("rope_theta", config.get("rope_theta", 10_000.0)))
        partial = float(rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)))
        rotary_dim = int(head_dim * partial)
        if kind in ("default", "mrope"):
            return cls(theta, rotary_dim)
        if kind == "linear":
            return cls(theta, rotary_dim, factor=float(rope["factor"]))
        if kind == "llama3":
            return cls(
                theta,
                rotary_dim,
                factor=float(rope["factor"]),
                low_freq_factor=float(rope["low_freq_factor"]),
                high_freq_factor=float(rope["high_freq_factor"]),
                original_max_positions=int(rope["original_max_position_embeddings"]),
            )
        raise CheckpointError.of("rope_type", expected=["default", "linear", "llama3", "mrope"], got=kind)


class Rope:
    """Give the angles by which the first ``rotary_dim`` dimensions of heads turn with their token's position.

    Text has equal positions on every axis, for which the interleaved multi-axis rotation is this one.

    Attributes:
        inv_freq: fp32 ``[rotary_dim / 2]``: how far each pair of dimensions turns with a position.
    """

    def __init__(self, config: RopeConfig, device: torch.device | str) -> None:
        self.inv_freq = inverse_frequencies(config).to(device)
        half = config.rotary_dim // 2
        self._sign = torch.cat((-torch.ones(half), torch.ones(half))).to(device)

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosine and signed sine, fp32 ``[t, 1, rotary_dim]``, of ``positions int64[t]``."""
        angle = positions[:, None].float() * self.inv_freq
        angle = torch.cat((angle, angle), dim=-1)[:, None]
        return angle.cos(), angle.sin() * self._sign


def rotate(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Return ``x [t, heads, head_dim]`` rotated by cosine and signed sine; computed in fp32, rounded once."""
    cos, sin = angles
    rotary_dim = cos.shape[-1]
    turned = x[..., :rotary_dim].float()
    turned = torch.addcmul(turned * cos, turned.roll(rotary_dim // 2, -1), sin).to(x.dtype)
    if rotary_dim == x.shape[-1]:
        return turned
    return torch.cat((turned, x[..., rotary_dim:]), dim=-1)


def inverse_frequencies(config: RopeConfig) -> Tensor:
    """Return fp32 ``[rotary_dim / 2]``, cpu; llama3's rule keeps fast rotations and stretches slow ones."""
    exponents = torch.arange(0, config.rotary_dim, 2, dtype=torch.int64).float() / config.rotary_dim
    inv_freq = 1.0 / config.theta**exponents
    if not config.original_max_positions:
        return inv_freq / config.factor
    turns = config.original_max_positions * inv_freq / (2 * math.pi)
    low, high = config.low_freq_factor, config.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return kept * inv_freq + (1 - kept) * inv_freq / config.factor
