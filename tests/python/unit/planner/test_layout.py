"""The row layout: derived widths, global column numbers, and every way to get it wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mstar_resident import Column, KVTable, RowLayout
from mstar_resident.errors import LayoutError


def test_the_hybrid_shape_has_2050_cells_and_two_mebibytes() -> None:
    layout = RowLayout(
        [KVTable("kv", page_size=128, pool_pages=2047, max_seq_len=262_144)],
        [Column("position_offset", "position", table="kv"), Column("recurrent_index", "index")],
    )
    assert (layout.width, layout.narrow_cells, layout.cells_per_row) == (2050, 3, 2)
    assert layout.split() == "3 narrow cells + 2047 kv pages"
    assert layout.rows(128) == 257
    assert 2.0 < layout.store_bytes(128) / 2**20 < 2.02


def test_the_whisper_shape_has_19_cells() -> None:
    tables = [KVTable("self", 128, 512, 448), KVTable("context", 128, 1024, 1500, span=0)]
    layout = RowLayout(tables, [Column("position_offset", "position", "self")])
    assert (layout.width, layout.table_pages, layout.table_starts) == (19, (4, 12), (3, 7))
    assert (layout.table_number("context"), layout.column_number("position_offset")) == (1, 2)
    assert layout.cells_per_row == 4


def test_a_million_tokens_on_small_pages_are_capped_by_the_pool() -> None:
    assert KVTable("kv", page_size=16, pool_pages=2047, max_seq_len=1_000_000).pages == 2047


def test_a_row_needs_no_table() -> None:
    layout = RowLayout(columns=["recurrent_index"])
    assert (layout.width, layout.cells_per_row, layout.split()) == (1, 2, "1 narrow cell")


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "nothing": (lambda: RowLayout(), "at least one table or column"),
    "page size 0": (lambda: KVTable("kv", 0, 9, 9), "page_size: expected an int in 1"),
    "no pages": (lambda: KVTable("kv", 1, 0, 9), "pool_pages: expected"),
    "a bool": (lambda: KVTable("kv", True, 9, 9), "page_size: expected"),
    "no tokens": (lambda: KVTable("kv", 1, 9, -1), "max_seq_len: expected"),
    "span 2": (lambda: KVTable("kv", 1, 9, 9, span=2), "span: expected an int in 0..1, got 2"),
    "no name": (lambda: KVTable("", 1, 9, 9), "table name: expected a non-empty string"),
    "unknown kind": (lambda: Column("x", "vector"), "column kind: expected"),  # type: ignore[arg-type]
    "a position without a table": (lambda: Column("x", "position"), "table of a position column"),
    "an index with a table": (lambda: Column("x", "index", "kv"), "table of a column of kind index"),
    "an unknown table": (lambda: RowLayout(columns=[Column("x", "position", "kv")]), "expected one of"),
    "a name twice": (lambda: RowLayout([KVTable("x", 1, 9, 9)], ["x"]), "each table and column named once"),
    "not a table": (lambda: RowLayout(["kv"]), "tables: expected KVTable entries"),  # type: ignore[list-item]
    "not a column": (lambda: RowLayout(columns=[3]), "columns: expected Column entries"),  # type: ignore[list-item]
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_layout_is_one_clear_sentence(what: str) -> None:
    build, sentence = WRONG[what]
    with pytest.raises(LayoutError, match=sentence):
        build()


@pytest.mark.parametrize("name", ["kv", "length", ""])
def test_an_unknown_name_says_which_there_are(name: str) -> None:
    layout = RowLayout([KVTable("self", 4, 9, 9)], ["seed"])
    with pytest.raises(LayoutError, match=r"table: expected one of \['self'\]"):
        layout.table_number(name)
    with pytest.raises(LayoutError, match=r"column: expected one of \['seed'\]"):
        layout.column_number(name)
