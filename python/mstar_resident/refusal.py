"""A refusal is data: which resource keeps a node host-planned, and why."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from mstar_resident.layout import RowLayout

logger = logging.getLogger("mstar_resident")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Say why a node stays host-planned; it then behaves exactly as without this package."""

    resource: str
    reason: str

    def __str__(self) -> str:
        return f"{self.resource}: {self.reason}"


def log_build(node: str, layout: RowLayout, max_batch: int, walks: Iterable[str]) -> None:
    """Log the one INFO line of a node that builds: slots, cells a row with their split, MiB, walks."""
    logger.info(
        "%s: resident planning with %d slots, %d cells a row (%s), %.1f MiB, walks %s",
        node,
        layout.rows(max_batch) - 1,
        layout.width,
        layout.split(),
        layout.store_bytes(max_batch) / 2**20,
        ", ".join(walks) or "none",
    )


def log_refusal(node: str, refusal: Refusal) -> None:
    """Log the one INFO line of a node that refuses, with the reason."""
    logger.info("%s: host-planned, because of %s", node, refusal)
