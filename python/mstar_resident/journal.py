"""The operation log: every call of every planner in one file, which replays bit for bit without a device."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from mstar_resident import _core

#: Environment variable: the file that planners built by this process write their calls to.
RECORD_VARIABLE = "MSTAR_RESIDENT_RECORD"

_current: _core.Journal | None = None


def current_journal() -> _core.Journal | None:
    """Return the journal that a planner built now writes to: of :func:`recording`, else the environment's, else none.

    Raises:
        OSError: the environment names a file that cannot be written.
    """
    global _current
    if _current is None and (path := os.environ.get(RECORD_VARIABLE)):
        _current = _core.Journal(path)
    return _current


@contextmanager
def recording(path: str) -> Iterator[_core.Journal]:
    """Write the calls of every planner that is built inside to a log at ``path``.

    Raises:
        OSError: the file cannot be written; on leaving, if it could not hold every call.
    """
    global _current
    before, _current = _current, _core.Journal(path)
    journal = _current
    try:
        yield journal
    finally:
        _current = before
    journal.calls()
