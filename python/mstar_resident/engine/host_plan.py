"""Build a step's inputs on the host: every decode step of the host-planned arm, every prefill and mixed step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mstar_resident.engine.inputs import PagedKV, StepInputs
from mstar_resident.engine.pages import Ints
from mstar_resident.engine.plan import StepPlan
from mstar_resident.engine.seats import Seats
from mstar_resident.engine.streams import Streams
from mstar_resident.engine.view import DecodeView


def fill(view: DecodeView, plan: StepPlan, seats: Seats, streams: Mapping[str, Streams]) -> None:
    """Fill a host view for all its rows, padding included: it attends the sink page and writes to it.

    Every number is written anew in every step; tables are read by seat, so that only what changed in them is sent.
    """
    rows, packed = plan.seats, view.packed
    if packed is None:
        raise ValueError("a host-planned step needs a view that the host fills")
    for name, entry in streams.items():
        length = entry.length[rows]
        packed.put(f"lengths {name}", length + entry.span, 1)
        if entry.span:
            packed.put(f"write_loc {name}", entry.locate(rows, length), 0)
        entry.send()
    if streams:
        packed.put("positions", seats.stored[rows] + seats.offset[rows], 0)
    if view.inputs.recurrent_index is not None:
        packed.put("recurrent", seats.recurrent[rows], 0)
    packed.put("seats", rows, 0)
    packed.send()


@dataclass(frozen=True, slots=True)
class Ragged:
    """Hold the inputs of a prefill or mixed step."""

    inputs: StepInputs
    """``tokens`` hold prompt tokens; those of decode rows are the sampler's last tokens."""
    feeds: Tensor
    """int64[t]: the seat whose last token is fed, 0 where the token is a prompt's."""
    seats: Tensor
    """int64[n]: the seat that every row samples for, 0 where its token is no output."""


def ragged(
    plan: StepPlan, seats: Seats, streams: Mapping[str, Streams], recurrent: bool, device: torch.device
) -> Ragged:
    """Build a step whose rows feed ranges of tokens. What prefill reads by value stays on the host."""
    rows, counts = plan.seats, plan.tokens
    start = np.concatenate([[0], np.cumsum(counts)])
    row = np.repeat(np.arange(len(rows)), counts)
    stored = seats.stored[rows]
    index = stored[row] + np.arange(start[-1]) - start[row]
    token_seats = rows[row]
    tokens, feeds = np.zeros(len(row), np.int64), np.zeros(len(row), np.int64)
    feeds[: plan.decode_rows] = rows[: plan.decode_rows]
    positions = index + seats.offset[token_seats]
    for i in range(plan.decode_rows, len(rows)):
        request, first, here = plan.requests[i], int(stored[i]), slice(start[i], start[i + 1])
        tokens[here] = request.filled[first : first + int(counts[i])]
        positions[here] = request.positions_of(first, int(counts[i]))
    if not streams:
        positions[:] = 0

    def there(array: Ints) -> Tensor:
        return torch.from_numpy(array).to(device)

    kv = {
        name: PagedKV(
            table=torch.from_numpy(entry.table[rows]).to(device),
            rows=torch.arange(len(rows)),
            lengths=torch.from_numpy((entry.length[rows] + entry.span * counts).astype(np.int32)),
            write_loc=there(entry.locate(token_seats, index)) if entry.span else None,
            page_size=entry.pool.page_size,
        )
        for name, entry in streams.items()
    }
    inputs = StepInputs(
        tokens=there(tokens),
        positions=there(positions),
        query_start=torch.from_numpy(start.astype(np.int32)),
        kv=kv,
        recurrent_index=torch.from_numpy(seats.recurrent[rows].astype(np.int32)).to(device) if recurrent else None,
        fresh=torch.from_numpy(stored == 0).to(device) if recurrent else None,
    )
    return Ragged(inputs, there(feeds), there(rows * plan.samples))
