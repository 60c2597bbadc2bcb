"""What the toy model must say: a dictionary's worth of state per request, no pages, no batches, no arrays."""

from __future__ import annotations

from collections.abc import Sequence

from mstar_resident.engine.request import Request
from mstar_resident.engine.toy import BY_INDEX, BY_POOL, BY_POSITION, BY_TOKEN, recur, temperature_bits, wrap


class Oracle:
    """Predict the outputs of toy requests, each alone, in Python integers.

    Args:
        append: number of appending pools of the model.
        read_only: number of read-only ones.
        recurrent: whether it has a state.
        vocab: its tokens.
    """

    def __init__(self, append: int, read_only: int, recurrent: bool, vocab: int) -> None:
        self._append = append
        self._read_only = read_only
        self._recurrent = recurrent
        self._vocab = vocab

    def outputs(self, request: Request, prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> list[int]:
        """Return what a request must have put out.

        ``prompts`` are the tokens that each of its turns added, ``counts`` how many outputs each turn has.
        """
        context = list(map(int, request.context)) if request.context is not None else []
        seen = sum(entry(token, index, index) for index, token in enumerate(context))
        positions = list(map(int, request.positions)) if request.positions is not None else []
        offset = request.offset
        own, state, index = 0, 0, 0
        said: list[int] = []
        feed: list[int] = []
        for prompt, count in zip(prompts, counts, strict=True):
            feed += list(map(int, prompt))
            for _ in range(count):
                position = 0
                for token in feed:
                    position = positions[index] if index < len(positions) else index + offset
                    own = wrap(own + entry(token, position, index))
                    index += 1
                if self._append == 0:
                    position = 0
                state = recur(state, feed) if self._recurrent else 0
                said.append(self._draw(request, own, seen, state, position))
                feed = [said[-1]]
        return said

    def _draw(self, request: Request, own: int, seen: int, state: int, position: int) -> int:
        hashed = 0
        for number, part in enumerate([own] * self._append + [seen] * self._read_only):
            hashed = wrap(hashed * BY_POOL + part + number)
        seed, temperature = request.sampling.seed, temperature_bits(request.sampling.temperature)
        value = mix_int(seed + mix_int(position + mix_int(temperature + 1)))
        return mix_int(value ^ mix_int(hashed + mix_int(state))) % self._vocab


def entry(token: int, position: int, index: int) -> int:
    """Hash one entry of a stream."""
    return mix_int(token * BY_TOKEN + position * BY_POSITION + index * BY_INDEX)


def mix_int(value: int) -> int:
    """Be :func:`mstar_resident.engine.sampler.mix` for one Python integer."""
    mask = 2**64 - 1
    value &= mask
    value = ((value ^ (value >> 30 & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47) & mask
    value = ((value ^ (value >> 27 & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15) & mask
    return wrap(value ^ (value >> 31 & 0x1FFFFFFFF))
