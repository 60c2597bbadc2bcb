"""Build what one engine's node holds: pools, streams, and its planner or the reason for none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mstar_resident.engine.config import EngineConfig
from mstar_resident.engine.pages import PagePool
from mstar_resident.engine.seats import Seats
from mstar_resident.engine.streams import Streams
from mstar_resident.engine.view import POSITION, RECURRENT, SEAT
from mstar_resident.layout import Column, KVTable
from mstar_resident.models.base import Decoder, RecurrentPool
from mstar_resident.planner import ResidentPlanner
from mstar_resident.refusal import Refusal
from mstar_resident.resources.attention import Attention, host_plan_free
from mstar_resident.resources.base import ResidentResource, WalkDeclaration
from mstar_resident.resources.kv import KVPool
from mstar_resident.resources.positions import Positions
from mstar_resident.resources.recurrent import RecurrentPool as RecurrentResource

#: The walk that opts in.
DECODE = "decode"


@dataclass(frozen=True, slots=True)
class SeatColumn:
    """Be the sampler's resource: one column, the seat that its device state is kept by."""

    name: str = "sampler"

    def refusal(self) -> str | None:
        """Return None: a seat never moves."""
        return None

    def tables(self) -> Sequence[KVTable]:
        """Return nothing."""
        return ()

    def columns(self) -> Sequence[Column]:
        """Return the seat column."""
        return (Column(SEAT, "scalar"),)

    def capture_refusal(self, declarations: Mapping[str, WalkDeclaration]) -> str | None:
        """Return None."""
        return None


@dataclass(frozen=True, slots=True)
class Node:
    """Hold the pools of a model and their host truth.

    ``kv``: per pool ``[layers, pool_pages + 1, 2, page_size, kv_heads, head_dim]``, owned here, bound to the model.
    """

    seats: Seats
    streams: dict[str, Streams]
    kv: dict[str, Tensor]
    recurrent: RecurrentPool | None
    resources: tuple[ResidentResource, ...]

    @classmethod
    def build(cls, model: Decoder, config: EngineConfig, others: Sequence[ResidentResource] = ()) -> Node:
        """Allocate a model's pools and bind them; ``others`` are resources that the engine does not know."""
        device = torch.device(config.device)
        seats = Seats(config.max_requests)
        streams: dict[str, Streams] = {}
        kv: dict[str, Tensor] = {}
        resources: list[ResidentResource] = []
        for spec in model.kv_spec():
            size = config.pool(spec.name)
            mode = "append" if spec.span else "read-only"
            resource = KVPool(spec.name, size.page_size, size.pool_pages, size.max_seq_len, mode)  # type: ignore[arg-type]
            (table,) = resource.tables()
            pool = PagePool(spec.name, size.page_size, size.pool_pages)
            streams[spec.name] = Streams(pool, seats.count, table.pages, spec.span, spec.host_plan)
            kv[spec.name] = spec.allocate(size.pool_pages, size.page_size, dtype=config.dtype, device=device)
            resources.append(resource)
        appending = [name for name, entry in streams.items() if entry.span]
        if appending:
            resources.append(Positions("positions", appending[0], column=POSITION))
        states = model.recurrent_spec()
        recurrent = None
        if states is not None:
            count = config.recurrent_states
            recurrent = states.allocate(count, dtype=config.dtype, device=device, ssm_dtype=config.state_dtype)
            resources.append(RecurrentResource("recurrent", column=RECURRENT))
        resources += [Attention(f"attention over {s.name}", s.name, host_plan=s.host_plan) for s in model.kv_spec()]
        resources.append(SeatColumn())
        model.bind(kv, recurrent)
        return cls(seats, streams, kv, recurrent, (*resources, *others))

    @property
    def host_plan_free(self) -> bool:
        """Whether no bucket's attention needs a host plan."""
        return host_plan_free(self.resources)

    def declarations(self) -> list[WalkDeclaration]:
        """Return what a decode step does with every resource: one label; span 0 on a pool that it only reads."""
        spans = {name: (entry.span,) for name, entry in self.streams.items()}
        return [
            WalkDeclaration(DECODE, resource.name, spans=spans.get(resource.name, (1,)))
            for resource in self.resources
            if not isinstance(resource, Attention)
        ]

    def planner(self, config: EngineConfig) -> ResidentPlanner | Refusal:
        """Build the node's planner, or say why it stays host-planned."""
        return ResidentPlanner.build(
            self.resources,
            config.max_batch,
            config.device,
            name="decoder",
            walks=() if config.planning == "host" else (DECODE,),
            resident_planning={"resident": "auto", "off": "off"}.get(config.planning),
            debug=config.debug,
        )
