"""A decoder whose every token depends on exactly what its row names, and on nothing else."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mstar_resident.attention.torch_planned import unplan
from mstar_resident.engine.inputs import PagedKV, StepInputs
from mstar_resident.engine.pages import Ints
from mstar_resident.engine.request import Sampling
from mstar_resident.engine.sampler import mix
from mstar_resident.models.base import KVSpec, RecurrentPool, RecurrentSpec
from mstar_resident.models.shard import Shard

#: Multipliers of the attention hash: by token, by position, by index in the stream, by pool.
BY_TOKEN, BY_POSITION, BY_INDEX, BY_POOL = (
    0x165667B19E3779F9,
    0x27D4EB2F165667C5,
    0x1B873593CC9E2D51,
    0x2545F4914F6CDD1D,
)


@dataclass(frozen=True, slots=True)
class ToyRecord:
    """Note what one row of one step read: a pool's write location, length, and used columns; position, index."""

    pool: str
    write_loc: int
    length: int
    position: int
    used_columns: tuple[int, ...]
    recurrent_index: int


class ToyModel:
    """Be a decoder whose attention is a hash over what the tables name.

    The KV pool stores a token and its position as its key and value. Attention writes the step's tokens at their
    write locations, then hashes (token, position, index) over the first ``length`` entries that a row's table names:
    a stale page, a wrong length or a foreign write changes the hash. Decode steps of the pools in ``host_plan`` know
    pages and length from the step's plan alone. With a ``shard``, a rank hashes the entries whose index falls to it,
    and the hashes are summed over the ranks. The recurrence is s = 3 s + token. The "logits" are ``int64[b, 2]``: the
    hash and the state.
    """

    def __init__(
        self,
        append: tuple[str, ...] = ("kv",),
        read_only: tuple[str, ...] = (),
        recurrent: bool = False,
        vocab: int = 509,
        host_plan: tuple[str, ...] = (),
        shard: Shard | None = None,
    ) -> None:
        self._shard = shard
        spans = dict.fromkeys(append, 1) | dict.fromkeys(read_only, 0)
        self._spec = [KVSpec(name, 1, 1, 1, span, name in host_plan) for name, span in spans.items()]
        self._recurrent = recurrent
        self._vocab = vocab
        self._kv: dict[str, Tensor] = {}
        self._state: Tensor | None = None
        self.records: list[ToyRecord] = []
        """What the last forward's rows read, padding included, pool after pool; kept if ``recording``."""
        self.recording = False

    @property
    def dtype(self) -> torch.dtype:
        """Tokens are its keys and positions its values."""
        return torch.int64

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return self._vocab

    def kv_spec(self) -> list[KVSpec]:
        """Return the pools."""
        return self._spec

    def recurrent_spec(self) -> RecurrentSpec | None:
        """Return a state of one number."""
        return RecurrentSpec(1, 1, 1, 1, 1, 1) if self._recurrent else None

    def bind(self, kv: dict[str, Tensor], recurrent: RecurrentPool | None = None) -> None:
        """Use these pools, int64."""
        self._kv = kv
        self._state = recurrent.ssm.view(-1) if recurrent is not None else None

    def encode(self, context: Tensor, kv: dict[str, PagedKV]) -> None:
        """Write a context's tokens, at positions 0, 1, ..."""
        for name, paged in kv.items():
            self._write(name, paged, context, torch.arange(len(context), device=context.device))

    def forward(self, inputs: StepInputs) -> Tensor:
        """Return ``int64[b, 2]``: attention hash and recurrent state of each row's last token."""
        if self.recording:
            self.records = []
        hashed = torch.zeros(1, dtype=torch.int64, device=inputs.tokens.device)
        for number, spec in enumerate(self._spec):
            paged = inputs.kv[spec.name]
            if paged.write_loc is not None:
                self._write(spec.name, paged, inputs.tokens, inputs.positions)
            hashed = hashed * BY_POOL + self._attend(spec.name, paged, inputs.tokens.device) + number
            if self.recording:
                self._record(spec.name, paged, inputs)
        state = self._recur(inputs)
        rows = len(inputs.query_start) - 1 if inputs.query_start is not None else len(inputs.tokens)
        return torch.stack(
            [hashed.expand(rows), state if state is not None else torch.zeros_like(hashed).expand(rows)], 1
        )

    def _write(self, name: str, paged: PagedKV, tokens: Tensor, positions: Tensor) -> None:
        if paged.write_loc is None:
            return
        pool = self._kv[name].view(-1, 2, paged.page_size)
        page, place = paged.write_loc // paged.page_size, paged.write_loc % paged.page_size
        pool[page, 0, place] = tokens
        pool[page, 1, place] = positions

    def _attend(self, name: str, paged: PagedKV, device: torch.device) -> Tensor:
        if paged.planned is not None:
            columns = paged.table.shape[1]
            if device.type == "cpu":
                columns = int((paged.planned.indptr[1:] - paged.planned.indptr[:-1]).max())
            table, lengths = unplan(paged.planned, paged.page_size, columns)
            paged = replace(paged, table=table, lengths=lengths, rows=torch.arange(len(table), device=device))
        lengths = paged.lengths.to(device).long()
        columns = paged.table.shape[1]
        if device.type == "cpu":  # elsewhere a graph may record this, which no value may reach the host in
            columns = min(-(-int(lengths.max()) // paged.page_size), columns)
        pages = paged.table[:, :columns].index_select(0, paged.rows.to(device)).long()
        seen = self._kv[name].view(-1, 2, paged.page_size)[pages]  # [b, columns, 2, page_size]
        token, position = (seen[:, :, part].flatten(1) for part in (0, 1))
        index = torch.arange(token.shape[1], device=device)
        entry = mix(token * BY_TOKEN + position * BY_POSITION + index * BY_INDEX)
        mine = index < lengths[:, None]
        if self._shard is None:
            return torch.where(mine, entry, 0).sum(1)
        mine &= index % self._shard.size == self._shard.rank
        return self._shard.sum(torch.where(mine, entry, 0).sum(1))

    def _recur(self, inputs: StepInputs) -> Tensor | None:
        if self._state is None or inputs.recurrent_index is None:
            return None
        index = inputs.recurrent_index.long()
        state = self._state[index]
        if inputs.fresh is not None:
            state = torch.where(inputs.fresh, 0, state)
        if inputs.query_start is None:
            state = 3 * state + inputs.tokens
        else:
            starts: list[int] = inputs.query_start.tolist()
            state = torch.tensor(
                [
                    recur(int(s), inputs.tokens[first:last].tolist())
                    for s, first, last in zip(state.tolist(), starts, starts[1:], strict=False)
                ],
                device=state.device,
            )
        self._state[index] = state
        return state

    def _record(self, name: str, paged: PagedKV, inputs: StepInputs) -> None:
        ends = inputs.query_start[1:].tolist() if inputs.query_start is not None else range(1, len(inputs.tokens) + 1)
        for i, end in enumerate(ends):
            length = int(paged.lengths[i])
            used = paged.table[int(paged.rows[i]), : -(-length // paged.page_size)]
            self.records.append(
                ToyRecord(
                    name,
                    int(paged.write_loc[end - 1]) if paged.write_loc is not None else -1,
                    length,
                    int(inputs.positions[end - 1]),
                    tuple(used.tolist()),
                    int(inputs.recurrent_index[i]) if inputs.recurrent_index is not None else 0,
                )
            )


class ToySampler:
    """Draw a hash of (seed, position, temperature, attention hash, state); its parameters live by seat."""

    def __init__(self, vocab: int, seats: int, device: torch.device) -> None:
        self._vocab = vocab
        self._seed = torch.zeros(seats, dtype=torch.int64, device=device)
        self._temperature = torch.zeros(seats, dtype=torch.int64, device=device)

    def admit(self, seat: int, sampling: Sampling) -> None:
        """Set a seat's parameters."""
        self._seed[seat] = sampling.seed
        self._temperature[seat] = temperature_bits(sampling.temperature)

    def draw(self, logits: Tensor, seats: Tensor, positions: Tensor) -> Tensor:
        """Return ``int64[b]``."""
        value = mix(self._seed[seats] + mix(positions + mix(self._temperature[seats] + 1)))
        return mix(value ^ mix(logits[:, 0] + mix(logits[:, 1]))).remainder(self._vocab)


def recur(state: int, tokens: list[int]) -> int:
    """Return the state after tokens, as a wrapped int64."""
    for token in tokens:
        state = wrap(3 * state + token)
    return state


def wrap(value: int) -> int:
    """Return an integer as int64 arithmetic would leave it."""
    return (value + 2**63) % 2**64 - 2**63


def temperature_bits(temperature: float) -> int:
    """Return a temperature's bits, so that any change of it changes the hash."""
    (bits,) = struct.unpack("<q", struct.pack("<d", temperature))
    return int(bits)


def toy_tokens(seed: int, count: int, vocab: int) -> Ints:
    """Return tokens for a prompt, the same for the same seed."""
    return np.random.default_rng(seed).integers(0, vocab, count, dtype=np.int64)
