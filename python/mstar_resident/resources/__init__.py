"""Adapters that say what each resource of a node keeps in a row, or why it keeps nothing.

An engine may use these or implement :class:`~mstar_resident.resources.base.ResidentResource` itself.
"""

from mstar_resident.resources.attention import Attention
from mstar_resident.resources.base import (
    HostPlanned,
    ResidentResource,
    WalkDeclaration,
    check_walk,
    find_refusal,
    lay_out,
)
from mstar_resident.resources.kv import KVPool
from mstar_resident.resources.positions import Positions
from mstar_resident.resources.recurrent import RecurrentPool

__all__ = [
    "Attention",
    "HostPlanned",
    "KVPool",
    "Positions",
    "RecurrentPool",
    "ResidentResource",
    "WalkDeclaration",
    "check_walk",
    "find_refusal",
    "lay_out",
]
