"""What the engine and a decoder agree on: the pools a model asks for, how it gets them, and one forward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from mstar_resident.errors import LayoutError, ResidentError

if TYPE_CHECKING:
    from mstar_resident.engine.inputs import StepInputs


class CheckpointError(ResidentError, ValueError):
    """A config or a checkpoint that the decoders cannot load as it is."""


@dataclass(frozen=True, slots=True)
class KVSpec:
    """Describe one KV pool of a model; ``span`` 0 is a pool that decode only reads.

    ``host_plan``: attention over the pool reads pages through a host plan, not off the tables. ``backend``: names what
    a decode of so many rows attends with, if the model knows.
    """

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    span: int = 1
    host_plan: bool = False
    backend: Callable[[int], str] | None = None

    def shape(self, pool_pages: int, page_size: int) -> tuple[int, ...]:
        """Return the pool tensor's shape: ``[layers, pool_pages + 1, 2, page_size, kv_heads, head_dim]``."""
        return (self.layers, pool_pages + 1, 2, page_size, self.kv_heads, self.head_dim)

    def allocate(self, pool_pages: int, page_size: int, *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """Return a zeroed pool; page 0 is the sink."""
        return torch.zeros(self.shape(pool_pages, page_size), dtype=dtype, device=device)


@dataclass(frozen=True, slots=True)
class RecurrentSpec:
    """Describe a model's recurrent state: per layer the last inputs of a convolution and a matrix per value head."""

    layers: int
    conv_dim: int
    conv_tail: int
    value_heads: int
    value_dim: int
    key_dim: int

    def allocate(
        self, states: int, *, dtype: torch.dtype, device: torch.device | str, ssm_dtype: torch.dtype = torch.float32
    ) -> RecurrentPool:
        """Return a zeroed pool for recurrent indices 1..states; index 0 is the sink."""
        conv = torch.zeros(self.layers, states + 1, self.conv_dim, self.conv_tail, dtype=dtype, device=device)
        matrices = (self.layers, states + 1, self.value_heads, self.value_dim, self.key_dim)
        return RecurrentPool(conv, torch.zeros(matrices, dtype=ssm_dtype, device=device))


@dataclass(frozen=True, slots=True)
class RecurrentPool:
    """Hold the recurrent states of all requests, by recurrent index; index 0 is the sink."""

    conv: Tensor
    """[layers, states + 1, conv_dim, conv_tail], model dtype, contiguous; the oldest input first."""
    ssm: Tensor
    """[layers, states + 1, value_heads, value_dim, key_dim], fp32|bf16, contiguous."""

    def clear(self, recurrent_index: Tensor, fresh: Tensor) -> None:
        """Zero the states of the rows that are ``fresh bool[b]``, and the sink; no value reaches the host."""
        index = torch.where(fresh, recurrent_index, 0).long()
        self.conv.index_fill_(1, index, 0)
        self.ssm.index_fill_(1, index, 0)


class Decoder(Protocol):
    """Run one step of a decoder over paged pools."""

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""

    @property
    def dtype(self) -> torch.dtype:
        """Element type of weights, KV pools and logits."""

    def kv_spec(self) -> list[KVSpec]:
        """Return the KV pools that the model reads, in the order of its tables."""

    def recurrent_spec(self) -> RecurrentSpec | None:
        """Return the recurrent state that the model keeps, if any."""

    def bind(self, kv: dict[str, Tensor], recurrent: RecurrentPool | None = None) -> None:
        """Use these pools from now on; they are the caller's, at fixed addresses while graphs name them."""

    def forward(self, inputs: StepInputs) -> Tensor:
        """Run a step and return the logits of each row's last token, ``[b, vocab_size]``, model dtype.

        With ``query_start`` None it is a decode step: nothing waits for the device and no shape depends on a value,
        so that it can be captured. Otherwise ``query_start`` and the pools' ``rows`` and ``lengths`` are read on the
        host, once.
        """


def check_pools(spec: list[KVSpec], kv: dict[str, Tensor]) -> None:
    """Raise LayoutError unless ``kv`` holds exactly the pools of ``spec`` in their shapes."""
    if set(kv) != {s.name for s in spec}:
        raise LayoutError.of("kv", expected=sorted(s.name for s in spec), got=sorted(kv))
    for s in spec:
        got = tuple(kv[s.name].shape)
        expected = s.shape(got[1] - 1, got[3]) if len(got) == 6 else "6 dimensions"
        if got != expected or not kv[s.name].is_contiguous():
            raise LayoutError.of("kv", expected=f"{expected}, contiguous", got=got, pool=s.name)


def check_recurrent(spec: RecurrentSpec, pool: RecurrentPool | None) -> RecurrentPool:
    """Return ``pool`` if it has the shapes of ``spec``; raise LayoutError if it is missing or has others."""
    if pool is None:
        raise LayoutError.of("recurrent", expected="a pool", got=None)
    states = pool.conv.shape[1] - 1
    like = spec.allocate(states, dtype=pool.conv.dtype, device="meta")
    if pool.conv.shape != like.conv.shape or pool.ssm.shape != like.ssm.shape:
        expected, got = (like.conv.shape, like.ssm.shape), (pool.conv.shape, pool.ssm.shape)
        raise LayoutError.of("recurrent", expected=expected, got=got)
    return pool


def weight_bytes(weights: object) -> int:
    """Return the bytes of all tensors in dataclasses, lists and tuples of them."""
    if isinstance(weights, Tensor):
        return weights.numel() * weights.element_size()
    if isinstance(weights, list | tuple):
        return sum(map(weight_bytes, weights))
    if is_dataclass(weights):
        return sum(weight_bytes(getattr(weights, field.name)) for field in fields(weights))
    return 0


def on_host(inputs: StepInputs) -> StepInputs:
    """Return the step with what prefill reads by value on the host: one wait a step, none where it is there already."""
    if inputs.query_start is None:
        return inputs
    kv = {name: replace(p, rows=p.rows.cpu(), lengths=p.lengths.cpu()) for name, p in inputs.kv.items()}
    return replace(inputs, query_start=inputs.query_start.cpu(), kv=kv)
