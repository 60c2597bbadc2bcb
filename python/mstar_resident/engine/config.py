"""What an engine is built with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch

from mstar_resident.attention.decode_plan import PlanMode
from mstar_resident.errors import LayoutError
from mstar_resident.layout import check_count

Planning = Literal["auto", "resident", "host", "off"]
Order = Literal["arrival", "turns"]
Owner = Literal["engine", "planner"]

#: Captured batch sizes, as far as they fit ``max_batch``.
BUCKETS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """Size one KV pool; ``max_seq_len`` bounds a stream and with it the width of its table.

    Raises:
        LayoutError: a size is not positive.
    """

    page_size: int = 16
    pool_pages: int = 256
    max_seq_len: int = 2048

    def __post_init__(self) -> None:
        for name in ("page_size", "pool_pages", "max_seq_len"):
            check_count(getattr(self, name), name)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Size an engine and choose its arm.

    ``planning``: ``resident`` keeps decode rows on the device, ``auto`` does so unless the environment's knob is off;
    ``host`` rebuilds every step's inputs on the host; ``off`` is what the knob gives: no planner, the same code as
    ``host``. ``order``: ``arrival`` decodes the oldest requests to completion, ``turns`` those that ran least recently.
    ``pages_owner``: who keeps the page lists.

    Raises:
        LayoutError: a size is not positive, or a choice is unknown.
    """

    max_batch: int = 8
    """B, rows of the widest captured bucket; a decode step has at most as many."""
    max_requests: int = 64
    """Requests admitted at once: the engine's seats."""
    pools: Mapping[str, PoolConfig] = field(default_factory=dict)
    """Per KV pool of the model; a pool that is not named gets the defaults."""
    recurrent_states: int = 64
    token_budget: int = 200
    """Tokens of one step, decode rows included."""
    min_chunk: int = 64
    """The least tokens of a prefill chunk that is not a prompt's last."""
    planning: Planning = "auto"
    order: Order = "arrival"
    pages_owner: Owner = "engine"
    lookahead: bool = True
    """Stage the step after a launched one, and launch it before that one's tokens are read."""
    prefix_cache: bool = False
    attention_plan: PlanMode = "on"
    """Whether plans of attention that needs one are kept between steps: ``off``, ``on``, or ``verify`` each."""
    check: bool = False
    """Check every resident step's rows against the engine's streams; waits for the device."""
    shadow: bool = False
    """Record what every resident step used, and compare it later; waits for nothing on the step path."""
    ranges: bool = False
    """Mark the phases of the host's steps as NVTX ranges."""
    debug: bool = False
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    state_dtype: torch.dtype = torch.float32
    least_resident: float = 0.95
    """Share of pure decode steps that must be resident, else the run raises."""

    def __post_init__(self) -> None:
        for name in ("max_batch", "max_requests", "recurrent_states", "token_budget", "min_chunk"):
            check_count(getattr(self, name), name)
        for name, value, known in (
            ("planning", self.planning, get_args(Planning)),
            ("order", self.order, get_args(Order)),
            ("pages_owner", self.pages_owner, get_args(Owner)),
            ("attention_plan", self.attention_plan, get_args(PlanMode)),
        ):
            if value not in known:
                raise LayoutError.of(name, expected=f"one of {list(known)}", got=value)
        if self.pages_owner == "planner" and self.planning in ("host", "off"):
            raise LayoutError.of("pages_owner", expected="engine, without a planner", got=self.pages_owner)

    def pool(self, name: str) -> PoolConfig:
        """Return the sizes of a pool."""
        return self.pools.get(name) or PoolConfig()

    def buckets(self) -> tuple[int, ...]:
        """Return the captured batch sizes, ascending; the widest is ``max_batch``."""
        return tuple(bucket for bucket in BUCKETS if bucket < self.max_batch) + (self.max_batch,)
