"""What an engine tells the planner about its requests, names in."""

from __future__ import annotations

from mstar_resident import _core
from mstar_resident.arrays import Ints, as_int64
from mstar_resident.errors import LayoutError
from mstar_resident.layout import RowLayout

#: Values of a column, by its kind, lie from the negative of this to below it: what an int32 buffer holds, and offsets
#: whose sum with any length fits int64.
LIMITS = {"index": 1 << 31, "position": 1 << 62}


class PlannerRequests:
    """Keep the streams and columns of a node's requests true, from open to release.

    The half of :class:`~mstar_resident.ResidentPlanner` that an engine calls per request and per host
    step. A call that raises changes nothing. One that changes a row of the unlaunched stage drops it.
    """

    def __init__(self, layout: RowLayout, core: _core.Planner) -> None:
        self.layout = layout
        self._core = core
        self._tables = {table.name: number for number, table in enumerate(layout.tables)}
        self._limits = {column.name: LIMITS[column.kind] for column in layout.columns if column.kind in LIMITS}
        self._columns = {column.name: len(layout.tables) + number for number, column in enumerate(layout.columns)}

    # A request's life

    def open(self) -> int:
        """Open a request: a handle with an empty stream per table, no slot yet."""
        return self._core.open()

    def release(self, handle: int) -> int:
        """Close a request; its slot cools until the last launched step that read it has committed.

        Returns:
            That step's plan_seq, 0 if none read it: pages of the request may be reused after its commit.

        Raises:
            UnknownHandleError: not open.
        """
        return self._core.release(handle)

    def offload(self, handle: int) -> int:
        """Give up a request's slot and empty its streams; the handle stays open and keeps its columns.

        Returns:
            The plan_seq of the last launched step that read its row, 0 if none did.

        Raises:
            UnknownHandleError: not open.
        """
        return self._core.offload(handle)

    def set_stream(self, handle: int, table: str, pages: Ints, length: int) -> None:
        """Replace a stream: after prefill, reload, reset, a fork's target, a remote write.

        Raises:
            UnknownHandleError: not open.
            PageError: a page id is outside 1..pool_pages.
            LengthError: ``length`` is negative, or more tokens than the pages hold.
        """
        self._core.set_stream(handle, self._table(table), as_int64(pages, "pages"), length)

    def append_pages(self, table: str, handles: Ints, counts: Ints, pages: Ints) -> None:
        """Append ``counts[i]`` of ``pages`` (in order) to the stream of ``handles[i]``, all or none.

        Raises:
            UnknownHandleError, DuplicateHandleError, PageError, LayoutError: nothing changed.
        """
        self._core.append_pages(
            self._table(table), as_int64(handles, "handles"), as_int64(counts, "counts"), as_int64(pages, "pages")
        )

    def host_step(self, table: str, handles: Ints, tokens: Ints) -> None:
        """Tell that a host-planned step appended ``tokens[i]`` tokens to the stream of ``handles[i]``.

        Raises:
            UnknownHandleError, DuplicateHandleError, LengthError, LayoutError: nothing changed.
        """
        self._core.host_step(self._table(table), as_int64(handles, "handles"), as_int64(tokens, "tokens"))

    def truncate(self, table: str, handle: int, length: int, pages: int) -> None:
        """Rewind a stream to ``length`` tokens and keep its first ``pages`` pages.

        Raises:
            UnknownHandleError: not open.
            LengthError: more tokens or pages than the stream has, or fewer pages than ``length`` needs.
        """
        self._core.truncate(self._table(table), handle, length, pages)

    def set_column(self, column: str, handles: Ints, values: Ints) -> None:
        """Set a named column of each handle.

        Raises:
            UnknownHandleError, DuplicateHandleError: nothing changed.
            LayoutError: an index that its int32 buffer cannot hold, or an offset of 2^62 or more; nothing changed.
        """
        numbers = as_int64(values, "values")
        limit = self._limits.get(column)
        if limit is not None and numbers.size and not -limit <= numbers.min() <= numbers.max() < limit:
            expected = f"values from {-limit} to {limit - 1}"
            raise LayoutError.of(column, expected=expected, got=numbers.tolist())
        self._core.set_column(self._column(column), as_int64(handles, "handles"), numbers)

    def unset_column(self, column: str, handles: Ints) -> None:
        """Forget a named column of each handle: a row is an error until it is set again.

        Raises:
            UnknownHandleError, DuplicateHandleError: nothing changed.
        """
        self._core.unset_column(self._column(column), as_int64(handles, "handles"))

    def mark_stale(self, handles: Ints) -> None:
        """Mark rows for a whole rewrite: their streams changed untold, or something else wrote used cells.

        Raises:
            UnknownHandleError: nothing changed.
        """
        self._core.mark_stale(as_int64(handles, "handles"))

    def mark_released_tokens(self, table: str, handle: int) -> None:
        """Tell that a stream released tokens (retention); a step that reads it raises.

        Raises:
            UnknownHandleError: not open.
        """
        self._core.mark_released_tokens(self._table(table), handle)

    # Planner-owned pages

    def own_pages(self, table: str) -> None:
        """Let the planner own the pool's pages; before the first stream.

        Raises:
            LayoutError: a stream of the table exists already.
        """
        self._core.own_pages(self._table(table))

    def reserve(self, table: str, handles: Ints, tokens: Ints) -> None:
        """Give each stream the pages for ``tokens[i]`` more tokens, all or none.

        Raises:
            OutOfPagesError: the pool has too few; nothing changed.
            UnknownHandleError, DuplicateHandleError, RowOverflowError: nothing changed.
        """
        self._core.reserve(self._table(table), as_int64(handles, "handles"), as_int64(tokens, "tokens"))

    def reserve_step(self, batch: _core.Batch) -> None:
        """Give every row of a batch the page its next token needs, on every owned pool, all or none.

        Raises:
            OutOfPagesError, RowOverflowError, UnknownHandleError, NotReadyError: nothing changed.
        """
        self._core.reserve_step(batch)

    def fork(self, table: str, parent: int, child: int, tokens: int) -> None:
        """Make the child's empty stream the parent's first ``tokens`` tokens, a whole number of pages, shared.

        Raises:
            UnknownHandleError, LengthError, ReleasedTokensError: nothing changed.
        """
        self._core.fork(self._table(table), parent, child, tokens)

    def free_pages(self, table: str) -> int:
        """Return how many pages of a planner-owned pool are free."""
        return self._core.free_pages(self._table(table))

    # What is true now

    def length(self, handle: int, table: str) -> int:
        """Return a stream's stored length."""
        return self._core.length(handle, self._table(table))

    def column(self, handle: int, name: str) -> int | None:
        """Return the value of a named column, None if it is unset."""
        return self._core.column_value(handle, self._column(name))

    def pages(self, handle: int, table: str) -> list[int]:
        """Return a stream's pages, those that its length does not need yet included."""
        return self._core.pages(handle, self._table(table))

    def _table(self, name: str) -> int:
        number = self._tables.get(name)
        return number if number is not None else self.layout.table_number(name)

    def _column(self, name: str) -> int:
        number = self._columns.get(name)
        return number if number is not None else self.layout.column_number(name)
