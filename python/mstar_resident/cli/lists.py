"""Comma-separated lists on the command line."""

from __future__ import annotations

from collections.abc import Sequence

from mstar_resident.cli.exits import UsageError


def chosen(option: str, text: str, known: Sequence[str]) -> list[str]:
    """Return the names in ``text``.

    Raises:
        UsageError: none, one twice, or one that is not ``known``.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) < len(names) or not set(names) <= set(known):
        raise UsageError(f"{option}: expected some of {', '.join(known)}, each once, got {text!r}")
    return names


def counts(option: str, text: str, most: int) -> list[int]:
    """Return the ints in ``text``.

    Raises:
        UsageError: none, one twice, or one that is not from 1 to ``most``.
    """
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or len(set(found)) < len(found) or not all(1 <= count <= most for count in found):
        raise UsageError(f"{option}: expected comma-separated ints from 1 to {most}, each once, got {text!r}")
    return found
