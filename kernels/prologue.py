"""The fused prologue: one Triton kernel at the head of a captured step.

A lane owns a row of the step: it applies the row's cells to the store, reads the row with the new values (by value:
no load follows a store to the same address), fills every output, clears the cells and advances the stored lengths.
Attention lengths are gathered here, so nothing after it reads a length from the store and the advance may be part of
it. Dependent loads: slot, stored length, page; the cells load beside the slot, what is looked up beside the page. No
row is copied.

Where a device can, the kernel behind it may start before it has ended: one that is launched so waits before it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents

from mstar_resident.errors import LayoutError
from mstar_resident.kernels.early import starts_early

if TYPE_CHECKING:
    from mstar_resident.layout import RowLayout
    from mstar_resident.look_up import LookUp

#: Rows of one program, which is one warp; one row per lane, so that no lane reads what another one writes. With one row
#: for each program, the chains of dependent loads of all rows run side by side on the device's processors.
ROWS_PER_PROGRAM = 1


class StoreTensors(Protocol):
    """Hold the store: ``narrow int64[N, C]`` and a table ``int32[N, P]`` per name."""

    @property
    def narrow(self) -> Tensor:
        """The narrow columns."""

    @property
    def tables(self) -> dict[str, Tensor]:
        """The tables by name."""


class LeaseBuffers(Protocol):
    """Hold one captured graph's buffers, as :func:`run` takes them, by name."""

    @property
    def inputs(self) -> Tensor:
        """Slots, then cells."""

    @property
    def lengths(self) -> dict[str, Tensor]:
        """Attention lengths by table."""

    @property
    def write_loc(self) -> dict[str, Tensor]:
        """Write locations by append table."""

    @property
    def columns(self) -> dict[str, Tensor]:
        """Named columns."""

    @property
    def look_ups(self) -> list[LookUp]:
        """What is looked up besides."""


@triton.jit
def _override(value: tl.tensor, number: tl.tensor, mask: tl.tensor, cells: tl.tuple, K: tl.constexpr) -> tl.tuple:
    """Return the value of the row's cell whose column + 1 is ``number``, else ``value``; and whether there is one."""
    hit = mask & False
    for j in tl.static_range(K):
        here = mask & (cells[2 * j] == number)
        value = tl.where(here, cells[2 * j + 1], value)
        hit = hit | here
    return value, hit


@triton.jit
def _prologue_kernel(
    narrow: tl.tensor,
    tables: tl.tuple,
    inputs: tl.tensor,
    lengths: tl.tuple,
    write_loc: tl.tuple,
    columns: tl.tuple,
    sources: tl.tuple,
    found: tl.tuple,
    b: tl.tensor,
    C: tl.constexpr,  # narrow columns
    K: tl.constexpr,  # cells a row
    T: tl.constexpr,  # tables
    L: tl.constexpr,  # look-ups
    PAGE_SIZE: tl.constexpr,  # per table
    PAGES: tl.constexpr,  # per table: its width
    START: tl.constexpr,  # per table: its first global column
    SPAN: tl.constexpr,  # per table
    BASE: tl.constexpr,  # per named column: the table whose stored length is added, or -1
    LOOKED: tl.constexpr,  # per look-up: the named column whose value is the index into its source
    ROWS: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    if EARLY:
        gdc_launch_dependents()
    batch_idx = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = batch_idx < b
    slot = tl.load(inputs + batch_idx, mask=inside, other=0)
    live = slot != 0
    cell = inputs + b + batch_idx * (2 * K)
    row = narrow + slot * C

    # Loads first, all of them: a load does not pass a store, and a chain of them is what the kernel's time is made of.
    cells: tl.tuple = ()  # K pairs of column + 1 (0 = no cell) and value
    for j in tl.static_range(2 * K):
        cells = cells + (tl.load(cell + j, mask=inside, other=0),)
    before: tl.tuple = ()
    for c in tl.static_range(C):
        before = before + (tl.load(row + c, mask=live, other=0),)
    values: tl.tuple = ()  # the row's narrow columns with its cells applied
    hits: tl.tuple = ()
    for c in tl.static_range(C):
        value, hit = _override(before[c], c + 1, live, cells, K)
        values = values + (value,)
        hits = hits + (hit,)
    pages: tl.tuple = ()  # per table: the page that the step writes to
    for k in tl.static_range(T):
        page = slot
        if write_loc[k] is not None:
            column = values[k] // PAGE_SIZE[k]
            owned = live & (column < PAGES[k])  # past the table: the sink page
            page = tl.load(tables[k] + slot * PAGES[k] + column, mask=owned, other=0).to(tl.int64)
            page, _ = _override(page, column + 1 + START[k], owned, cells, K)
        pages = pages + (page,)
    looked: tl.tuple = ()
    for j in tl.static_range(L):
        looked = looked + (tl.load(sources[j] + values[T + LOOKED[j]], mask=inside, other=0),)

    for j in tl.static_range(L):
        tl.store(found[j] + batch_idx, looked[j], mask=inside)
    for k in tl.static_range(T):
        if write_loc[k] is not None:
            tl.store(write_loc[k] + batch_idx, pages[k] * PAGE_SIZE[k] + values[k] % PAGE_SIZE[k], mask=inside)
        tl.store(lengths[k] + batch_idx, tl.where(live, values[k] + SPAN[k], 1).to(tl.int32), mask=inside)
        tl.store(row + k, values[k] + SPAN[k], mask=live & (hits[k] | (SPAN[k] != 0)))
        for j in tl.static_range(K):
            column = cells[2 * j] - 1 - START[k]
            here = live & (column >= 0) & (column < PAGES[k])
            tl.store(tables[k] + slot * PAGES[k] + column, cells[2 * j + 1].to(tl.int32), mask=here)
    for c in tl.static_range(C - T):
        value = values[T + c]
        tl.store(row + T + c, value, mask=live & hits[T + c])
        if BASE[c] >= 0:
            value += values[BASE[c]]
        tl.store(columns[c] + batch_idx, value.to(columns[c].dtype.element_ty), mask=inside)
    for j in tl.static_range(2 * K):
        tl.store(cell + j, tl.zeros_like(slot), mask=cells[j] != 0)


def bind(
    layout: RowLayout, store: StoreTensors, lease: LeaseBuffers, rows_per_program: int = ROWS_PER_PROGRAM
) -> Callable[[], Any]:
    """Return the launch of one lease's prologue: call it with no argument, on the current cuda_stream.

    Everything is checked and laid out here. The returned function keeps the tensors alive.

    Raises:
        LayoutError: a buffer's dtype, shape, device or strides are not the layout's.
    """
    names = [table.name for table in layout.tables]
    return _bound(
        layout,
        store.narrow,
        [store.tables[name] for name in names],
        lease.inputs,
        [lease.lengths[name] for name in names],
        [lease.write_loc.get(name) for name in names],
        [lease.columns[column.name] for column in layout.columns],
        lease.look_ups,
        rows_per_program,
    )


def run(
    layout: RowLayout,
    narrow: Tensor,
    tables: Sequence[Tensor],
    inputs: Tensor,
    lengths: Sequence[Tensor],
    write_loc: Sequence[Tensor | None],
    columns: Sequence[Tensor],
    look_ups: Sequence[LookUp] = (),
) -> None:
    """Apply a step's cells, gather what its rows need, and advance their stored lengths, in one kernel.

    Args:
        layout: what the rows are made of.
        narrow: int64[N, C], cuda, contiguous, changed in place.
        tables: per table int32[N, P], cuda, contiguous, changed in place.
        inputs: int64[b + b*2*K], cuda, contiguous: slots, then cells; the cells are cleared.
        lengths: per table int32[b], overwritten: stored length + span, 1 for padding.
        write_loc: per append table int64[b], overwritten: page * page_size + offset, 0 for padding; else None.
        columns: per named column int64[b] or int32[b], overwritten: its value for the step, 0 for padding.
        look_ups: what is looked up by a column's value, 0 for padding.

    Raises:
        LayoutError: a buffer's dtype, shape, device or strides are not the layout's.
    """
    _bound(layout, narrow, tables, inputs, lengths, write_loc, columns, look_ups, ROWS_PER_PROGRAM)()


def _bound(
    layout: RowLayout,
    narrow: Tensor,
    tables: Sequence[Tensor],
    inputs: Tensor,
    lengths: Sequence[Tensor],
    write_loc: Sequence[Tensor | None],
    columns: Sequence[Tensor],
    look_ups: Sequence[LookUp],
    rows_per_program: int,
) -> Callable[[], Any]:
    K = layout.cells_per_row
    b = inputs.numel() // (1 + 2 * K)
    rows = narrow.shape[0]
    _check("narrow", narrow, torch.int64, (rows, layout.narrow_cells), narrow.device)
    _check("inputs", inputs, torch.int64, (b * (1 + 2 * K),), narrow.device)
    got = (len(tables), len(lengths), len(write_loc), len(columns))
    expected = (len(layout.tables),) * 3 + (len(layout.columns),)
    if got != expected:
        raise LayoutError.of("buffers per table, and columns", expected=expected, got=got)
    buffers = zip(layout.tables, layout.table_pages, tables, lengths, write_loc, strict=True)
    for table, pages, cells, length, location in buffers:
        _check(f"table {table.name}", cells, torch.int32, (rows, pages), narrow.device)
        _check(f"lengths of {table.name}", length, torch.int32, (b,), narrow.device)
        if location is not None:
            _check(f"write_loc of {table.name}", location, torch.int64, (b,), narrow.device)
    for column, out in zip(layout.columns, columns, strict=True):
        dtype = torch.int32 if column.kind == "index" else torch.int64
        _check(f"column {column.name}", out, dtype, (b,), narrow.device)
    for look_up in look_ups:
        _check("look-up", look_up.out, look_up.source.dtype, (b,), narrow.device)
        _check("look-up's source", look_up.source, look_up.source.dtype, tuple(look_up.source.shape[:1]), narrow.device)
    names = [column.name for column in layout.columns]
    return partial(
        _prologue_kernel[(triton.cdiv(b, rows_per_program),)],
        narrow,
        tuple(tables),
        inputs,
        tuple(lengths),
        tuple(write_loc),
        tuple(columns),
        tuple(look_up.source for look_up in look_ups),
        tuple(look_up.out for look_up in look_ups),
        b,
        C=layout.narrow_cells,
        K=K,
        T=len(layout.tables),
        L=len(look_ups),
        PAGE_SIZE=tuple(table.page_size for table in layout.tables),
        PAGES=tuple(layout.table_pages),
        START=tuple(layout.table_starts),
        SPAN=tuple(table.span for table in layout.tables),
        BASE=tuple(layout.position_table(column) if column.kind == "position" else -1 for column in layout.columns),
        LOOKED=tuple(names.index(look_up.column) for look_up in look_ups),
        ROWS=rows_per_program,
        EARLY=starts_early(narrow.device),
        num_warps=1,  # more warps would race: one could clear cells that another has not read
    )


def _check(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> None:
    if tensor.dtype != dtype or tuple(tensor.shape) != shape or tensor.device != device or not tensor.is_contiguous():
        got = (tensor.dtype, tuple(tensor.shape), tensor.device, tensor.stride())
        raise LayoutError.of(name, expected=(dtype, shape, device, "contiguous"), got=got)
