"""The Qwen3.5 text decoder: layers of gated delta nets, every fourth one full attention with an output gate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

import torch
from torch import Tensor

from mstar_resident.models.base import (
    KVSpec,
    RecurrentPool,
    RecurrentSpec,
    check_pools,
    check_recurrent,
    on_host,
    weight_bytes,
)
from mstar_resident.models.checkpoint import Init, WeightSource
from mstar_resident.models.config import Qwen35Config
from mstar_resident.models.gdn import DeltaInputs, DeltaWeights, Ranges
from mstar_resident.models.layers import last_tokens
from mstar_resident.models.llama import attend
from mstar_resident.models.loaded import Loaded, Options
from mstar_resident.models.rope import Rope

if TYPE_CHECKING:
    from mstar_resident.engine.inputs import StepInputs


def _shape(*sizes: int, tie: bool = False) -> Qwen35Config:
    hidden, layers, mlp, heads, kv_heads, value_heads = sizes
    return Qwen35Config(hidden, layers, heads, kv_heads, mlp, value_heads, tie_embeddings=tie)


#: hidden size, layers, MLP, heads, kv heads, value heads; the rest is one for all.
SHAPES: dict[str, Qwen35Config] = {
    "0.8b": _shape(1024, 24, 3584, 8, 2, 16, tie=True),
    "2b": _shape(2048, 24, 6144, 8, 2, 16),
    "4b": _shape(2560, 32, 9216, 16, 4, 32),
    "9b": _shape(4096, 32, 12288, 16, 4, 32),
    "27b": _shape(5120, 64, 17408, 24, 4, 48),
}


@dataclass(frozen=True, slots=True)
class DeltaLayer:
    """Hold the mixer of a delta-net layer."""

    project: Tensor
    """[conv_dim + value_heads * value_dim + 2 * value_heads, hidden_size]: qkv, z, b, a."""
    delta: DeltaWeights
    out: Tensor


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """Hold the mixer of a full-attention layer."""

    project: Tensor
    """[(2 * heads + 2 * kv_heads) * head_dim, hidden_size]: queries, keys, values, output gates."""
    head_norms: Tensor
    """fp32[heads + kv_heads, head_dim]: the norm of every query and key head."""
    out: Tensor


@dataclass(frozen=True, slots=True)
class Layer:
    """Hold one layer's packed weights; norms in fp32, one already added."""

    mixer: DeltaLayer | AttentionLayer
    mixer_norm: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Qwen35(Loaded[Qwen35Config]):
    """Be a :class:`~mstar_resident.models.base.Decoder` of the Qwen3.5 kind: a KV pool "kv" and a recurrent pool."""

    config_type = Qwen35Config

    def __init__(
        self,
        config: Qwen35Config,
        weights: WeightSource,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(config, weights, **options)
        device, dtype = self.device, self.dtype
        self._rope = Rope(config.rope, device)
        self._pools: tuple[Tensor, RecurrentPool] | None = None
        root = "model" if weights.has("model.embed_tokens.weight") else "model.language_model"

        def get(name: str, *shape: int, init: Init = "matrix", to: torch.dtype = dtype) -> Tensor:
            return weights.get(name, shape, init).to(device=device, dtype=to)

        self._embeddings = get(f"{root}.embed_tokens.weight", config.vocab_size, config.hidden_size, init="embedding")
        self._layers = [_load_layer(config, f"{root}.layers.{i}", i, get) for i in range(config.layers)]
        self._norm = 1.0 + get(f"{root}.norm.weight", config.hidden_size, init="flips", to=torch.float32)
        self._head = self._embeddings
        if not config.tie_embeddings:
            self._head = get("lm_head.weight", config.vocab_size, config.hidden_size)

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        return self.config.vocab_size

    def streamed_bytes(self) -> int:
        """Return the bytes of weights that a decode step reads: all but an embedding table that is not the head too."""
        return weight_bytes([self._layers, self._norm, self._head])

    def held_bytes(self) -> int:
        """Return the bytes of memory that all its weights take."""
        head = [] if self.config.tie_embeddings else [self._head]
        return weight_bytes([self._embeddings, self._layers, self._norm, *head])

    def kv_spec(self) -> list[KVSpec]:
        """Return the pool "kv" of the full-attention layers."""
        c = self.config
        return [self.pool("kv", sum(map(c.is_attention, range(c.layers))), c.kv_heads, c.head_dim)]

    def recurrent_spec(self) -> RecurrentSpec:
        """Return the state of the delta-net layers."""
        c = self.config
        layers = c.layers - self.kv_spec()[0].layers
        return RecurrentSpec(layers, c.conv_dim, c.conv_kernel - 1, c.value_heads, c.value_dim, c.key_dim)

    def bind(self, kv: dict[str, Tensor], recurrent: RecurrentPool | None = None) -> None:
        """Use these pools from now on. Raises LayoutError: a pool is missing or has another shape."""
        check_pools(self.kv_spec(), kv)
        self._pools = kv["kv"], check_recurrent(self.recurrent_spec(), recurrent)

    @torch.no_grad()
    def forward(self, inputs: StepInputs) -> Tensor:
        """Run a step; see :meth:`mstar_resident.models.base.Decoder.forward`. Raises RuntimeError: not bound."""
        index = inputs.recurrent_index
        if self._pools is None or index is None:
            raise RuntimeError("forward needs bound pools and recurrent indices")
        inputs = on_host(inputs)
        kv, recurrent = self._pools
        if inputs.fresh is not None:
            recurrent.clear(index, inputs.fresh)
        ranges = None if inputs.query_start is None else Ranges.of(inputs.query_start, index.device)
        angles = self.kernels.pointwise.angles(self._rope, inputs.positions)
        eps = self.config.rms_eps
        kv_layers, states = iter(kv), zip(recurrent.conv, recurrent.ssm, strict=True)
        if inputs.query_start is None and len(kv):
            self.kernels.attention.begin(kv[0], self.config.heads, inputs.kv["kv"])
        products, h = self.kernels.products, None
        x = self.kernels.pointwise.embed(inputs.tokens, self._embeddings)
        for w in self._layers:
            x, packed = products.normed(x, h, w.mixer_norm, eps, w.mixer.project)
            if isinstance(w.mixer, AttentionLayer):
                h = self._whole(self._attend(packed, w.mixer, next(kv_layers), inputs, angles))
            else:
                h = self._whole(self._recur(packed, w.mixer, *next(states), index, ranges))
            x, inner = products.normed_swiglu(x, h, w.mlp_norm, eps, w.gate_up)
            h = self._whole(products.plain(inner, w.down))
        x, last = last_tokens(x, inputs.query_start), None if h is None else last_tokens(h, inputs.query_start)
        return self._all_logits(products.normed(x, last, self._norm, eps, self._head)[1])

    def _attend(
        self, packed: Tensor, w: AttentionLayer, pool: Tensor, inputs: StepInputs, angles: tuple[Tensor, Tensor]
    ) -> Tensor:
        c, paged = self.config, inputs.kv["kv"]
        heads, gate = packed.view(packed.shape[0], -1, c.head_dim), packed[:, -c.heads * c.head_dim :]
        q = self.kernels.pointwise.rotate_and_write(
            heads, c.heads, w.head_norms, c.rms_eps, angles, pool, paged, self.kernels.attention
        )
        seen = attend(self.kernels.attention, pool, q, paged, inputs.query_start)
        return self.kernels.products.gated(seen.flatten(1), gate, w.out)

    def _recur(
        self, packed: Tensor, w: DeltaLayer, conv: Tensor, ssm: Tensor, index: Tensor, ranges: Ranges | None
    ) -> Tensor:
        c = self.config
        values = c.value_heads * c.value_dim
        qkv, z, b, a = packed.split([c.conv_dim, values, c.value_heads, c.value_heads], dim=1)
        step = DeltaInputs(qkv, z.unflatten(1, (c.value_heads, c.value_dim)), a, b)
        if ranges is None:
            mixed = self.kernels.delta.decode(step, w.delta, conv, ssm, index)
        else:
            mixed = self.kernels.delta.prefill(step, w.delta, conv, ssm, index, ranges)
        return self.kernels.products.plain(mixed.flatten(1), w.out)


def _load_layer(c: Qwen35Config, at: str, i: int, get: Callable[..., Tensor]) -> Layer:
    return Layer(
        mixer=_load_attention(c, f"{at}.self_attn", get)
        if c.is_attention(i)
        else _load_delta(c, f"{at}.linear_attn", get),
        mixer_norm=1.0 + get(f"{at}.input_layernorm.weight", c.hidden_size, init="small", to=torch.float32),
        mlp_norm=1.0 + get(f"{at}.post_attention_layernorm.weight", c.hidden_size, init="small", to=torch.float32),
        gate_up=torch.cat(
            [get(f"{at}.mlp.{n}_proj.weight", c.intermediate_size, c.hidden_size) for n in ("gate", "up")]
        ),
        down=get(f"{at}.mlp.down_proj.weight", c.hidden_size, c.intermediate_size, init="residual"),
    )


def _load_attention(c: Qwen35Config, at: str, get: Callable[..., Tensor]) -> AttentionLayer:
    # A checkpoint interleaves query and gate head by head.
    query_gate = get(f"{at}.q_proj.weight", 2 * c.heads * c.head_dim, c.hidden_size)
    query, gate = query_gate.view(c.heads, 2, c.head_dim, c.hidden_size).unbind(1)
    k, v = (get(f"{at}.{n}_proj.weight", c.kv_heads * c.head_dim, c.hidden_size) for n in ("k", "v"))
    norms = {"q": c.heads, "k": c.kv_heads}
    return AttentionLayer(
        project=torch.cat((query.flatten(0, 1), k, v, gate.flatten(0, 1))),
        head_norms=1.0
        + torch.cat(
            [
                get(f"{at}.{n}_norm.weight", c.head_dim, init="small", to=torch.float32).expand(count, -1)
                for n, count in norms.items()
            ]
        ),
        out=get(f"{at}.o_proj.weight", c.hidden_size, c.heads * c.head_dim, init="residual"),
    )


def _load_delta(c: Qwen35Config, at: str, get: Callable[..., Tensor]) -> DeltaLayer:
    values = c.value_heads * c.value_dim
    sizes = {"qkv": c.conv_dim, "z": values, "b": c.value_heads, "a": c.value_heads}
    return DeltaLayer(
        project=torch.cat([get(f"{at}.in_proj_{n}.weight", size, c.hidden_size) for n, size in sizes.items()]),
        delta=DeltaWeights(
            key_heads=c.key_heads,
            conv=get(f"{at}.conv1d.weight", c.conv_dim, 1, c.conv_kernel).squeeze(1).contiguous(),
            a_log=get(f"{at}.A_log", c.value_heads, init="decay", to=torch.float32),
            dt_bias=get(f"{at}.dt_bias", c.value_heads, init="step", to=torch.float32),
            norm=get(f"{at}.norm.weight", c.value_dim, init="ones", to=torch.float32),
            eps=c.rms_eps,
        ),
        out=get(f"{at}.out_proj.weight", c.hidden_size, values, init="residual"),
    )
