"""The adapter of an attention: it keeps no cells, but may refuse, or need a host plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mstar_resident.layout import Column, KVTable
from mstar_resident.resources.base import ResidentResource, WalkDeclaration


@dataclass(frozen=True, slots=True)
class Attention:
    """Describe an attention by its kind, the pools it reads and whether it needs a host plan.

    ``context``: the pool that a cross attention reads, None for self attention.
    """

    name: str
    pool: str
    kind: Literal["paged", "dense", "mla"] = "paged"
    context: str | None = None
    window: int | None = None
    host_plan: bool = False

    def refusal(self) -> str | None:
        """Return why the node must stay host-planned, or None."""
        if self.kind != "paged":
            return f"{'MLA' if self.kind == 'mla' else self.kind} attention is not supported"
        if self.window is not None:
            return f"sliding windows are not supported, the attention's is {self.window} tokens"
        if self.context == self.pool:
            return f"cross attention whose context lies in the query's own pool, {self.pool}"
        return None

    def tables(self) -> Sequence[KVTable]:
        """Return nothing."""
        return ()

    def columns(self) -> Sequence[Column]:
        """Return nothing."""
        return ()

    def capture_refusal(self, declarations: Mapping[str, WalkDeclaration]) -> str | None:
        """Return a reason if the walk does not declare a pool that the attention reads."""
        missing = [pool for pool in (self.pool, self.context) if pool is not None and pool not in declarations]
        return f"the walk does not declare the pool that it reads, {missing[0]}" if missing else None


def host_plan_free(resources: Sequence[ResidentResource]) -> bool:
    """Return whether no attention of the node needs a host plan; one that does makes every bucket need it."""
    return not any(isinstance(resource, Attention) and resource.host_plan for resource in resources)
