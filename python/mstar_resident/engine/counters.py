"""What an engine counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from mstar_resident.engine.clock import Clock
from mstar_resident.errors import ResidentError


class ResidencyError(ResidentError):
    """Too few of a run's pure decode steps were resident."""


@dataclass(slots=True)
class Counters:
    """Count steps and what became of them."""

    steps: int = 0
    """Steps launched and committed, of any walk."""
    decode_steps: int = 0
    """Those with decode rows only."""
    resident_steps: int = 0
    failed_steps: int = 0
    staged_ahead: int = 0
    promoted: int = 0
    restaged: int = 0
    """Stages made ahead that no longer held when their step ran."""
    abandoned: int = 0
    """Stages made ahead whose step did not run at all."""
    overshoot: int = 0
    """Tokens drawn after a stop that the host had not read yet; discarded."""
    refused: int = 0
    """Reservations that found too few pages and were rolled back."""
    offloads: int = 0
    reloads: int = 0
    refills: int = 0
    """Requests filled anew from their tokens."""
    prefix_pages: int = 0
    rows_checked: int = 0
    mismatches: list[str] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)

    def require_residency(self, least: float) -> None:
        """Check the share of pure decode steps that were resident.

        Raises:
            ResidencyError: it is below ``least``.
        """
        if self.resident_steps < least * self.decode_steps:
            raise ResidencyError.of(
                "resident steps",
                expected=f"at least {least:.0%} of {self.decode_steps} decode steps",
                got=self.resident_steps,
            )
