"""The plan of FlashInfer's fa2 decode, written inside the captured graph from the step's own lengths.

Its host planner looks for the least chunk of pages by which all rows together make no more items than run at once, and
lists the items. Here every program looks for it anew, several candidates at a time, and lists a block of the items.
Page ids are read where they lie, through the rows of the table, or gathered to rows of their own length.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mstar_resident.attention.fa2_plan import Fa2Plan
from mstar_resident.errors import LayoutError

#: Chunk sizes tried at once.
CANDIDATES = tl.constexpr(32)
ITEMS_PER_PROGRAM = 128
PAGES_AT_ONCE = 1024


@triton.jit
def _chunk_pages(pages: tl.tensor, LIMIT: tl.constexpr, LEAST: tl.constexpr) -> tl.tensor:
    """Return the least chunk that gives at most LIMIT items; the longest row's pages if none below does."""
    low = tl.min(pages, 0) * 0 + LEAST
    high = tl.maximum(tl.max(pages, 0), LEAST)
    nth = tl.arange(0, CANDIDATES) + 1
    while low < high:
        tried = low + (high - low) * nth // (CANDIDATES + 1)
        items = tl.sum((pages[:, None] + tried[None, :] - 1) // tried[None, :], 0)
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
    merge: tl.tensor,
    chunk_tokens: tl.tensor,
    valid: tl.tensor,
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
    chunk = _chunk_pages(pages, LIMIT, LEAST)
    chunks = (pages + chunk - 1) // chunk
    ends = tl.cumsum(chunks, 0)
    total = tl.sum(chunks, 0)
    if part == 0:
        tl.store(first + i, ends - chunks, mask=inside)
        tl.store(merge + i, ends - chunks, mask=inside)
        tl.store(first + B, total)
        tl.store(merge + B, total)
        tl.store(chunk_tokens, chunk * PAGE_SIZE)
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
    tl.store(valid + item, live.to(tl.uint8), mask=item < ITEMS)


class Fa2Planner:
    """Write a bucket's plan at fixed addresses, for one pool; one launch in the captured graph.

    Attributes:
        workspace: uint8[plan.offsets["end"]], on the table's device: FlashInfer's int workspace.
        indptr: int32[bucket + 1]; ``last_page_len``: int32[bucket]; ``indices``: int32 page ids, the table itself
            unless they are gathered, then int32[bucket * P].

    Args:
        plan: the bucket's plan.
        table: int32[R, P], contiguous: the pool's page table, row 0 the trash row.
        gather: copy the used cells of the step's rows instead of reading them through the table.
        workspace: uint8, at least ``plan.offsets["end"]`` bytes; its own if None.

    Raises:
        LayoutError: a shape or dtype does not fit, or the table is too large to be read through.
    """

    def __init__(self, plan: Fa2Plan, table: Tensor, *, gather: bool = False, workspace: Tensor | None = None) -> None:
        size, at = plan.offsets["end"], plan.offsets
        if table.dtype != torch.int32 or table.dim() != 2 or not table.is_contiguous():
            raise LayoutError.of("table", expected="int32[R, P], contiguous", got=(table.dtype, tuple(table.shape)))
        if not gather and (table.numel() * plan.page_size >= 2**31 or table.shape[1] < 2):
            expected = "2 columns or more, and fewer than 2^31 tokens in all its cells; else gather"
            raise LayoutError.of("table", expected=expected, got=tuple(table.shape))
        if workspace is None:
            workspace = torch.zeros(-(-size // 16) * 16, dtype=torch.uint8, device=table.device)
        if workspace.dtype != torch.uint8 or workspace.numel() < size or workspace.device != table.device:
            expected = f"uint8[{size} or more], {table.device}"
            raise LayoutError.of("workspace", expected=expected, got=(workspace.dtype, workspace.numel()))
        self.plan, self.workspace, self.gather, self._table = plan, workspace, gather, table
        self.indptr = torch.zeros(plan.bucket + 1, dtype=torch.int32, device=table.device)
        self.last_page_len = torch.ones(plan.bucket, dtype=torch.int32, device=table.device)
        self.indices = table.view(-1)
        if gather:
            self.indices = torch.zeros(plan.bucket * table.shape[1], dtype=torch.int32, device=table.device)
        self._ints = {
            name: workspace[at[name] :].view(torch.int32) for name in at if at[name] % 4 == 0 and at[name] < size
        }
        self._valid = workspace[at["valid"] :]
        self.constants()

    def constants(self) -> None:
        """Write what no step changes; anew where the workspace was planned to in the meantime."""
        self._ints["query_tile"][: self.plan.items] = 0
        self._ints["rows"][:1] = self.plan.bucket

    def run(self, lengths: Tensor, rows: Tensor) -> None:
        """Write the plan of a step. Does not wait.

        Args:
            lengths: int32[bucket]: tokens that each row attends, 1 for padding.
            rows: int64[bucket] or int32[bucket]: the table row of each batch row, 0 for padding.
        """
        plan, ints = self.plan, self._ints
        parts = triton.cdiv(plan.items, ITEMS_PER_PROGRAM)
        _plan_kernel[(parts + (plan.bucket if self.gather else 0),)](
            lengths,
            rows,
            self._table,
            ints["request"],
            ints["tile"],
            ints["first"],
            ints["merge"],
            ints["chunk_tokens"],
            self._valid,
            self.indptr,
            self.indices,
            self.last_page_len,
            self._table.stride(0),
            self._table.numel(),
            B=plan.bucket,
            ROWS=triton.next_power_of_2(plan.bucket),
            PAGE_SIZE=plan.page_size,
            LIMIT=plan.limit,
            LEAST=plan.least_chunk_pages,
            ITEMS=plan.items,
            BLOCK=ITEMS_PER_PROGRAM,
            PARTS=parts,
            GATHER=self.gather,
            WIDE=PAGES_AT_ONCE,
            num_warps=4 if plan.bucket <= 64 else 8,
        )
