"""Random stores and leases for the prologue, and a naive prologue in Python integers."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from mstar_resident.layout import Column, KVTable, RowLayout

POISON = -77
KINDS = {"position": torch.int64, "scalar": torch.int64, "index": torch.int32}

LAYOUTS = {
    "one append table": RowLayout(
        [KVTable("kv", 4, 40, 64)], [Column("offset", "position", "kv"), Column("state", "index")]
    ),
    "one table, nothing else": RowLayout([KVTable("kv", 16, 9, 100)]),
    "append and read-only": RowLayout(
        [KVTable("own", 4, 40, 64), KVTable("context", 16, 30, 100, span=0)],
        [Column("offset", "position", "own"), Column("heat", "scalar")],
    ),
    "five tables": RowLayout(
        [KVTable(f"t{k}", (1, 3, 8, 64, 128)[k], 20 + k, (11, 30, 80, 640, 1024)[k], span=k % 2) for k in range(5)],
        [Column("p3", "position", "t3"), Column("s", "index"), Column("p1", "position", "t1"), Column("seed")],
    ),
    "no table": RowLayout([], [Column("state", "index"), Column("seed", "scalar")]),
    "read-only alone": RowLayout([KVTable("context", 16, 30, 100, span=0)]),
}


@dataclass
class Case:
    """Hold what one prologue reads and writes."""

    layout: RowLayout
    narrow: Tensor
    tables: list[Tensor]
    inputs: Tensor
    lengths: list[Tensor]
    write_loc: list[Tensor | None]
    columns: list[Tensor]

    @classmethod
    def empty(cls, layout: RowLayout, rows: int, b: int, device: str) -> Case:
        K = layout.cells_per_row
        return cls(
            layout,
            torch.zeros(rows, layout.narrow_cells, dtype=torch.int64, device=device),
            [torch.zeros(rows, pages, dtype=torch.int32, device=device) for pages in layout.table_pages],
            torch.zeros(b * (1 + 2 * K), dtype=torch.int64, device=device),
            [torch.full((b,), POISON, dtype=torch.int32, device=device) for _ in layout.tables],
            [torch.full((b,), POISON, dtype=torch.int64, device=device) if t.span else None for t in layout.tables],
            [torch.full((b,), POISON, dtype=KINDS[c.kind], device=device) for c in layout.columns],
        )

    @classmethod
    def drawn(cls, layout: RowLayout, rows: int, b: int, seed: int, device: str) -> Case:
        """Draw ragged rows: some padding, lengths from 0 to past the table, cells of every kind."""
        draw = random.Random(seed)
        case = cls.empty(layout, rows, b, "cpu")
        for slot in range(1, rows):
            for k, table in enumerate(layout.tables):
                case.narrow[slot, k] = case.draw_length(draw, k)
                for column in range(table.pages):
                    case.tables[k][slot, column] = draw.randint(1, 2**31 - 1)
            for c in range(len(layout.tables), layout.narrow_cells):
                is_offset = layout.columns[c - len(layout.tables)].kind == "position"
                case.narrow[slot, c] = draw.randint(-50, 50) if is_offset else draw.randint(1, 2**31 - 1)
        slots = draw.sample(range(1, rows), min(b, rows - 1))
        for i in range(b):
            case.inputs[i] = slots[i] if i < len(slots) and draw.random() < 0.8 else 0
            case.draw_cells(draw, i)
        return case.to(device)

    def draw_length(self, draw: random.Random, k: int) -> int:
        table = self.layout.tables[k]
        edge = table.page_size * draw.randint(0, table.pages)
        return max(0, draw.choice([0, edge, edge - 1, edge + 1, draw.randint(0, table.page_size * table.pages)]))

    def draw_cells(self, draw: random.Random, i: int) -> None:
        """Draw up to K cells for a row: lengths, named columns, the write page's column, any page's column."""
        layout, K = self.layout, self.layout.cells_per_row
        wanted: dict[int, int] = {}
        for _ in range(draw.randint(0, K)):
            if layout.tables and draw.random() < 0.7:
                k = draw.randrange(len(layout.tables))
                if draw.random() < 0.4:
                    wanted[k] = self.draw_length(draw, k)
                    continue
                written = int(self.narrow[self.inputs[i], k]) // layout.tables[k].page_size
                page = draw.choice([written, draw.randrange(10**6)])
                wanted[layout.table_starts[k] + page % layout.table_pages[k]] = draw.randint(1, 2**31 - 1)
            else:
                wanted[draw.randrange(layout.narrow_cells)] = draw.randint(0, 60)
        places = draw.sample(range(K), len(wanted))
        for place, (column, value) in zip(places, wanted.items(), strict=True):
            at = self.b + 2 * (i * K + place)
            self.inputs[at], self.inputs[at + 1] = column + 1, value

    @property
    def b(self) -> int:
        return self.inputs.numel() // (1 + 2 * self.layout.cells_per_row)

    def arguments(self) -> tuple:
        return (self.layout, self.narrow, self.tables, self.inputs, self.lengths, self.write_loc, self.columns)

    def tensors(self) -> list[Tensor]:
        written = [w for w in self.write_loc if w is not None]
        return [self.narrow, *self.tables, self.inputs, *self.lengths, *written, *self.columns]

    def to(self, device: str) -> Case:
        """Return a copy on a device."""
        narrow, inputs = (t.to(device, copy=True) for t in (self.narrow, self.inputs))
        parts = (self.tables, self.lengths, self.write_loc, self.columns)
        tables, *outputs = [[None if t is None else t.to(device, copy=True) for t in part] for part in parts]
        return Case(self.layout, narrow, tables, inputs, *outputs)

    def cell(self, i: int, place: int, column: int, value: int) -> None:
        at = self.b + 2 * (i * self.layout.cells_per_row + place)
        self.inputs[at], self.inputs[at + 1] = column + 1, value


def assert_equal(got: Case, expected: Case) -> None:
    for one, other in zip(got.tensors(), expected.tensors(), strict=True):
        torch.testing.assert_close(one.cpu(), other.cpu(), rtol=0, atol=0)


def naive(case: Case) -> None:
    """Do what a prologue does, one row and one integer at a time."""
    layout, K, b = case.layout, case.layout.cells_per_row, case.b
    for i in range(b):
        slot = int(case.inputs[i])
        for j in range(K):
            at = b + 2 * (i * K + j)
            column, value = int(case.inputs[at]) - 1, int(case.inputs[at + 1])
            case.inputs[at] = case.inputs[at + 1] = 0
            if slot == 0 or column < 0:
                continue
            if column < layout.narrow_cells:
                case.narrow[slot, column] = value
            for k, start in enumerate(layout.table_starts):
                if start <= column < start + layout.table_pages[k]:
                    case.tables[k][slot, column - start] = value
        stored = [int(case.narrow[slot, k]) if slot else 0 for k in range(len(layout.tables))]
        for k, table in enumerate(layout.tables):
            case.lengths[k][i] = stored[k] + table.span if slot else 1
            location = case.write_loc[k]
            if location is not None:
                column = stored[k] // table.page_size
                page = int(case.tables[k][slot, column]) if slot and column < layout.table_pages[k] else 0
                location[i] = page * table.page_size + stored[k] % table.page_size
        for j, column in enumerate(layout.columns):
            value = int(case.narrow[slot, len(layout.tables) + j]) if slot else 0
            case.columns[j][i] = value + (stored[layout.position_table(column)] if column.kind == "position" else 0)
        for k, table in enumerate(layout.tables):
            if slot:
                case.narrow[slot, k] = stored[k] + table.span
