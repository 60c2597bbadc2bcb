"""Split-KV decode attention over paged KV, read through the rows of a step; it needs no host plan.

The grid is fixed at capture: ``programs`` items times the KV heads. Every program reads the step's lengths, shares
the tiles of all rows out over the items in the same way, and takes its own item, so that a long row gets more of them
than a short one. A row with one item is written at once; the partials of the others are merged by a second kernel:
one that the last item of a row runs reads as much through one multiprocessor, and lost to it at few rows.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mstar_resident.errors import LayoutError
from mstar_resident.kernels.early import options, starts_early
from mstar_resident.kernels.paged_launch import LAUNCHES, Launch, launch_of

#: Query heads of one KV head that a program holds: the least rows of a matrix product.
GROUP = tl.constexpr(16)
#: Chunk sizes tried: from an even share of all tiles to twice that.
TRIES = tl.constexpr(8)


@triton.jit
def _take(
    lengths: tl.tensor, b: tl.tensor, item: tl.tensor, SHARES: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr
) -> tl.tuple:
    """Return the row of an item, the row's first item, and its number of items: 0 for an item of no row."""
    if ROWS == 1:
        tiles = tl.maximum((tl.load(lengths) + TILE - 1) // TILE, 1)
        size = (tiles + SHARES - 1) // SHARES
        count = (tiles + size - 1) // size
        return item * 0, item * 0, tl.where(item < count, count, 0)
    i = tl.arange(0, ROWS)
    tiles = tl.maximum((tl.load(lengths + i, mask=i < b, other=0) + TILE - 1) // TILE, 1)
    tiles = tl.where(i < b, tiles, 0)
    total = tl.sum(tiles, 0)
    tries = tl.arange(0, TRIES) + (TRIES - 1)
    sizes = (total * tries + (SHARES * (TRIES - 1) - 1)) // (SHARES * (TRIES - 1))
    items = tl.sum((tiles[:, None] + sizes[None, :] - 1) // sizes[None, :], 0)
    # All items at once take as long as the longest; of more items than can run at once, some wait for an even share.
    cost = sizes + tl.where(items > SHARES, total // SHARES, 0)
    # One reduction instead of several: each costs a barrier, in every layer.
    best = tl.min((cost.to(tl.int64) << 32) | sizes, 0)
    size = best.to(tl.int32)
    counts = (tiles + size - 1) // size
    ends = tl.cumsum(counts, 0)
    begins = ends - counts
    share = (i.to(tl.int64) << 40) | (begins.to(tl.int64) << 20) | counts  # 2**23 rows, 2**20 items
    share = tl.sum(tl.where((begins <= item) & (item < ends), share, 0), 0)
    return (share >> 40).to(tl.int32), ((share >> 20) & 0xFFFFF).to(tl.int32), (share & 0xFFFFF).to(tl.int32)


@triton.jit
def _page(
    pages: tl.tensor, tile: tl.tensor, length: tl.tensor, P: tl.tensor, PAGE_SIZE: tl.constexpr, TILE: tl.constexpr
) -> tl.tensor:
    """Return the page of a tile, int64, or the pages of its tokens; the sink past the length or the table."""
    token = tile * TILE
    if PAGE_SIZE % TILE != 0:
        token += tl.arange(0, TILE)
    column = token // PAGE_SIZE
    return tl.load(pages + column, mask=(token < length) & (column < P), other=0).to(tl.int64)


# A mixed step of any number of rows, which begin anywhere, meets no compiler.
@triton.jit(do_not_specialize=["b"], do_not_specialize_on_alignment=["rows", "lengths"])
def _attend_kernel(
    q: tl.tensor,
    kv: tl.tensor,
    table: tl.tensor,
    rows: tl.tensor,
    lengths: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    peak: tl.tensor,
    weight: tl.tensor,
    items: tl.tensor,
    b: tl.tensor,
    scale_log2: tl.tensor,
    q_row: tl.tensor,
    q_head: tl.tensor,
    out_row: tl.tensor,
    out_head: tl.tensor,
    kv_page: tl.tensor,
    kv_side: tl.tensor,
    kv_token: tl.tensor,
    kv_head: tl.tensor,
    table_row: tl.tensor,
    P: tl.tensor,
    G: tl.constexpr,
    D: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    SHARES: tl.constexpr,
    ROWS: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    head = tl.program_id(0)  # the fastest: an item of no row waits behind every item of one
    item = tl.program_id(1)
    kv_heads = tl.num_programs(0)
    row, first, count = _take(lengths, b, item, SHARES, TILE, ROWS)
    if count == 0:
        return
    length = tl.load(lengths + row)
    pages = table + tl.load(rows + row).to(tl.int64) * table_row
    chunk = item - first
    tiles = tl.maximum((length + TILE - 1) // TILE, 1)
    tile_begin = tiles * chunk // count
    tile_end = tiles * (chunk + 1) // count
    one = (chunk == 0) & (head == 0)
    tl.store(items + 2 * row, first, mask=one)
    tl.store(items + 2 * row + 1, count, mask=one)

    g = tl.arange(0, GROUP)
    d = tl.arange(0, D)
    n = tl.arange(0, TILE)
    in_group = (g < G)[:, None]
    q_at = q + row.to(tl.int64) * q_row + (head * G + g)[:, None] * q_head + d[None, :]
    query = tl.load(q_at, mask=in_group, other=0.0)
    kv_at = kv + head.to(tl.int64) * kv_head + d[None, :]

    highest = tl.full([GROUP], float("-inf"), tl.float32)
    total = tl.zeros([GROUP], tl.float32)
    acc = tl.zeros([GROUP, D], tl.float32)
    page = _page(pages, tile_begin, length, P, PAGE_SIZE, TILE)
    for tile in range(tile_begin, tile_end):
        token = tile * TILE + n
        inside = token < length
        offset = page * kv_page + (token % PAGE_SIZE) * kv_token
        page = _page(pages, tile + 1, length, P, PAGE_SIZE, TILE)  # ahead: keys wait for no other load
        at = kv_at + offset[:, None]
        key = tl.load(at, mask=inside[:, None], other=0.0)
        value = tl.load(at + kv_side, mask=inside[:, None], other=0.0)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale_log2
        score = tl.where(inside[None, :], score, float("-inf"))
        top = tl.maximum(highest, tl.max(score, 1))
        base = tl.where(top == float("-inf"), 0.0, top)  # a row of no tokens
        p = tl.exp2(score - base[:, None])
        fade = tl.exp2(highest - base)
        total = total * fade + tl.sum(p, 1)
        acc = tl.dot(p.to(value.dtype), value, acc * fade[:, None], input_precision="ieee")
        highest = top

    out_at = out + row.to(tl.int64) * out_row
    if count == 1:
        result = acc / tl.where(total > 0.0, total, 1.0)[:, None]
        at = (head * G + g)[:, None] * out_head + d[None, :]
        tl.store(out_at + at, result.to(out.dtype.element_ty), mask=in_group)
    else:
        part = (item * kv_heads + head) * G + g
        tl.store(partial + part[:, None] * D + d[None, :], acc, mask=in_group)
        tl.store(peak + part, highest, mask=g < G)
        tl.store(weight + part, total, mask=g < G)


@triton.jit
def _merge_kernel(
    partial: tl.tensor,
    peak: tl.tensor,
    weight: tl.tensor,
    items: tl.tensor,
    out: tl.tensor,
    out_row: tl.tensor,
    out_head: tl.tensor,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_ITEMS: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    if EARLY:
        gdc_wait()  # first: attention that followed could take multiprocessors unevenly beside the one that still runs
        gdc_launch_dependents()
    row = tl.program_id(0)
    head = tl.program_id(1)
    heads = tl.num_programs(1)
    first = tl.load(items + 2 * row)
    count = tl.load(items + 2 * row + 1)
    if count == 1:
        return
    d = tl.program_id(2) * BLOCK_D + tl.arange(0, BLOCK_D)
    highest = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    acc = tl.zeros([BLOCK_D], tl.float32)
    for begin in range(0, count, BLOCK_ITEMS):
        t = begin + tl.arange(0, BLOCK_ITEMS)
        at = (first + t) * heads + head
        values = tl.load(partial + at[:, None] * D + d[None, :], mask=(t < count)[:, None], other=0.0)
        peaks = tl.load(peak + at, mask=t < count, other=float("-inf"))
        weights = tl.load(weight + at, mask=t < count, other=0.0)
        top = tl.maximum(highest, tl.max(peaks, 0))  # the first item of a row always has a token
        share = tl.exp2(peaks - top)
        fade = tl.exp2(highest - top)
        total = total * fade + tl.sum(share * weights, 0)
        acc = acc * fade + tl.sum(share[:, None] * values, 0)
        highest = top
    out_at = out + row.to(tl.int64) * out_row + head * out_head + d
    tl.store(out_at, (acc / total).to(out.dtype.element_ty))


def refusal(heads: int, kv_heads: int, head_dim: int) -> LayoutError | None:
    """Return what :class:`PagedDecode` does not take of a model's shape, None if it takes it."""
    if head_dim not in LAUNCHES:
        return LayoutError.of("head_dim", expected=f"one of {list(LAUNCHES)}", got=head_dim)
    if kv_heads < 1 or heads % kv_heads or not 1 <= heads // kv_heads <= GROUP.value:
        return LayoutError.of("heads", expected=f"1 to {GROUP.value} for each of {kv_heads} KV heads", got=heads)
    return None


class PagedDecode:
    """Attend with one token a row; hold the workspace of one bucket, which serves every layer of a step.

    Args:
        rows: most rows of a step, the bucket.
        heads: query heads, at most 16 for each KV head.
        kv_heads: KV heads.
        head_dim: 64, 128 or 256.
        page_size: tokens of a page.
        max_length: most tokens that a row attends.
        dtype: of queries, pool and output: bfloat16 or float16 (float32 where kernels are interpreted).
        device: where all of it lives.
        scale: of the scores; ``head_dim ** -0.5`` if None.
        multiprocessors: how many the grid is sized for; the device's if None.
        _launch: of the tuner: in place of the one that :data:`LAUNCHES` has.

    Raises:
        LayoutError: a size is not supported.
    """

    def __init__(
        self,
        rows: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        page_size: int,
        max_length: int,
        dtype: torch.dtype,
        device: torch.device | str,
        *,
        scale: float | None = None,
        multiprocessors: int | None = None,
        _launch: Launch | None = None,
    ) -> None:
        if (refused := refusal(heads, kv_heads, head_dim)) is not None:
            raise refused
        if min(rows, page_size, max_length) < 1:
            raise LayoutError.of("rows, page_size, max_length", expected=">= 1", got=(rows, page_size, max_length))
        device = torch.device(device)
        if multiprocessors is None:
            multiprocessors = (
                torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
            )
        self.rows, self.heads, self.kv_heads, self.head_dim = rows, heads, kv_heads, head_dim
        self.page_size, self.max_length, self.dtype, self.device = page_size, max_length, dtype, device
        self._launch = _launch or launch_of(head_dim, rows)
        at_once = multiprocessors * self._launch.programs // kv_heads
        #: Items of an even share. All chunk sizes tried are at least that share, so the items are at most shares + b.
        self._shares = max(1, min(at_once, rows * triton.cdiv(max_length, self._launch.tile)))
        self.programs = self._shares + rows
        self._scale_log2 = (head_dim**-0.5 if scale is None else scale) * math.log2(math.e)
        self._partial = torch.zeros(self.programs, heads, head_dim, dtype=torch.float32, device=device)
        self._peak = torch.zeros(self.programs, heads, dtype=torch.float32, device=device)
        self._weight = torch.zeros(self.programs, heads, dtype=torch.float32, device=device)
        self._items = torch.zeros(rows, 2, dtype=torch.int32, device=device)

    def run(self, q: Tensor, kv_layer: Tensor, table: Tensor, rows: Tensor, lengths: Tensor, out: Tensor) -> None:
        """Attend with ``q`` over ``lengths[i]`` tokens of the pages in ``table[rows[i]]``. Does not wait.

        Args:
            q: dtype[b, heads, head_dim], last stride 1; b is at most the bucket's rows.
            kv_layer: dtype[pages, 2, page_size, kv_heads, head_dim], last stride 1: keys, then values.
            table: int32[R, P], last stride 1: page ids, every one valid.
            rows: int64[b] or int32[b]: the table row of each batch row.
            lengths: int32[b]: tokens attended; a row of none gets zeros.
            out: dtype[b, heads, head_dim], last stride 1, overwritten.

        Raises:
            LayoutError: a shape or dtype is not what the workspace was built for.
        """
        b = q.shape[0]
        heads = (self.heads, self.head_dim)
        self._check("q", q, self.dtype, (b, *heads))
        self._check("out", out, self.dtype, (b, *heads))
        self._check("kv_layer", kv_layer, self.dtype, (-1, 2, self.page_size, self.kv_heads, self.head_dim))
        self._check("table", table, torch.int32, (-1, -1))
        self._check("lengths", lengths, torch.int32, (b,))
        self._check("rows", rows, rows.dtype if rows.dtype == torch.int32 else torch.int64, (b,))
        if not 1 <= b <= self.rows:
            raise LayoutError.of("rows of the step", expected=f"1..{self.rows}", got=b)
        launch, early = self._launch, options(starts_early(self.device))
        _attend_kernel[(self.kv_heads, self.programs)](
            q,
            kv_layer,
            table,
            rows,
            lengths,
            out,
            self._partial,
            self._peak,
            self._weight,
            self._items,
            b,
            self._scale_log2,
            *q.stride()[:2],
            *out.stride()[:2],
            *kv_layer.stride()[:4],
            table.stride(0),
            table.shape[1],
            G=self.heads // self.kv_heads,
            D=self.head_dim,
            PAGE_SIZE=self.page_size,
            TILE=launch.tile,
            SHARES=self._shares,
            ROWS=triton.next_power_of_2(self.rows),
            num_warps=launch.warps,
            num_stages=launch.stages,
            **early,
        )
        if self._shares == 1:
            return  # every chunk size tried holds all tiles
        few = self.rows <= 8
        block_d = 64 if few else self.head_dim
        _merge_kernel[(b, self.heads, self.head_dim // block_d)](
            self._partial,
            self._peak,
            self._weight,
            self._items,
            out,
            *out.stride()[:2],
            D=self.head_dim,
            BLOCK_D=block_d,
            BLOCK_ITEMS=min(triton.next_power_of_2(self._shares), 64 if few else 8),
            num_warps=4,
            **early,
        )

    def _check(self, name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        fits = tensor.dim() == len(shape) and all(
            want in (-1, size) for want, size in zip(shape, tensor.shape, strict=True)
        )
        if not fits or tensor.dtype != dtype or tensor.stride(-1) != 1 or tensor.device.type != self.device.type:
            got = (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device)
            raise LayoutError.of(name, expected=(dtype, shape, self.device), got=got)
