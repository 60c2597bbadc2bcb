"""Decoders of the Llama family: Llama, Mistral without windows, Qwen2, Qwen3, SmolLM2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

import torch
from torch import Tensor

from mstar_resident.models.base import KVSpec, RecurrentPool, check_pools, on_host, weight_bytes
from mstar_resident.models.checkpoint import Init, WeightSource
from mstar_resident.models.config import LlamaConfig
from mstar_resident.models.layers import last_tokens
from mstar_resident.models.loaded import Loaded, Options
from mstar_resident.models.rope import Rope

if TYPE_CHECKING:
    from mstar_resident.attention.base import Attention
    from mstar_resident.engine.inputs import PagedKV, StepInputs


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """Hold one layer's packed weights; norms in fp32, the rest in the model's dtype."""

    attention_norm: Tensor
    qkv: Tensor
    """[(heads + 2 * kv_heads) * head_dim, hidden_size]: queries, keys, values."""
    qkv_bias: Tensor | None
    head_norms: Tensor | None
    """fp32[heads + kv_heads, head_dim]: the norm of every query and key head."""
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    """[2 * intermediate_size, hidden_size]: gate, up."""
    down: Tensor


class Llama(Loaded[LlamaConfig]):
    """Be a :class:`~mstar_resident.models.base.Decoder` of the Llama family, with one KV pool named "kv"."""

    config_type = LlamaConfig

    def __init__(
        self,
        config: LlamaConfig,
        weights: WeightSource,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(config, weights, **options)
        device, dtype = self.device, self.dtype
        self._pool: Tensor | None = None
        self._rope = Rope(config.rope, device)
        c = config

        def get(name: str, *shape: int, init: Init = "matrix", to: torch.dtype = dtype) -> Tensor:
            return weights.get(name, shape, init).to(device=device, dtype=to)

        def packed(names: dict[str, int], at: str, *shape: int, init: Init = "matrix") -> Tensor:
            return torch.cat([get(at.format(name), size, *shape, init=init) for name, size in names.items()])

        def norm(name: str, size: int = c.hidden_size, init: Init = "ones") -> Tensor:
            return get(f"{name}.weight", size, init=init, to=torch.float32)

        def layer(i: int) -> LlamaLayer:
            at, mlp = f"model.layers.{i}", f"model.layers.{i}.mlp"
            sizes = {"q": c.heads * c.head_dim, "k": c.kv_heads * c.head_dim, "v": c.kv_heads * c.head_dim}
            qkv, head_norms = f"{at}.self_attn.{{}}_proj", None
            if c.head_norms:
                norms = {n: norm(f"{at}.self_attn.{n}_norm", c.head_dim) for n in ("q", "k")}
                head_norms = torch.cat((norms["q"].expand(c.heads, -1), norms["k"].expand(c.kv_heads, -1)))
            return LlamaLayer(
                attention_norm=norm(f"{at}.input_layernorm"),
                qkv=packed(sizes, f"{qkv}.weight", c.hidden_size),
                qkv_bias=packed(sizes, f"{qkv}.bias", init="small") if c.qkv_bias else None,
                head_norms=head_norms,
                out=get(f"{at}.self_attn.o_proj.weight", c.hidden_size, sizes["q"], init="residual"),
                mlp_norm=norm(f"{at}.post_attention_layernorm"),
                gate_up=packed(
                    dict.fromkeys(("gate", "up"), c.intermediate_size), mlp + ".{}_proj.weight", c.hidden_size
                ),
                down=get(f"{mlp}.down_proj.weight", c.hidden_size, c.intermediate_size, init="residual"),
            )

        self._embeddings = get("model.embed_tokens.weight", c.vocab_size, c.hidden_size, init="embedding")
        self._layers = [layer(i) for i in range(c.layers)]
        self._norm = norm("model.norm", init="signs")
        self._head = self._embeddings if c.tie_embeddings else get("lm_head.weight", c.vocab_size, c.hidden_size)

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        return self.config.vocab_size

    def streamed_bytes(self) -> int:
        """Return the bytes of weights that a decode step reads: all but an embedding table that is not the head too."""
        return weight_bytes([self._layers, self._norm, self._head])

    def kv_spec(self) -> list[KVSpec]:
        """Return the one pool "kv"."""
        c = self.config
        return [self.pool("kv", c.layers, c.kv_heads, c.head_dim)]

    def recurrent_spec(self) -> None:
        """Return None: no recurrent state."""
        return

    def bind(self, kv: dict[str, Tensor], recurrent: RecurrentPool | None = None) -> None:
        """Use these pools from now on. Raises LayoutError: a pool is missing or has another shape."""
        check_pools(self.kv_spec(), kv)
        self._pool = kv["kv"]

    @torch.no_grad()
    def forward(self, inputs: StepInputs) -> Tensor:
        """Run a step; see :meth:`mstar_resident.models.base.Decoder.forward`. Raises RuntimeError: not bound."""
        if self._pool is None:
            raise RuntimeError("forward before bind: the decoder has no KV pool")
        inputs = on_host(inputs)
        eps = self.config.rms_eps
        angles = self.kernels.pointwise.angles(self._rope, inputs.positions)
        if inputs.query_start is None:
            self.kernels.attention.begin(self._pool[0], self.config.heads, inputs.kv["kv"])
        products, h = self.kernels.products, None
        x = self.kernels.pointwise.embed(inputs.tokens, self._embeddings)
        for pool, w in zip(self._pool, self._layers, strict=True):
            x, packed = products.normed(x, h, w.attention_norm, eps, w.qkv, w.qkv_bias)
            h = self._whole(self._attend(packed, w, pool, inputs, angles))
            x, inner = products.normed_swiglu(x, h, w.mlp_norm, eps, w.gate_up)
            h = self._whole(products.plain(inner, w.down))
        x, last = last_tokens(x, inputs.query_start), None if h is None else last_tokens(h, inputs.query_start)
        return self._all_logits(products.normed(x, last, self._norm, eps, self._head)[1])

    def _attend(
        self, packed: Tensor, w: LlamaLayer, pool: Tensor, inputs: StepInputs, angles: tuple[Tensor, Tensor]
    ) -> Tensor:
        c, paged = self.config, inputs.kv["kv"]
        heads = packed.view(packed.shape[0], -1, c.head_dim)
        q = self.kernels.pointwise.rotate_and_write(
            heads, c.heads, w.head_norms, c.rms_eps, angles, pool, paged, self.kernels.attention
        )
        seen = attend(self.kernels.attention, pool, q, paged, inputs.query_start)
        return self.kernels.products.plain(seen.flatten(1), w.out)


def attend(attention: Attention, pool: Tensor, q: Tensor, paged: PagedKV, query_start: Tensor | None) -> Tensor:
    """Attend with a step's queries, in the step's own way; its keys and values are written."""
    if query_start is None:
        return attention.decode(pool, q, paged)
    return attention.prefill(pool, q, paged, query_start)
