"""FlashInfer's two host planners of a captured decode, restated in plain Python: the bytes and the numbers they give.

What they leave unwritten holds ``LEFT_OVER``, as their pinned buffer holds what an earlier plan left there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

LEFT_OVER = 171


@dataclass
class HostPlan:
    """Hold the numbers by which a run finds its arrays, and the int workspace."""

    info: list[int] = field(default_factory=list)
    workspace: bytearray = field(default_factory=bytearray)

    def put(self, values: Sequence[int], reserved: int, align: int = 16, size: int = 4) -> int:
        """Lay an array behind those before it; return where it begins."""
        self.workspace += bytes([LEFT_OVER]) * (-len(self.workspace) % align)
        at = len(self.workspace)
        for value in values:
            self.workspace += value.to_bytes(size, "little")
        self.workspace += bytes([LEFT_OVER]) * (size * (reserved - len(values)))
        return at


def work_list(pages: Sequence[int], chunk: int) -> tuple[list[int], list[int], list[int]]:
    """List the row and the chunk of every item, row after row, and where each row's items begin."""
    request, tile, first = [], [], [0]
    for row, count in enumerate(pages):
        for at in range(0, max(count, 1), chunk):
            request.append(row)
            tile.append(at // chunk)
        first.append(len(request))
    return request, tile, first


def least_chunk(pages: Sequence[int], page_size: int, limit: int) -> int:
    """Find the fewest pages a chunk that give at most ``limit`` items."""
    sizes = range(max(128 // page_size, 1), max(pages))
    found = bisect_left(sizes, True, key=lambda size: sum(-(-count // size) for count in pages) <= limit)
    return sizes.start + found


def cuda_cores(
    pages: Sequence[int], heads: int, kv_heads: int, head_dim: int, page_size: int, most_blocks: int
) -> HostPlan:
    """Plan for CUDA cores; ``most_blocks`` is what the device runs of the kernel at once, in all KV heads."""
    rows, plan = len(pages), HostPlan()
    split = rows * kv_heads < most_blocks
    items = most_blocks // kv_heads if split else rows
    chunk = least_chunk(pages, page_size, items) if split else max(pages)
    request, tile, first = work_list(pages, chunk)
    at_request, at_tile = plan.put(request, items), plan.put(tile, items)
    at_first = plan.put(first, items + 1)
    at_chunk = plan.put([chunk * page_size], 1, align=1)
    at_valid = at_weights = 0
    if split:
        at_valid = plan.put([int(item < len(request)) for item in range(items)], items, size=1)
        at_weights = -(-heads * items * head_dim * 4 // 16) * 16
    plan.info = [items, 0, at_weights, at_request, at_tile, at_first, at_valid, at_chunk, 1, int(split)]
    return plan


def tensor_cores(
    pages: Sequence[int], heads: int, kv_heads: int, head_dim: int, page_size: int, multiprocessors: int
) -> HostPlan:
    """Plan for tensor cores, one token a row."""
    rows, group, plan = len(pages), heads // kv_heads, HostPlan()
    limit = 2 * multiprocessors // kv_heads
    items = max(limit, -(-rows * group // 16) + rows - 1)
    chunk = least_chunk(pages, page_size, limit)
    request, tile, first = work_list(pages, chunk)
    at_request, at_query = plan.put(request, items), plan.put([0] * len(request), items)
    at_tile, at_first = plan.put(tile, items), plan.put(first, rows + 1)
    at_chunk = plan.put([chunk * page_size], 1, align=1)
    at_rows, at_merge = plan.put([rows], 1), plan.put(first, rows + 1)
    at_valid = plan.put([int(item < len(request)) for item in range(items)], items, size=1)
    at_weights = heads * -(-items * 16 // group) * head_dim * 4
    plan.info = [items, rows, at_rows, 16, at_request, at_query, at_tile, at_merge, at_first, at_chunk]
    plan.info += [0, at_weights, at_valid, 1, 1]
    return plan
