"""Shapes of the decoders, read from a checkpoint's config.json or given by name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mstar_resident.models.base import CheckpointError
from mstar_resident.models.rope import RopeConfig


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Describe a decoder of the Llama family; Qwen2 adds biases, Qwen3 a norm per head."""

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    rope: RopeConfig
    rms_eps: float = 1e-6
    tie_embeddings: bool = False
    head_norms: bool = False
    qkv_bias: bool = False
    max_positions: int = 4096
    eos_token_ids: tuple[int, ...] = ()

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> LlamaConfig:
        """Read a config.json's fields.

        Raises CheckpointError: another kind of model, an activation other than silu, sliding windows or MLP biases.
        """
        kind = config.get("model_type")
        if kind not in ("llama", "mistral", "qwen2", "qwen3"):
            raise CheckpointError.of("model_type", expected=["llama", "mistral", "qwen2", "qwen3"], got=kind)
        _require_plain(config)
        if config.get("sliding_window") and config.get("use_sliding_window", kind == "mistral"):
            raise CheckpointError.of("sliding_window", expected=None, got=config["sliding_window"])
        if config.get("mlp_bias"):
            raise CheckpointError.of("mlp_bias", expected=False, got=True)
        if config.get("attention_bias") and kind != "qwen2":
            raise CheckpointError.of("attention_bias", expected=False, got=True)
        heads = int(config["num_attention_heads"])
        head_dim = int(config.get("head_dim") or config["hidden_size"] // heads)
        return cls(
            vocab_size=int(config["vocab_size"]),
            hidden_size=int(config["hidden_size"]),
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=head_dim,
            intermediate_size=int(config["intermediate_size"]),
            rope=RopeConfig.from_json(config, head_dim),
            rms_eps=float(config.get("rms_norm_eps", 1e-6)),
            tie_embeddings=bool(config.get("tie_word_embeddings", False)),
            head_norms=kind == "qwen3",
            qkv_bias=kind == "qwen2",
            max_positions=int(config.get("max_position_embeddings", 4096)),
            eos_token_ids=token_ids(config.get("eos_token_id")),
        )


QWEN35_ROPE = RopeConfig(theta=1e7, rotary_dim=64)


@dataclass(frozen=True, slots=True)
class Qwen35Config:
    """Describe a Qwen3.5 text decoder: layers of gated delta nets, every ``interval``-th one full attention."""

    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    intermediate_size: int
    value_heads: int
    vocab_size: int = 248_320
    head_dim: int = 256
    key_heads: int = 16
    key_dim: int = 128
    value_dim: int = 128
    conv_kernel: int = 4
    interval: int = 4
    rope: RopeConfig = QWEN35_ROPE
    rms_eps: float = 1e-6
    tie_embeddings: bool = False
    max_positions: int = 262_144
    eos_token_ids: tuple[int, ...] = ()

    @property
    def conv_dim(self) -> int:
        """Width of the convolution: queries, keys and values of the delta nets."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def is_attention(self, layer: int) -> bool:
        """Return whether ``layer`` is one of full attention."""
        return (layer + 1) % self.interval == 0

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> Qwen35Config:
        """Read a config.json's fields, of the text decoder alone or of the whole model around it.

        Raises CheckpointError: another kind of model, or layers that are not in the pattern of one interval.
        """
        text = config.get("text_config", config)
        if text.get("model_type") not in ("qwen3_5_text", "qwen3_5"):
            raise CheckpointError.of("model_type", expected="qwen3_5_text", got=text.get("model_type"))
        _require_plain(text)
        layers, head_dim = int(text["num_hidden_layers"]), int(text["head_dim"])
        kinds = text.get("layer_types")
        interval = int(text.get("full_attention_interval") or 4)
        if kinds:
            interval = kinds.index("full_attention") + 1 if "full_attention" in kinds else layers + 1
            attention = [(i + 1) % interval == 0 for i in range(layers)]
            if [kind == "full_attention" for kind in kinds] != attention:
                raise CheckpointError.of("layer_types", expected=f"attention every {interval} layers", got=kinds)
        return cls(
            hidden_size=int(text["hidden_size"]),
            layers=layers,
            heads=int(text["num_attention_heads"]),
            kv_heads=int(text["num_key_value_heads"]),
            intermediate_size=int(text["intermediate_size"]),
            value_heads=int(text["linear_num_value_heads"]),
            vocab_size=int(text["vocab_size"]),
            head_dim=head_dim,
            key_heads=int(text["linear_num_key_heads"]),
            key_dim=int(text["linear_key_head_dim"]),
            value_dim=int(text["linear_value_head_dim"]),
            conv_kernel=int(text["linear_conv_kernel_dim"]),
            interval=interval,
            rope=RopeConfig.from_json({"partial_rotary_factor": 0.25, **text}, head_dim),
            rms_eps=float(text.get("rms_norm_eps", 1e-6)),
            tie_embeddings=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
            max_positions=int(text.get("max_position_embeddings", 262_144)),
            eos_token_ids=token_ids(text.get("eos_token_id")),
        )


@dataclass(frozen=True, slots=True)
class WhisperConfig:
    """Describe Whisper's text decoder; the defaults are large-v3's."""

    vocab_size: int = 51_866
    hidden_size: int = 1280
    layers: int = 32
    heads: int = 20
    intermediate_size: int = 5120
    max_positions: int = 448
    max_context: int = 1500
    eos_token_ids: tuple[int, ...] = ()

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> WhisperConfig:
        """Read a config.json's fields.

        Raises CheckpointError: another kind of model, an activation other than gelu, or scaled embeddings.
        """
        if config.get("model_type") != "whisper":
            raise CheckpointError.of("model_type", expected="whisper", got=config.get("model_type"))
        if config.get("activation_function", "gelu") != "gelu":
            raise CheckpointError.of("activation_function", expected="gelu", got=config["activation_function"])
        if config.get("scale_embedding"):
            raise CheckpointError.of("scale_embedding", expected=False, got=True)
        return cls(
            vocab_size=int(config["vocab_size"]),
            hidden_size=int(config["d_model"]),
            layers=int(config["decoder_layers"]),
            heads=int(config["decoder_attention_heads"]),
            intermediate_size=int(config["decoder_ffn_dim"]),
            max_positions=int(config["max_target_positions"]),
            max_context=int(config["max_source_positions"]),
            eos_token_ids=token_ids(config.get("eos_token_id")),
        )


def read_config(directory: Path | str) -> dict[str, Any]:
    """Return a checkpoint directory's config.json. Raises CheckpointError: it has none."""
    file = Path(directory) / "config.json"
    if not file.is_file():
        raise CheckpointError.of("config", expected="config.json", got=None, directory=str(directory))
    config: dict[str, Any] = json.loads(file.read_text())
    return config


def token_ids(value: int | list[int] | None) -> tuple[int, ...]:
    """Return a config's one, several or no token ids as a tuple."""
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def _require_plain(config: dict[str, Any]) -> None:
    if config.get("hidden_act", "silu") != "silu":
        raise CheckpointError.of("hidden_act", expected="silu", got=config["hidden_act"])
    if config.get("quantization_config"):
        raise CheckpointError.of("quantization_config", expected=None, got="a quantised checkpoint")
