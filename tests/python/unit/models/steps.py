"""Step inputs over shuffled pages, rows and recurrent indices, as an engine would make them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mstar_resident.engine.inputs import PagedKV, StepInputs
from mstar_resident.models.base import Decoder


class Steps:
    """Run prefills and decodes of named requests on a decoder that is bound to small pools."""

    def __init__(
        self,
        model: Decoder,
        *,
        page_size: int = 4,
        pages: int = 96,
        requests: int = 8,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.model, self.page_size, self.device = model, page_size, device
        draw = random.Random(7)
        self.specs = model.kv_spec()
        pools = {s.name: s.allocate(pages, page_size, dtype=dtype, device=device) for s in self.specs}
        recurrent = model.recurrent_spec()
        self.recurrent = None if recurrent is None else recurrent.allocate(requests, dtype=dtype, device=device)
        if self.recurrent is not None:  # whatever a request before left there
            self.recurrent.conv.fill_(3.0)
            self.recurrent.ssm.fill_(-2.0)
        model.bind(pools, self.recurrent)
        self.pools = pools
        self.tables = {s.name: torch.zeros(requests + 1, pages, dtype=torch.int32) for s in self.specs}
        self.free = {s.name: draw.sample(range(1, pages + 1), pages) for s in self.specs}
        self.rows = draw.sample(range(1, requests + 1), requests)
        self.states = draw.sample(range(1, requests + 1), requests)
        self.known: dict[str, tuple[int, int]] = {}
        self.lengths: dict[tuple[str, str], int] = {}

    def grow(self, request: str, pool: str, tokens: int) -> list[int]:
        """Append ``tokens`` to the request's stream of ``pool`` and return their write locations."""
        row = self.known[request][0]
        before = self.lengths.get((request, pool), 0)
        self.lengths[request, pool] = after = before + tokens
        table = self.tables[pool][row]
        for column in range(-(-before // self.page_size), -(-after // self.page_size)):
            table[column] = self.free[pool].pop()
        return [int(table[n // self.page_size]) * self.page_size + n % self.page_size for n in range(before, after)]

    def inputs(self, tokens: Mapping[str, Sequence[int]], *, decode: bool) -> StepInputs:
        """Return the step's inputs and advance the streams."""
        fresh, positions, starts = [], [], [0]
        for request, ids in tokens.items():
            fresh.append(request not in self.known)
            if request not in self.known:
                self.known[request] = (self.rows[len(self.known)], self.states[len(self.known)])
            past = self.lengths.get((request, self.specs[0].name), 0)
            positions += range(past, past + len(ids))
            starts.append(starts[-1] + len(ids))
        kv: dict[str, PagedKV] = {}
        for spec in self.specs:
            loc = [at for r, ids in tokens.items() for at in self.grow(r, spec.name, len(ids) if spec.span else 0)]
            kv[spec.name] = PagedKV(
                table=self.tables[spec.name].to(self.device),
                rows=self._on(torch.int64, [self.known[r][0] for r in tokens]),
                lengths=self._on(torch.int32, [self.lengths[r, spec.name] for r in tokens]),
                write_loc=self._on(torch.int64, loc) if spec.span else None,
                page_size=self.page_size,
            )
        stateful = self.recurrent is not None
        return StepInputs(
            tokens=self._on(torch.int64, [t for ids in tokens.values() for t in ids]),
            positions=self._on(torch.int64, positions),
            query_start=None if decode else self._on(torch.int32, starts),
            kv=kv,
            recurrent_index=self._on(torch.int32, [self.known[r][1] for r in tokens]) if stateful else None,
            fresh=self._on(torch.bool, fresh) if stateful and not decode else None,
        )

    def prefill(self, tokens: Mapping[str, Sequence[int]]) -> Tensor:
        """Run one host-planned step with any number of tokens a row."""
        return self.model.forward(self.inputs(tokens, decode=False))

    def decode(self, tokens: Mapping[str, int]) -> Tensor:
        """Run one decode step."""
        return self.model.forward(self.inputs({r: [t] for r, t in tokens.items()}, decode=True))

    def _on(self, dtype: torch.dtype, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)


def relative_error(got: Tensor, expected: Tensor) -> float:
    """Return the largest difference over the largest magnitude."""
    return float((got.float() - expected.float()).abs().max() / expected.float().abs().max())
