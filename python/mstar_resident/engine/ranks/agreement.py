"""What the ranks of a group must have in common."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from mstar_resident.errors import LayoutError, ResidentError

if TYPE_CHECKING:
    from mstar_resident.engine.config import EngineConfig
    from mstar_resident.engine.engine import Engine
    from mstar_resident.engine.ranks.group import RankGroup

#: What may differ: where a rank runs, how it checks itself, and how it plans, since tokens do not depend on that.
OWN = {"device", "check", "shadow", "ranges", "debug", "planning", "least_resident", "attention_plan", "order", "pools"}


class RankMismatchError(ResidentError, RuntimeError):
    """Ranks that should have done the same did not; the group cannot go on."""


def geometry(config: EngineConfig, engine: Engine) -> dict[str, Any]:
    """Return what every decision depends on that the ranks take alike: sizes of pools and batches, by name."""
    shared = {field.name: getattr(config, field.name) for field in fields(config) if field.name not in OWN}
    for name, entry in engine.streams.items():
        shared[f"span of {name}"] = entry.span
        shared |= {f"{field} of {name}": size for field, size in asdict(config.pool(name)).items()}
    return shared


def agree_on_geometry(group: RankGroup, config: EngineConfig, engine: Engine) -> None:
    """Check that all ranks were built with the same sizes; all ranks call it.

    A pool of another size would refuse what rank 0 was granted, steps later and in the middle of a batch.

    Raises:
        LayoutError: they were not; every rank raises the same.
    """
    all_of_them = group.gather(geometry(config, engine))
    for rank, theirs in enumerate(all_of_them):
        for name in [*all_of_them[0], *theirs]:
            expected, got = all_of_them[0].get(name), theirs.get(name)
            if expected != got:
                raise LayoutError.of(f"{name} on rank {rank}", expected=f"{expected}, as on rank 0", got=got)


def agree_on_buckets(group: RankGroup, engine: Engine) -> None:
    """Have a bucket that any rank could not capture run host-planned on all; all ranks call it.

    The store keeps the size that was derived before: wider than the widest bucket left is safe.
    """
    engine.arm.host_planned = frozenset().union(*group.gather(engine.arm.host_planned))
