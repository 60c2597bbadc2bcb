"""The exit codes, and which error has which."""

from __future__ import annotations

GOOD, MISMATCH, USAGE, ERROR = 0, 1, 2, 3


class UsageError(ValueError):
    """Say in one sentence what is wrong with a command's arguments."""


def exit_code(error: Exception) -> int:
    """Return the exit code of an error that ended a command."""
    from mstar_resident.engine.counters import ResidencyError
    from mstar_resident.engine.request_check import RequestError
    from mstar_resident.errors import LayoutError, LogError
    from mstar_resident.models.base import CheckpointError
    from mstar_resident.models.smollm2 import ModelMissingError

    if isinstance(error, UsageError | LayoutError | LogError | RequestError | ModelMissingError | CheckpointError):
        return USAGE
    return MISMATCH if isinstance(error, ResidencyError) else ERROR
