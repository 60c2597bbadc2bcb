"""The plan of FlashInfer's fa2 decode, written inside the captured graph from the step's own lengths.

Its host planners, of the kernels for tensor cores and for CUDA cores, lay other arrays in another order, but look for
the same chunk, the least number of pages by which all rows together make no more items than run at once, and list the
items. Here every program looks for it anew, several candidates at a time, and lists a block of the items.
Page ids are read where they lie, through the rows of the table, or gathered to rows of their own length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mstar_resident.attention.fa2_plan import Fa2Plan
from mstar_resident.errors import LayoutError

PAGES_AT_ONCE = 1024
#: An item takes 13 bytes and a row 8: room for 20,000 items at once, or for 7,000 rows.
WORKSPACE_BYTES = 256 * 1024


#: Pages of a row up to which :func:`_ceil_div` is exact.
MOST_PAGES = 1 << 21


@triton.jit
def _ceil_div(pages: tl.tensor, size: tl.tensor) -> tl.tensor:
    """Return ceil(pages / size), int32, of 1 to MOST_PAGES pages: a product and a correction cost less than a division.

    1.5 * 2**23 leaves a float no bits for fractions: the sum is the quotient's nearest integer, in its last bits, and
    that is the floor or the ceiling, as rounding before moves a quotient below 2**21 by less than a half.
    """
    near = pages.to(tl.float32) * (1.0 / size.to(tl.float32)) + 12582912.0
    quotient = near.to(tl.int32, bitcast=True) - 0x4B400000
    return quotient + tl.where(quotient * size < pages, 1, 0)


@triton.jit
def _chunk_pages(pages: tl.tensor, LIMIT: tl.constexpr, LEAST: tl.constexpr, CANDIDATES: tl.constexpr) -> tl.tensor:
    """Return the least chunk that gives at most LIMIT items; the longest row's pages if none below does."""
    low = tl.min(pages, 0) * 0 + LEAST
    high = tl.maximum(tl.max(pages, 0), LEAST)
    nth = tl.arange(0, CANDIDATES) + 1
    while low < high:
        tried = low + (high - low) * nth // (CANDIDATES + 1)
        items = tl.sum(_ceil_div(pages[:, None], tried[None, :]), 0)
        fits = items <= LIMIT
        low = tl.maximum(low, tl.max(tl.where(fits, 0, tried + 1), 0))
        high = tl.min(tl.where(fits, tried, high), 0)
    return low


@triton.jit
def _plan_kernel(
    lengths: tl.tensor,
    rows: tl.tensor,
    table: tl.tensor,
    request: tl.tensor,
    tile: tl.tensor,
    first: tl.tensor,
    chunk_tokens: tl.tensor,
    merge: tl.tensor | None,
    valid: tl.tensor | None,
    indptr: tl.tensor,
    indices: tl.tensor,
    last_page_len: tl.tensor,
    table_row: tl.tensor,
    table_cells: tl.tensor,
    B: tl.constexpr,
    ROWS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    LIMIT: tl.constexpr,
    LEAST: tl.constexpr,
    ITEMS: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    CANDIDATES: tl.constexpr,
    GATHER: tl.constexpr,
    WIDE: tl.constexpr,
) -> None:
    part = tl.program_id(0)
    i = tl.arange(0, ROWS)
    inside = i < B
    length = tl.load(lengths + i, mask=inside, other=1)
    pages = tl.where(inside, tl.maximum((length + PAGE_SIZE - 1) // PAGE_SIZE, 1), 0)
    if part >= PARTS:  # gathers the pages of one row
        r = part - PARTS
        start = tl.sum(tl.where(i < r, pages, 0), 0)
        count = tl.sum(tl.where(i == r, pages, 0), 0)
        source = table + tl.load(rows + r).to(tl.int64) * table_row
        for at in range(0, count, WIDE):
            column = at + tl.arange(0, WIDE)
            page = tl.load(source + column, mask=column < count)
            tl.store(indices + start + column, page, mask=column < count)
        return
    chunk = _chunk_pages(pages, LIMIT, LEAST, CANDIDATES)
    chunks = (pages + chunk - 1) // chunk
    ends = tl.cumsum(chunks, 0)
    total = tl.sum(chunks, 0)
    if part == 0:
        tl.store(first + i, ends - chunks, mask=inside)
        tl.store(first + B, total)
        tl.store(chunk_tokens, chunk * PAGE_SIZE)
        if merge is not None:  # for tensor cores
            tl.store(merge + i, ends - chunks, mask=inside)
            tl.store(merge + B, total)
        if GATHER:
            page_ends = tl.cumsum(pages, 0)
            tl.store(indptr + i, page_ends - pages, mask=inside)
            tl.store(indptr + B, tl.sum(pages, 0))
            tl.store(last_page_len + i, length - (pages - 1) * PAGE_SIZE, mask=inside)
        else:
            # The kernel takes a row's tokens from (pages - 1) * PAGE_SIZE + last_page_len, so that a row may lie
            # anywhere and the last page's tokens, even negative, make up for it. Two neighbours on one cell count as
            # empty: rows of padding take the trash row's first two cells in turn.
            row = tl.load(rows + i, mask=inside, other=0).to(tl.int32)
            start = row * table_row + tl.where(row == 0, i % 2, 0)
            after = tl.load(rows + i + 1, mask=i + 1 < B, other=0).to(tl.int32)
            end = tl.where(i + 1 < B, after * table_row + tl.where(after == 0, (i + 1) % 2, 0), table_cells)
            tl.store(indptr + i, start, mask=inside)
            tl.store(indptr + B, table_cells)
            tl.store(last_page_len + i, length - (end - start - 1) * PAGE_SIZE, mask=inside)
    item = part * BLOCK + tl.arange(0, BLOCK)
    before = (ends[:, None] <= item[None, :]) & inside[:, None]
    owner = tl.sum(tl.where(before, 1, 0), 0)
    begin = tl.max(tl.where(before, ends[:, None], 0), 0)
    live = item < total
    tl.store(request + item, tl.where(live, owner, 0), mask=item < ITEMS)
    tl.store(tile + item, tl.where(live, item - begin, 0), mask=item < ITEMS)
    if valid is not None:  # with a split
        tl.store(valid + item, live.to(tl.uint8), mask=item < ITEMS)


@dataclass(frozen=True, slots=True)
class Fa2Buffers:
    """Hold what FlashInfer's wrapper reads of one bucket over one pool, at fixed addresses on the table's device.

    Attributes:
        table: int32[R, P], contiguous: the pool's page table, row 0 the trash row.
        indptr: int32[bucket + 1]: where each row's page ids begin in ``indices``.
        last_page_len: int32[bucket]: tokens of each row's last page.
        indices: int32 page ids: the table itself, or int32[bucket * P] where they are gathered.
        workspace: uint8[WORKSPACE_BYTES]: FlashInfer's int workspace.
        gather: whether a step copies the used cells of its rows instead of reading them through the table.
    """

    table: Tensor
    indptr: Tensor
    last_page_len: Tensor
    indices: Tensor
    workspace: Tensor
    gather: bool

    @classmethod
    def of(cls, bucket: int, table: Tensor, page_size: int, *, gather: bool = False) -> Fa2Buffers:
        """Return buffers for ``bucket`` rows.

        Raises:
            LayoutError: a shape or dtype does not fit, or the table is too large to be read through.
        """
        if table.dtype != torch.int32 or table.dim() != 2 or not table.is_contiguous():
            raise LayoutError.of("table", expected="int32[R, P], contiguous", got=(table.dtype, tuple(table.shape)))
        if table.shape[1] > MOST_PAGES:
            raise LayoutError.of("table", expected=f"at most {MOST_PAGES} columns", got=tuple(table.shape))
        if not gather and not readable_through(table, page_size):
            expected = "2 columns or more, and fewer than 2^31 tokens in all its cells; else gather"
            raise LayoutError.of("table", expected=expected, got=tuple(table.shape))
        indices = table.view(-1)
        if gather:
            indices = torch.zeros(bucket * table.shape[1], dtype=torch.int32, device=table.device)
        return cls(
            table,
            torch.zeros(bucket + 1, dtype=torch.int32, device=table.device),
            torch.ones(bucket, dtype=torch.int32, device=table.device),
            indices,
            torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=table.device),
            gather,
        )


def readable_through(table: Tensor, page_size: int) -> bool:
    """Whether fa2 can read pages where they lie in a table: its offsets are 32 bits, in tokens."""
    return table.numel() * page_size < 2**31 and table.shape[1] >= 2


class Search(NamedTuple):
    """Say how the planner's programs look for the chunk and list the items; every choice gives the same plan."""

    warps: int
    candidates: int  # chunk sizes tried at once
    items: int  # that a program lists


#: The one that was least slow over lengths at 128 rows, and within 2% of the best below, on an H200.
SEARCH = Search(4, 32, 32)


class Fa2Planner:
    """Write a bucket's plan to its buffers; one launch in the captured graph.

    Args:
        plan: the bucket's plan.
        buffers: the bucket's. What no step changes is written here: a host plan after it would be in the way.

    Raises:
        LayoutError: the buffers are another bucket's, or the plan does not fit into the workspace.
    """

    def __init__(self, plan: Fa2Plan, buffers: Fa2Buffers, *, _search: Search = SEARCH) -> None:
        at = plan.offsets
        if buffers.last_page_len.numel() != plan.bucket:
            raise LayoutError.of("buffers", expected=f"of {plan.bucket} rows", got=buffers.last_page_len.numel())
        if buffers.workspace.numel() < at["end"]:
            raise LayoutError.of("workspace", expected=f"{at['end']} bytes", got=buffers.workspace.numel())
        self.plan, self.buffers = plan, buffers
        self._search = _search
        ints = {name: buffers.workspace[at[name] :].view(torch.int32) for name in at if name != "end"}
        valid = buffers.workspace[at["valid"] :] if plan.split else None
        self._arrays = (
            *(ints[name] for name in ("request", "tile", "first", "chunk_tokens")),
            ints.get("merge"),
            valid,
        )
        if plan.tensor_cores:
            ints["query_tile"][: plan.items] = 0
            ints["rows"][:1] = plan.bucket

    def run(self, lengths: Tensor, rows: Tensor) -> None:
        """Write the plan of a step. Does not wait.

        Args:
            lengths: int32[bucket]: tokens that each row attends, 1 for padding.
            rows: int64[bucket] or int32[bucket]: the table row of each batch row, 0 for padding.
        """
        plan, buffers = self.plan, self.buffers
        parts = triton.cdiv(plan.items, self._search.items)
        _plan_kernel[(parts + (plan.bucket if buffers.gather else 0),)](
            lengths,
            rows,
            buffers.table,
            *self._arrays,
            buffers.indptr,
            buffers.indices,
            buffers.last_page_len,
            buffers.table.stride(0),
            buffers.table.numel(),
            B=plan.bucket,
            ROWS=triton.next_power_of_2(plan.bucket),
            PAGE_SIZE=plan.page_size,
            LIMIT=plan.limit,
            LEAST=plan.least_chunk_pages,
            ITEMS=plan.items,
            BLOCK=self._search.items,
            CANDIDATES=self._search.candidates,
            PARTS=parts,
            GATHER=buffers.gather,
            WIDE=PAGES_AT_ONCE,
            num_warps=self._search.warps,
        )
