"""The split-KV plan of FlashInfer's fa2 decode: where its arrays lie, what its host planners write."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mstar_resident.errors import LayoutError

Ints = npt.NDArray[np.int64]
#: Tokens that a chunk holds at least, a page where a page is larger.
LEAST_CHUNK_TOKENS = 128
#: Tensor cores: blocks of the kernel that a multiprocessor runs at once, and rows of a tile of queries.
BLOCKS_PER_MULTIPROCESSOR = 2
QUERY_ROWS = 16
#: Query heads of one KV head that the kernel for CUDA cores takes.
CUDA_CORE_GROUPS = (1, 2, 3, 4, 6, 8, 16)
#: The least group for tensor cores: a smaller one leaves most rows of a tile of queries empty.
LEAST_TENSOR_CORE_GROUP = 4


def check(bucket: int, heads: int, kv_heads: int, page_size: int, tensor_cores: bool) -> None:
    """Raise where a kernel does not take a shape.

    Raises:
        LayoutError: a number is out of range, or the kernel does not take so many query heads for a KV head.
    """
    groups = range(1, QUERY_ROWS + 1) if tensor_cores else CUDA_CORE_GROUPS
    if min(bucket, kv_heads, page_size) < 1:
        raise LayoutError.of("bucket, kv_heads, page_size", expected=">= 1", got=(bucket, kv_heads, page_size))
    if heads % kv_heads or heads // kv_heads not in groups:
        expected = f"{', '.join(map(str, groups))} for each of {kv_heads} KV heads"
        raise LayoutError.of("heads", expected=expected, got=heads)


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

    def difference(self, other: Fa2Arrays) -> str | None:
        """Return the name of an array in which ``other`` differs, None if there is none."""
        names = ("request", "tile", "first", "chunk_tokens")
        return next((name for name in names if not np.array_equal(getattr(self, name), getattr(other, name))), None)


@dataclass(frozen=True, slots=True)
class Fa2Plan:
    """Describe the plan of one bucket: decode of one token a row, captured; for tensor cores or for CUDA cores.

    Sizes and offsets depend on the bucket and the heads, never on lengths, so that a kernel in the captured graph can
    write the contents. They are FlashInfer's own (0.7.2): the wrapper's plan of any lengths must tell the same numbers,
    which :meth:`info` returns, before a captured step relies on them. Made by :meth:`on_tensor_cores` or
    :meth:`on_cuda_cores`.

    Attributes:
        bucket: rows of the step, padding included.
        heads: query heads, the same number for each KV head.
        kv_heads: KV heads.
        page_size: tokens of a page.
        tensor_cores: which kernel reads it.
        split: whether rows are split into chunks; an item a row if not.
        limit: items that run at once; a plan has no more unless the bucket has more rows.
        items: items of the grid; those that a plan leaves over are marked as not valid.
    """

    bucket: int
    heads: int
    kv_heads: int
    page_size: int
    tensor_cores: bool
    split: bool
    limit: int
    items: int

    @classmethod
    def on_tensor_cores(cls, bucket: int, heads: int, kv_heads: int, page_size: int, multiprocessors: int) -> Fa2Plan:
        """Return the plan for tensor cores, always split.

        Raises:
            LayoutError: see :func:`check`.
        """
        check(bucket, heads, kv_heads, page_size, tensor_cores=True)
        limit = BLOCKS_PER_MULTIPROCESSOR * multiprocessors // kv_heads
        group = heads // kv_heads
        items = max(limit, -(-bucket * group // QUERY_ROWS) + bucket - 1)
        return cls(bucket, heads, kv_heads, page_size, tensor_cores=True, split=True, limit=limit, items=items)

    @classmethod
    def on_cuda_cores(
        cls, bucket: int, heads: int, kv_heads: int, page_size: int, *, items: int, split: bool
    ) -> Fa2Plan:
        """Return the plan for CUDA cores.

        Only FlashInfer's kernel knows how many of its blocks the device runs at once, so ``items`` and ``split`` are
        those that a plan of any lengths tells: with a split, which a bucket gets if it leaves some of those blocks
        idle, ``items`` are the blocks for each KV head; without one they are the rows.

        Raises:
            LayoutError: see :func:`check`; or ``items`` and ``split`` contradict the bucket.
        """
        check(bucket, heads, kv_heads, page_size, tensor_cores=False)
        if items < bucket or (items > bucket and not split):
            raise LayoutError.of("items", expected=f"{bucket}, or more with a split", got=(items, split))
        return cls(bucket, heads, kv_heads, page_size, tensor_cores=False, split=split, limit=items, items=items)

    @property
    def group(self) -> int:
        """Query heads of one KV head."""
        return self.heads // self.kv_heads

    @property
    def least_chunk_pages(self) -> int:
        """Pages that a chunk holds at least."""
        return max(LEAST_CHUNK_TOKENS // self.page_size, 1) if self.split else 1

    @property
    def offsets(self) -> dict[str, int]:
        """Bytes from the int workspace's start to each array, in FlashInfer's order, and to the ``end``."""
        items, firsts, chunk = 4 * self.items, 4 * (self.bucket + 1), ("chunk_tokens", 4, 1)
        if self.tensor_cores:
            arrays = [("request", items, 16), ("query_tile", items, 16), ("tile", items, 16), ("first", firsts, 16)]
            arrays += [chunk, ("rows", 4, 16), ("merge", firsts, 16)]
        else:
            arrays = [("request", items, 16), ("tile", items, 16), ("first", items + 4, 16), chunk]
        if self.split:
            arrays.append(("valid", self.items, 16))
        at, found = 0, {}
        for name, size, align in arrays:
            at = -(-at // align) * align
            found[name] = at
            at += size
        return found | {"end": at}

    def info(self, head_dim: int) -> list[int]:
        """Return the numbers by which FlashInfer's run finds the arrays: 15 for tensor cores, 10 for CUDA cores."""
        at = self.offsets
        if not self.tensor_cores:
            # Partial results first, then their weights; both only with a split.
            weights = self.heads * self.items * head_dim * 4 if self.split else 0
            places = [at["request"], at["tile"], at["first"], at.get("valid", 0), at["chunk_tokens"]]
            return [self.items, 0, -(-weights // 16) * 16, *places, 1, int(self.split)]
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
        """Return the fewest pages a chunk that give at most ``limit`` items, or those of the longest row.

        Without a split the limit is an item a row, and the chunk so the longest row's.
        """
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
        facts = {"items": self.bucket <= count <= self.items}
        if self.split:
            valid = workspace[at["valid"] : at["valid"] + self.items]
            facts["valid"] = bool((valid == (np.arange(self.items) < count)).all())
        if self.tensor_cores:
            facts["merge"] = bool((ints("merge", self.bucket + 1) == first).all())
            facts["rows"] = int(ints("rows", 1)[0]) == self.bucket
            facts["query_tile"] = not ints("query_tile", count).any()
        if not all(facts.values()):
            raise LayoutError.of("int workspace", expected="arrays that agree", got=facts)
        return Fa2Arrays(ints("request", count), ints("tile", count), first, int(ints("chunk_tokens", 1)[0]))
