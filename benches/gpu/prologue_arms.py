"""The arms of the prologue bench: ways to prepare a step's inputs on the device, over one store and one lease."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

try:
    import mstar_resident
except ImportError:  # a checkout whose native module is not built: the kernels do not need it
    mstar_resident = ModuleType("mstar_resident")
    mstar_resident.__path__ = [str(Path(__file__).parents[2] / "python" / "mstar_resident")]
    sys.modules["mstar_resident"] = mstar_resident

import torch
import triton
import triton.language as tl

from mstar_resident.kernels import prologue, reference
from mstar_resident.layout import RowLayout
from mstar_resident.lease import Lease
from mstar_resident.store import Store

Launch = Callable[[], object]


@triton.jit
def _scatter(narrow, table, inputs, b, C: tl.constexpr, K: tl.constexpr, P: tl.constexpr):
    i = tl.program_id(0)
    slot = tl.load(inputs + i)
    cell = inputs + b + (i * K + tl.arange(0, K)) * 2
    column = tl.load(cell) - 1
    value = tl.load(cell + 1)
    live = (slot != 0) & (column >= 0)
    tl.store(narrow + slot * C + column, value, mask=live & (column < C))
    tl.store(table + slot * P + column - C, value.to(table.dtype.element_ty), mask=live & (column >= C))
    tl.debug_barrier()
    tl.store(cell, tl.zeros_like(column))
    tl.store(cell + 1, tl.zeros_like(column))


@triton.jit
def _gather_length(narrow, slots, out, b, C: tl.constexpr, SPAN: tl.constexpr, ROWS: tl.constexpr):
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(slots + i, mask=i < b, other=0)
    stored = tl.load(narrow + slot * C, mask=slot != 0, other=0)
    tl.store(out + i, tl.where(slot != 0, stored + SPAN, 1).to(tl.int32), mask=i < b)


@triton.jit
def _gather_write_loc(
    narrow, table, slots, out, b, C: tl.constexpr, P: tl.constexpr, PAGE_SIZE: tl.constexpr, ROWS: tl.constexpr
):
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(slots + i, mask=i < b, other=0)
    stored = tl.load(narrow + slot * C, mask=slot != 0, other=0)
    column = stored // PAGE_SIZE
    page = tl.load(table + slot * P + column, mask=(slot != 0) & (column < P), other=0).to(tl.int64)
    tl.store(out + i, page * PAGE_SIZE + stored % PAGE_SIZE, mask=i < b)


@triton.jit
def _gather_column(
    narrow, slots, out, b, C: tl.constexpr, COLUMN: tl.constexpr, BASE: tl.constexpr, ROWS: tl.constexpr
):
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(slots + i, mask=i < b, other=0)
    value = tl.load(narrow + slot * C + COLUMN, mask=slot != 0, other=0)
    if BASE >= 0:
        value += tl.load(narrow + slot * C + BASE, mask=slot != 0, other=0)
    tl.store(out + i, value.to(out.dtype.element_ty), mask=i < b)


@triton.jit
def _advance(narrow, slots, b, C: tl.constexpr, SPAN: tl.constexpr, ROWS: tl.constexpr):
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(slots + i, mask=i < b, other=0)
    stored = tl.load(narrow + slot * C, mask=slot != 0, other=0)
    tl.store(narrow + slot * C, stored + SPAN, mask=slot != 0)


@triton.jit
def _copy_rows(table, slots, out, P: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots + i)
    page = tl.load(table + slot * P + column, mask=column < P, other=0)
    tl.store(out + i * P + column, page.to(tl.int32), mask=column < P)


def none(layout: RowLayout, store: Store, lease: Lease) -> Launch:
    """Return a launch of nothing: the graph without a planner."""
    return lambda: None


def fused(layout: RowLayout, store: Store, lease: Lease, rows_per_program: int = prologue.ROWS_PER_PROGRAM) -> Launch:
    """Return the launch of the package's prologue: one kernel; attention reads the int32 table through the slots."""
    return prologue.bind(layout, store, lease, rows_per_program)


def fused_row_a_lane(layout: RowLayout, store: Store, lease: Lease) -> Launch:
    """Return the same with 32 rows in each program, one a lane."""
    return fused(layout, store, lease, 32)


def fused_and_copy(layout: RowLayout, store: Store, lease: Lease) -> Launch:
    """Return the launch of the prologue and a copy of the step's rows from an int64 table to an int32 one."""
    launch, copy = fused(layout, store, lease), copy_rows(layout, store, lease)
    return lambda: (launch(), copy())


def copy_rows(layout: RowLayout, store: Store, lease: Lease) -> Launch:
    """Return the launch of the copy alone."""
    wide = next(iter(store.tables.values())).to(torch.int64)
    P, b = wide.shape[1], lease.bucket
    out = torch.zeros(b, P, dtype=torch.int32, device=wide.device)
    kernel = _copy_rows[(b, triton.cdiv(P, 1024))]
    return lambda: kernel(wide, lease.slots, out, P=P, BLOCK=1024, num_warps=4)


def separate(layout: RowLayout, store: Store, lease: Lease) -> Launch:
    """Return the launch of a kernel for the scatter, for every output, and for the advance; one append table."""
    (table,) = layout.tables
    C, K, b = layout.narrow_cells, layout.cells_per_row, lease.bucket
    pages = store.tables[table.name]
    grid = (triton.cdiv(b, 32),)
    rows = {"C": C, "ROWS": 32, "num_warps": 1}
    bases = [layout.position_table(column) if column.kind == "position" else -1 for column in layout.columns]

    def launch() -> None:
        _scatter[(b,)](store.narrow, pages, lease.inputs, b, C=C, K=K, P=pages.shape[1], num_warps=1)
        _gather_length[grid](store.narrow, lease.slots, lease.lengths[table.name], b, SPAN=table.span, **rows)
        _gather_write_loc[grid](
            store.narrow,
            pages,
            lease.slots,
            lease.write_loc[table.name],
            b,
            P=pages.shape[1],
            PAGE_SIZE=table.page_size,
            **rows,
        )
        for j, (out, base) in enumerate(zip(lease.columns.values(), bases, strict=True)):
            _gather_column[grid](store.narrow, lease.slots, out, b, COLUMN=1 + j, BASE=base, **rows)
        _advance[grid](store.narrow, lease.slots, b, SPAN=table.span, **rows)

    return launch


def torch_reference(layout: RowLayout, store: Store, lease: Lease) -> Launch:
    """Return the oracle, for checks on copies."""
    return lambda: reference.run(layout, store.narrow, list(store.tables.values()), *lease.prologue_arguments)


#: Every arm that prepares all of a step's inputs; ``none`` is what they are compared with.
ARMS = {
    "no planner": none,
    "fused": fused,
    "fused, 32 rows a program": fused_row_a_lane,
    "fused + int64 rows copied": fused_and_copy,
    "separate kernels": separate,
}
