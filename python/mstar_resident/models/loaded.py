"""Where a decoder's weights come from: a checkpoint directory, or a seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypedDict, TypeVar, Unpack

import torch
from torch import Tensor

from mstar_resident.models.base import KVSpec
from mstar_resident.models.checkpoint import DirectoryWeights, SeededWeights, WeightSource
from mstar_resident.models.config import read_config
from mstar_resident.models.kernels import Kernels


class Config(Protocol):
    """Be read from a config.json."""

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> Self:
        """Read its fields. Raises CheckpointError: another kind of model."""


class Options(TypedDict, total=False):
    """Say where and how a decoder runs."""

    device: torch.device | str
    """Where its weights lie: ``cpu`` (default) or a CUDA device."""
    dtype: torch.dtype
    """Of its matrices and activations; float32 by default."""
    kernels: Kernels | None
    """What it runs on; torch's if None."""


AnyConfig = TypeVar("AnyConfig", bound=Config)


class Loaded(Generic[AnyConfig]):
    """Build a decoder from a directory or a seed.

    Attributes:
        config_type: what a directory's config.json is read as.
    """

    config_type: ClassVar[type[Config]]

    def __init__(self, config: AnyConfig, weights: WeightSource, **options: Unpack[Options]) -> None:
        self.config = config
        self.device = torch.device(options.get("device", "cpu"))
        self.dtype = options.get("dtype", torch.float32)
        self.kernels = options.get("kernels") or Kernels()

    def pool(self, name: str, layers: int, kv_heads: int, head_dim: int, span: int = 1) -> KVSpec:
        """Describe a pool that the decoder's attention reads."""
        attention = self.kernels.attention
        return KVSpec(name, layers, kv_heads, head_dim, span, not attention.host_plan_free, attention.backend)

    @classmethod
    def from_directory(cls, directory: Path | str, **options: Unpack[Options]) -> Self:
        """Load a directory of config.json and safetensors files. Raises CheckpointError: it cannot be loaded."""
        config = cls.config_type.from_json(read_config(directory))
        return cls(config, DirectoryWeights(directory), **options)  # type: ignore[arg-type]

    @classmethod
    def seeded(cls, config: AnyConfig, seed: int = 0, **options: Unpack[Options]) -> Self:
        """Return the decoder with random weights drawn on the device."""
        return cls(config, SeededWeights(seed, options.get("device", "cpu")), **options)

    def _whole(self, part: Tensor) -> Tensor:
        """Return the sum that ``part`` is a part of; alone, a decoder has all of it."""
        return part

    def _all_logits(self, part: Tensor) -> Tensor:
        """Return the logits that ``part`` are some of; alone, a decoder has all of them."""
        return part
