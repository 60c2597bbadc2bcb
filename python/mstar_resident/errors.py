"""The exceptions of the package.

Every class takes one sentence and keyword fields. The fields are kept as attributes (and in
:attr:`ResidentError.fields`), so that a caller can act on ``error.handle`` or ``error.got``
without reading the sentence. The native module raises these same classes.
"""

from __future__ import annotations

from typing import Any, Self


class ResidentError(Exception):
    """Base of every error that the package raises on purpose.

    ``fields`` holds the keyword fields; each is an attribute too. Raising one leaves the planner
    as it was before the call.
    """

    fields: dict[str, object]

    def __init__(self, message: str, **fields: object) -> None:
        super().__init__(message)
        self.fields = fields
        for name, value in fields.items():
            setattr(self, name, value)

    @classmethod
    def of(cls, field: str, *, expected: object, got: object, **fields: object) -> Self:
        """Build the error from what was expected of ``field`` and what was got."""
        where = "".join(f", {name} {value}" for name, value in fields.items())
        return cls(
            f"{field}: expected {expected}, got {got!r}{where}", field=field, expected=expected, got=got, **fields
        )

    def __str__(self) -> str:
        # KeyError would print the repr of its argument.
        return str(self.args[0]) if self.args else type(self).__name__

    def __getattr__(self, name: str) -> Any:
        # Reached only for a name that is not a field; typed Any so that fields can be read.
        raise AttributeError(
            f"{type(self).__name__} has no field {name!r}, only {sorted(self.__dict__.get('fields', {}))}"
        )


class LayoutError(ResidentError, ValueError):
    """A layout, batch size, lease or array shape that cannot be used."""


class CaptureRefused(ResidentError):  # noqa: N818  (the name of a decision, not of a fault)
    """A walk's declared steps cannot be captured as resident steps; ``resource`` and ``reason`` say why."""


class RowOverflowError(ResidentError):
    """A stream needs more pages than its table holds."""


class MissingPageError(ResidentError):
    """A stream lacks the page that its next token needs."""


class UnsetColumnError(ResidentError):
    """A row is to be built before one of its columns was set."""


class ReleasedTokensError(ResidentError):
    """A stream released tokens, so that its position no longer follows from its length."""


class UnknownHandleError(ResidentError, KeyError):
    """A handle that was never opened, was released, or belongs to an earlier generation."""


class DuplicateHandleError(ResidentError, ValueError):
    """A handle occurs twice in one batch."""


class BatchTooLargeError(ResidentError, ValueError):
    """A batch has more rows than its bucket, or than the store was sized for."""


class PageError(ResidentError, ValueError):
    """A page that a stream may not name: outside 1..pool_pages, twice, or shared where its next token goes."""


class LengthError(ResidentError, ValueError):
    """A length that the stream's pages cannot hold, or a rewind that is not one."""


class NotReadyError(ResidentError):
    """The step before has been launched and has not been committed or failed."""


class StageDroppedError(ResidentError):
    """A stage is used after it was dropped, replaced or finished."""


class OutOfPagesError(ResidentError):
    """A planner-owned pool has too few free pages; nothing was reserved."""


class InvariantError(ResidentError, RuntimeError):
    """A runtime check found the planner's own state broken."""


class LogError(ResidentError, ValueError):
    """A file is no operation log, or one of a version that is not read; ``line`` says where."""


class ReplayError(ResidentError):
    """A replayed call answered or sent something else than its log says; ``operation`` and ``call`` say which."""
