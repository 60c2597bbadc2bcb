"""Which rows run next: continuous batching, chunked prefill, a decode order."""

from __future__ import annotations

from collections import deque

import numpy as np

from mstar_resident.engine.config import EngineConfig
from mstar_resident.engine.plan import StepPlan
from mstar_resident.engine.request import Request, State
from mstar_resident.engine.seats import Seats


class Scheduler:
    """Keep waiting and live requests, in order of arrival, and choose the rows of a step.

    Every decode-ready request decodes, as far as ``max_batch`` allows; what is left of the token budget goes to
    prefill chunks, oldest first.
    """

    def __init__(self, config: EngineConfig, seats: Seats) -> None:
        self._config = config
        self._seats = seats
        self._plan: StepPlan | None = None
        self.waiting: deque[Request] = deque()
        self.live: list[Request] = []

    def changed(self) -> None:
        """Forget the cached rows: a request came, went, or changed its state."""
        self._plan = None

    def next(self) -> StepPlan | None:
        """Return the rows of the next step, judged by what is launched so far; None if nothing can run.

        In the steady state it returns the same object as before.
        """
        plan, seats = self._plan, self._seats
        if plan is not None and not (seats.launched[plan.seats] >= seats.granted[plan.seats]).any():
            return plan
        ready = [r for r in self.live if r.state is State.DECODE and seats.launched[r.seat] < seats.granted[r.seat]]
        capped = len(ready) > self._config.max_batch
        if capped and self._config.order == "turns":
            ready.sort(key=lambda request: int(seats.ran[request.seat]))  # stable: arrival breaks ties
        rows = ready[: self._config.max_batch]
        chunks = self._chunks(len(rows))
        plan = self._build(rows, chunks)
        turns = capped and self._config.order == "turns"
        self._plan = plan if not chunks and not turns else None
        return plan

    def fewer(self, plan: StepPlan) -> StepPlan | None:
        """Return the plan without its last prefill chunk, or None if it has none that it could do without."""
        if plan.decode_rows == len(plan.requests) or len(plan.requests) == 1:
            return None
        self._plan = None
        rows = plan.requests[: plan.decode_rows]
        chunks = zip(plan.requests[plan.decode_rows : -1], plan.tokens[plan.decode_rows : -1].tolist(), strict=True)
        return self._build(list(rows), list(chunks))

    def victim(self, plan: StepPlan) -> Request | None:
        """Return the request that must give its pages up so that ``plan`` can run.

        The one outside the plan that ran least recently, else the youngest. The oldest that is on the device keeps
        its pages, so that it makes progress.
        """
        active = [request for request in self.live if request.state in (State.PREFILL, State.DECODE)]
        holding = [request for request in active[1:] if self._seats.stored[request.seat]]
        cold = [request for request in holding if request not in plan.requests]
        if cold:
            return min(cold, key=lambda request: int(self._seats.ran[request.seat]))
        return holding[-1] if holding else None

    def _chunks(self, decode_rows: int) -> list[tuple[Request, int]]:
        # Decode rows never starve prefill: a step has room for one least chunk.
        left = max(self._config.token_budget - decode_rows, self._config.min_chunk)
        chunks = []
        for request in self.live:
            if request.state is not State.PREFILL:
                continue
            missing = len(request.filled) - int(self._seats.stored[request.seat])
            chunk = min(missing, left)
            if chunk < missing and chunk < self._config.min_chunk:
                break
            chunks.append((request, chunk))
            left -= chunk
            if left <= 0:
                break
        return chunks

    def _build(self, rows: list[Request], chunks: list[tuple[Request, int]]) -> StepPlan | None:
        requests = (*rows, *(request for request, _ in chunks))
        if not requests:
            return None
        seats = np.array([request.seat for request in requests], dtype=np.int64)
        tokens = np.array([1] * len(rows) + [chunk for _, chunk in chunks], dtype=np.int64)
        filled = np.array([0] * len(rows) + [len(request.filled) for request, _ in chunks], dtype=np.int64)
        samples = (self._seats.stored[seats] + tokens >= filled).astype(np.int64)
        return StepPlan(requests, seats, tokens, self._seats.epoch[seats], samples, len(rows))
