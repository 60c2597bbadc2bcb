"""What a store row is made of: narrow columns, then one table per KV pool."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, get_args

from mstar_resident.errors import LayoutError

ColumnKind = Literal["position", "index", "scalar"]

#: Attention lengths and page ids are int32 on the device.
INT32_MAX = 2**31 - 1


def check_count(value: object, name: str, *, most: int = INT32_MAX, least: int = 1, **fields: object) -> int:
    """Return ``value`` if it is an int in ``least..most``; a bool is not one.

    Raises:
        LayoutError: it is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise LayoutError.of(name, expected=f"an int in {least}..{most}", got=value, **fields)
    return value


def check_name(value: object, kind: str) -> str:
    """Return ``value`` if it is a non-empty string.

    Raises:
        LayoutError: it is not.
    """
    if not isinstance(value, str) or not value:
        raise LayoutError.of(f"{kind} name", expected="a non-empty string", got=value)
    return value


@dataclass(frozen=True, slots=True)
class KVTable:
    """Describe the table that holds one KV pool's page ids.

    Page ids of live streams are 1..pool_pages; 0 is the sink page. ``span`` is 1 for a stream that
    every step appends one token to, 0 for a read-only one.

    Raises:
        LayoutError: a number is not positive, does not fit int32, or the span is not 0 or 1.
    """

    name: str
    page_size: int
    pool_pages: int
    max_seq_len: int
    span: int = 1

    def __post_init__(self) -> None:
        check_name(self.name, "table")
        check_count(self.page_size, "page_size", table=self.name)
        check_count(self.pool_pages, "pool_pages", table=self.name)
        check_count(self.max_seq_len, "max_seq_len", table=self.name)
        check_count(self.span, "span", least=0, most=1, table=self.name)

    @property
    def pages(self) -> int:
        """Columns of the table: the pages that one stream can need, at most all of the pool's."""
        return min(-(-self.max_seq_len // self.page_size), self.pool_pages)


@dataclass(frozen=True, slots=True)
class Column:
    """Describe one named narrow column and what the prologue makes of it.

    ``position``: stored length of ``table`` plus the cell, ``int64[b]``; ``index``: the cell as
    ``int32[b]``; ``scalar``: the cell as ``int64[b]``.

    Raises:
        LayoutError: an unknown kind, a position without a table, or a table without a position.
    """

    name: str
    kind: ColumnKind = "scalar"
    table: str | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "column")
        if self.kind not in get_args(ColumnKind):
            raise LayoutError.of("column kind", expected=get_args(ColumnKind), got=self.kind, column=self.name)
        if self.kind == "position" and not isinstance(self.table, str):
            raise LayoutError.of(
                "table of a position column", expected="a table's name", got=self.table, column=self.name
            )
        if self.kind != "position" and self.table is not None:
            raise LayoutError.of(
                f"table of a column of kind {self.kind}", expected=None, got=self.table, column=self.name
            )


@dataclass(frozen=True)
class RowLayout:
    """Lay out a row: a stored length per table, the named columns, then the tables.

    Columns are numbered globally, as cells name them: ``0..narrow_cells-1`` are narrow (the stored
    length of table k at k, then the named columns), table k starts at ``table_starts[k]``.

    Args:
        tables: any number of tables, none included.
        columns: named narrow columns; a string stands for a column of kind ``scalar``.

    Raises:
        LayoutError: nothing to lay out, a name used twice, or a position that names no table of this layout.
    """

    tables: tuple[KVTable, ...]
    columns: tuple[Column, ...]
    narrow_cells: int = field(init=False)
    table_pages: tuple[int, ...] = field(init=False)
    table_starts: tuple[int, ...] = field(init=False)
    width: int = field(init=False)
    cells_per_row: int = field(init=False)

    def __init__(self, tables: Iterable[KVTable] = (), columns: Iterable[Column | str] = ()) -> None:
        kept = tuple(tables)
        named = tuple(Column(column) if isinstance(column, str) else column for column in columns)
        for table in kept:
            if not isinstance(table, KVTable):
                raise LayoutError.of("tables", expected="KVTable entries", got=table)
        for column in named:
            if not isinstance(column, Column):
                raise LayoutError.of("columns", expected="Column entries or names", got=column)
        if not kept and not named:
            raise LayoutError.of("layout", expected="at least one table or column", got="neither")
        seen: set[str] = set()
        for name in [table.name for table in kept] + [column.name for column in named]:
            if name in seen:
                raise LayoutError.of("name", expected="each table and column named once", got=name)
            seen.add(name)
        names = [table.name for table in kept]
        for column in named:
            if column.kind == "position" and column.table not in names:
                raise LayoutError.of(
                    "table of a position column", expected=f"one of {names}", got=column.table, column=column.name
                )
        pages = tuple(table.pages for table in kept)
        narrow = len(kept) + len(named)
        values: dict[str, object] = {
            "tables": kept,
            "columns": named,
            "narrow_cells": narrow,
            "table_pages": pages,
            "table_starts": tuple(narrow + sum(pages[:k]) for k in range(len(pages))),
            "width": narrow + sum(pages),
            # A host crossing followed at once by a resident one writes two pages, or a page and a length, per table.
            "cells_per_row": 1 << (max(2, 2 * len(kept)) - 1).bit_length(),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def table_number(self, name: str) -> int:
        """Return the index of table ``name``, which is also the column of its stored length.

        Raises:
            LayoutError: no such table.
        """
        for number, table in enumerate(self.tables):
            if table.name == name:
                return number
        raise LayoutError.of("table", expected=f"one of {[table.name for table in self.tables]}", got=name)

    def column_number(self, name: str) -> int:
        """Return the global column number of the named column ``name``.

        Raises:
            LayoutError: no such column.
        """
        for number, column in enumerate(self.columns):
            if column.name == name:
                return len(self.tables) + number
        raise LayoutError.of("column", expected=f"one of {[column.name for column in self.columns]}", got=name)

    def position_table(self, column: Column) -> int:
        """Return the index of the table whose stored length a position column is added to.

        Raises:
            LayoutError: the column names no table.
        """
        return self.table_number(column.table or "")

    @staticmethod
    def rows(max_batch: int) -> int:
        """Return the rows of a store for steps of at most ``max_batch`` rows: two per row, and the trash row."""
        return 2 * max_batch + 1

    def store_bytes(self, max_batch: int) -> int:
        """Return the bytes of a store: int64 narrow columns and int32 tables."""
        return self.rows(max_batch) * (8 * self.narrow_cells + 4 * sum(self.table_pages))

    def split(self) -> str:
        """Say what a row is made of, such as ``3 narrow cells + 2047 kv pages``."""
        parts = [f"{self.narrow_cells} narrow cell{'s' if self.narrow_cells != 1 else ''}"]
        parts += [
            f"{pages} {table.name} page{'s' if pages != 1 else ''}"
            for table, pages in zip(self.tables, self.table_pages, strict=True)
        ]
        return " + ".join(parts)
