"""Whisper's text decoder: an appending pool for its own tokens, and a read-only one for what it listens to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from mstar_resident.attention.torch_paged import write
from mstar_resident.errors import LayoutError
from mstar_resident.models.base import KVSpec, RecurrentPool, check_pools, on_host
from mstar_resident.models.checkpoint import Init, SeededWeights, WeightSource
from mstar_resident.models.config import WhisperConfig
from mstar_resident.models.layers import last_tokens
from mstar_resident.models.llama import attend
from mstar_resident.models.loaded import Loaded, Options

if TYPE_CHECKING:
    from mstar_resident.engine.inputs import PagedKV, StepInputs

#: Frames of the codebook that stands in for an encoder where the weights are seeded.
SEEDED_CODES = 1024


@dataclass(frozen=True, slots=True)
class Norm:
    """Hold a layer norm, fp32."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return fp32 ``x [t, d]`` with zero mean and unit variance, scaled and shifted, in ``dtype``."""
        return F.layer_norm(x, (x.shape[-1],), self.weight, self.bias).to(dtype)


@dataclass(frozen=True, slots=True)
class Linear:
    """Hold a projection with its bias, model dtype."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Return ``x [t, in]`` projected to ``[t, out]``."""
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class WhisperLayer:
    """Hold one layer; ``qkv`` and ``context_kv`` are packed in that order, their key biases zero."""

    self_norm: Norm
    qkv: Linear
    out: Linear
    context_norm: Norm
    context_q: Linear
    context_kv: Linear
    context_out: Linear
    mlp_norm: Norm
    up: Linear
    down: Linear


class Whisper(Loaded[WhisperConfig]):
    """Be a :class:`~mstar_resident.models.base.Decoder` with the pools "self" (appending) and "context" (read-only)."""

    config_type = WhisperConfig

    def __init__(
        self,
        config: WhisperConfig,
        weights: WeightSource,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(config, weights, **options)
        device, dtype = self.device, self.dtype
        self._pools: tuple[Tensor, Tensor] | None = None
        self._codes: Tensor | None = None
        hidden = config.hidden_size

        def get(name: str, *shape: int, init: Init = "matrix", to: torch.dtype = dtype) -> Tensor:
            return weights.get(f"model.decoder.{name}", shape, init).to(device=device, dtype=to)

        self._embeddings = get("embed_tokens.weight", config.vocab_size, hidden, init="embedding")
        self._positions = get("embed_positions.weight", config.max_positions, hidden, init="embedding")
        self._layers = [_load_layer(config, f"layers.{i}", get) for i in range(config.layers)]
        self._norm = _load_norm("layer_norm", hidden, get, init="signs")

    @classmethod
    def seeded(cls, config: WhisperConfig, seed: int = 0, **options: Unpack[Options]) -> Self:
        """Return the decoder with random weights drawn on the device, and a codebook in place of an encoder."""
        weights = SeededWeights(seed, options.get("device", "cpu"))
        model = cls(config, weights, **options)
        codes = weights.get("codes", (SEEDED_CODES, config.hidden_size), "ones")
        model._codes = codes.sub(1.0).mul(10.0).to(model.dtype)
        return model

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        return self.config.vocab_size

    def kv_spec(self) -> list[KVSpec]:
        """Return the pools "self" and "context"."""
        c = self.config
        return [self.pool(name, c.layers, c.heads, c.hidden_size // c.heads, span) for name, span in POOLS.items()]

    def recurrent_spec(self) -> None:
        """Return None: no recurrent state."""
        return

    def bind(self, kv: dict[str, Tensor], recurrent: RecurrentPool | None = None) -> None:
        """Use these pools from now on. Raises LayoutError: a pool is missing or has another shape."""
        check_pools(self.kv_spec(), kv)
        self._pools = kv["self"], kv["context"]

    @torch.no_grad()
    def encode(self, context: Tensor, kv: dict[str, PagedKV]) -> None:
        """Write a request's context to the pool "context", at its ``write_loc``, for every layer.

        ``context`` is what an encoder gave, ``[t, hidden_size]``, or codes ``int64[t]`` of a seeded decoder's codebook.

        Raises RuntimeError: not bound. Raises LayoutError: another shape, codes without a codebook, no ``write_loc``.
        """
        if self._pools is None:
            raise RuntimeError("encode before bind: the decoder has no KV pools")
        if not context.is_floating_point() and self._codes is not None:
            context = F.embedding(context % SEEDED_CODES, self._codes)
        write_loc = kv["context"].write_loc
        if not context.is_floating_point() or context.dim() != 2 or context.shape[1] != self.config.hidden_size:
            expected = f"float[t, {self.config.hidden_size}]"
            raise LayoutError.of("context", expected=expected, got=(context.dtype, tuple(context.shape)))
        if write_loc is None or write_loc.shape[0] != context.shape[0]:
            got = None if write_loc is None else tuple(write_loc.shape)
            raise LayoutError.of("write_loc", expected=f"int64[{context.shape[0]}]", got=got, pool="context")
        for pool, w in zip(self._pools[1], self._layers, strict=True):
            k, v = self._heads(w.context_kv(context.to(self.dtype))).chunk(2, dim=1)
            write(pool, k, v, write_loc)

    @torch.no_grad()
    def forward(self, inputs: StepInputs) -> Tensor:
        """Run a step; see :meth:`mstar_resident.models.base.Decoder.forward`. Raises RuntimeError: not bound."""
        if self._pools is None:
            raise RuntimeError("forward before bind: the decoder has no KV pools")
        inputs = on_host(inputs)
        own, context, dtype = inputs.kv["self"], inputs.kv["context"], self.dtype
        if inputs.query_start is None:
            for pool, paged in zip(self._pools, (own, context), strict=True):
                self.kernels.attention.begin(pool[0], self.config.heads, paged)
        x = F.embedding(inputs.tokens, self._embeddings).float()
        x = x + F.embedding(inputs.positions, self._positions)
        for own_pool, context_pool, w in zip(*self._pools, self._layers, strict=True):
            q, k, v = self._heads(w.qkv(w.self_norm(x, dtype))).chunk(3, dim=1)
            self.kernels.attention.write(own_pool, k, v, own)
            x = x + w.out(attend(self.kernels.attention, own_pool, q, own, inputs.query_start).flatten(1))
            q = self._heads(w.context_q(w.context_norm(x, dtype)))
            x = x + w.context_out(self._listen(context_pool, q, context, inputs.query_start).flatten(1))
            x = x + w.down(F.gelu(w.up(w.mlp_norm(x, dtype))))
        return F.linear(self._norm(last_tokens(x, inputs.query_start), dtype), self._embeddings)

    def _listen(self, pool: Tensor, q: Tensor, paged: PagedKV, query_start: Tensor | None) -> Tensor:
        if query_start is None:
            return self.kernels.attention.decode(pool, q, paged)
        return self.kernels.attention.prefill(pool, q, paged, query_start)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], -1, self.config.hidden_size // self.config.heads)


#: The decoder's pools and their spans.
POOLS = {"self": 1, "context": 0}


def _load_layer(c: WhisperConfig, at: str, get: Callable[..., Tensor]) -> WhisperLayer:
    d = c.hidden_size

    def packed(attention: str, names: str) -> Linear:
        weights = [get(f"{at}.{attention}.{n}_proj.weight", d, d) for n in names]
        biases = [
            torch.zeros_like(weights[0][:, 0]) if n == "k" else get(f"{at}.{attention}.{n}_proj.bias", d, init="small")
            for n in names
        ]
        return Linear(torch.cat(weights), torch.cat(biases))

    def linear(name: str, rows: int, columns: int, init: Init = "matrix") -> Linear:
        return Linear(
            get(f"{at}.{name}.weight", rows, columns, init=init), get(f"{at}.{name}.bias", rows, init="embedding")
        )

    return WhisperLayer(
        self_norm=_load_norm(f"{at}.self_attn_layer_norm", d, get),
        qkv=packed("self_attn", "qkv"),
        out=linear("self_attn.out_proj", d, d, "residual"),
        context_norm=_load_norm(f"{at}.encoder_attn_layer_norm", d, get),
        context_q=packed("encoder_attn", "q"),
        context_kv=packed("encoder_attn", "kv"),
        context_out=linear("encoder_attn.out_proj", d, d, "residual"),
        mlp_norm=_load_norm(f"{at}.final_layer_norm", d, get),
        up=linear("fc1", c.intermediate_size, d),
        down=linear("fc2", d, c.intermediate_size, "residual"),
    )


def _load_norm(name: str, size: int, get: Callable[..., Tensor], init: Init = "ones") -> Norm:
    return Norm(
        get(f"{name}.weight", size, init=init, to=torch.float32),
        get(f"{name}.bias", size, init="small", to=torch.float32),
    )
