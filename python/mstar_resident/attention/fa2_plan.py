"""The split-KV plan of FlashInfer's fa2 tensor-core decode: where its arrays lie, what its host planner writes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mstar_resident.errors import LayoutError

Ints = npt.NDArray[np.int64]
#: Tokens that a chunk holds at least, a page where a page is larger.
LEAST_CHUNK_TOKENS = 128
BLOCKS_PER_MULTIPROCESSOR = 2
QUERY_ROWS = 16


@dataclass(frozen=True, slots=True)
class Fa2Arrays:
    """Hold what a plan of one step says."""

    request: Ints
    """int64[n]: the row of each item."""
    tile: Ints
    """int64[n]: the item's chunk within its row."""
    first: Ints
    """int64[b + 1]: each row's first item, and the number of items n."""
    chunk_tokens: int
    """Tokens of a chunk, the same for all rows."""


@dataclass(frozen=True, slots=True)
class Fa2Plan:
    """Describe the plan of one bucket: decode of one token a row, captured, split over the KV length.

    Sizes and offsets depend on the bucket and the heads, never on lengths, so that a kernel in the captured graph can
    write the contents. They are FlashInfer's own (0.7.2): the wrapper's plan of any lengths must tell the same 15
    numbers, which :meth:`info` returns, before a captured step relies on them.

    Attributes:
        bucket: rows of the step, padding included.
        heads: query heads, at most ``QUERY_ROWS`` for each KV head.
        kv_heads: KV heads.
        page_size: tokens of a page.
        multiprocessors: of the device.
    """

    bucket: int
    heads: int
    kv_heads: int
    page_size: int
    multiprocessors: int

    def __post_init__(self) -> None:
        if min(self.bucket, self.kv_heads, self.page_size, self.multiprocessors) < 1:
            raise LayoutError.of("bucket, kv_heads, page_size, multiprocessors", expected=">= 1", got=self)
        if self.heads % self.kv_heads or not 1 <= self.group <= QUERY_ROWS:
            expected = f"1 to {QUERY_ROWS} for each of {self.kv_heads} KV heads"
            raise LayoutError.of("heads", expected=expected, got=self.heads)

    @property
    def group(self) -> int:
        """Query heads of one KV head."""
        return self.heads // self.kv_heads

    @property
    def limit(self) -> int:
        """Items that run at once; a plan has no more unless the bucket has more rows."""
        return BLOCKS_PER_MULTIPROCESSOR * self.multiprocessors // self.kv_heads

    @property
    def items(self) -> int:
        """Items of the grid; those that a plan leaves over are marked as not valid."""
        return max(self.limit, -(-self.bucket * self.group // QUERY_ROWS) + self.bucket - 1)

    @property
    def least_chunk_pages(self) -> int:
        """Pages that a chunk holds at least."""
        return max(LEAST_CHUNK_TOKENS // self.page_size, 1)

    @property
    def offsets(self) -> dict[str, int]:
        """Bytes from the int workspace's start to each array, in FlashInfer's order, and to the ``end``."""
        at, found = 0, {}
        for name, size, align in (
            ("request", 4 * self.items, 16),
            ("query_tile", 4 * self.items, 16),
            ("tile", 4 * self.items, 16),
            ("first", 4 * (self.bucket + 1), 16),
            ("chunk_tokens", 4, 1),
            ("rows", 4, 16),
            ("merge", 4 * (self.bucket + 1), 16),
            ("valid", self.items, 16),
            ("end", 0, 1),
        ):
            at = -(-at // align) * align
            found[name] = at
            at += size
        return found

    def info(self, head_dim: int) -> list[int]:
        """Return the 15 numbers by which FlashInfer's run finds the arrays."""
        at = self.offsets
        partials = -(-self.items * QUERY_ROWS // self.group)
        return [
            self.items,
            self.bucket,
            at["rows"],
            QUERY_ROWS,
            at["request"],
            at["query_tile"],
            at["tile"],
            at["merge"],
            at["first"],
            at["chunk_tokens"],
            0,
            self.heads * partials * head_dim * 4,
            at["valid"],
            1,
            1,
        ]

    def chunk_pages(self, pages: Ints) -> int:
        """Return the fewest pages a chunk that give at most ``limit`` items, or those of the longest row."""
        most = int(pages.max())
        for chunk in range(self.least_chunk_pages, most):
            if int((-(-pages // chunk)).sum()) <= self.limit:
                return chunk
        return max(most, self.least_chunk_pages)

    def naive(self, lengths: npt.ArrayLike) -> Fa2Arrays:
        """Plan a step as FlashInfer's host planner does: the oracle of the kernel.

        Args:
            lengths: int[bucket]: tokens that each row attends; a row of none counts as one page.
        """
        attended = np.asarray(lengths, dtype=np.int64)
        if attended.shape != (self.bucket,):
            raise LayoutError.of("lengths", expected=f"int[{self.bucket}]", got=attended.shape)
        pages = np.maximum(-(-attended // self.page_size), 1)
        chunk = self.chunk_pages(pages)
        chunks = -(-pages // chunk)
        first = np.concatenate([[0], np.cumsum(chunks)])
        request = np.repeat(np.arange(self.bucket), chunks)
        return Fa2Arrays(request, np.arange(first[-1]) - first[request], first, chunk * self.page_size)

    def read(self, workspace: npt.NDArray[np.uint8]) -> Fa2Arrays:
        """Read a plan back from a copy of the int workspace.

        Raises:
            LayoutError: the arrays contradict each other.
        """
        at = self.offsets

        def ints(name: str, count: int) -> Ints:
            return workspace[at[name] : at[name] + 4 * count].view(np.int32).astype(np.int64)

        first = ints("first", self.bucket + 1)
        count = int(first[-1])
        valid = workspace[at["valid"] : at["valid"] + self.items]
        facts = {
            "valid": bool((valid == (np.arange(self.items) < count)).all()),
            "merge": bool((ints("merge", self.bucket + 1) == first).all()),
            "rows": int(ints("rows", 1)[0]) == self.bucket,
            "query_tile": not ints("query_tile", count).any(),
        }
        if not all(facts.values()):
            raise LayoutError.of("int workspace", expected="arrays that agree", got=facts)
        return Fa2Arrays(ints("request", count), ints("tile", count), first, int(ints("chunk_tokens", 1)[0]))
