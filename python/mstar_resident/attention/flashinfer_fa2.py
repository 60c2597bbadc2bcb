"""Decode attention by FlashInfer's fa2 kernels, their plan written inside the captured graph instead of by the host."""

from __future__ import annotations

import logging
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mstar_resident.attention import torch_paged
from mstar_resident.attention.fa2_plan import Fa2Plan
from mstar_resident.errors import LayoutError
from mstar_resident.kernels import kv_write
from mstar_resident.kernels.fa2_planner import Fa2Planner

if TYPE_CHECKING:
    from mstar_resident.engine.inputs import PagedKV

logger = logging.getLogger(__name__)

#: Releases whose plan is known to be the one of :class:`~mstar_resident.attention.fa2_plan.Fa2Plan`.
KNOWN = ("0.7.2.post1",)
FLOAT_WORKSPACE_BYTES = 128 * 1024 * 1024
#: Buckets that a self-test plans.
TESTED = (1, 7, 64, 200)


class FlashInferAttention:
    """Be an :class:`~mstar_resident.attention.base.Attention` on cuda: fa2 for decode, torch for prefill.

    A bucket has a FlashInfer wrapper and a planner kernel, made when the bucket first runs, which is before its
    capture. The wrapper plans once, for any lengths; every step then runs :meth:`begin`, which writes the plan of its
    own lengths to the same places. FlashInfer's kernels read the plan before they wait for the kernel in front of
    them, so :meth:`begin` comes before the first projection, never right before :meth:`decode`.

    Args:
        gather: copy the used page ids of each step instead of reading them through the page table.
    """

    #: A bucket that decodes with it needs no host plan; what cannot be planned in the graph raises.
    host_plan_free = True

    def __init__(self, *, gather: bool = False) -> None:
        self.gather = gather
        self._buckets: dict[tuple[object, ...], _Bucket] = {}
        self._float_workspace: Tensor | None = None

    def write(self, layer: Tensor, k: Tensor, v: Tensor, paged: PagedKV) -> None:
        """Store ``k`` and ``v``, ``[t, kv_heads, head_dim]`` each, at ``paged.write_loc``."""
        if paged.write_loc is None:
            raise ValueError("write_loc: expected int64[t], got None: a read-only pool is not written by a step")
        kv_write.write(layer, k, v, paged.write_loc)

    def begin(self, layer: Tensor, heads: int, paged: PagedKV) -> None:
        """Write the step's plan; see :meth:`mstar_resident.attention.base.Attention.begin`.

        Raises:
            LayoutError: this FlashInfer plans otherwise, or the shapes do not fit.
        """
        self._bucket(layer, heads, paged).planner.run(paged.lengths, paged.rows)

    def decode(self, layer: Tensor, q: Tensor, paged: PagedKV) -> Tensor:
        """Attend with one token a row: ``q`` and the result are ``[b, heads, head_dim]``."""
        out = torch.empty_like(q)
        self._bucket(layer, q.shape[1], paged).wrapper.run(q, layer, out=out)
        return out

    def prefill(self, layer: Tensor, q: Tensor, paged: PagedKV, query_start: Tensor) -> Tensor:
        """Attend with ranges of tokens: ``q`` and the result are ``[t, heads, head_dim]``."""
        return torch_paged.prefill(q, layer, paged, query_start)

    def _bucket(self, layer: Tensor, heads: int, paged: PagedKV) -> _Bucket:
        b = paged.rows.shape[0]
        key = (b, heads, layer.shape[2:], layer.dtype, paged.table.data_ptr())
        found = self._buckets.get(key)
        if found is None:
            if self._float_workspace is None:
                self._float_workspace = float_workspace(layer.device)
            found = _Bucket(b, heads, layer, paged.table, self._float_workspace, self.gather)
            self._buckets[key] = found
        return found


class _Bucket:
    """Hold one bucket's wrapper, planned once, and the planner that writes to its buffers."""

    def __init__(self, b: int, heads: int, layer: Tensor, table: Tensor, float_workspace: Tensor, gather: bool) -> None:
        _, _, page_size, kv_heads, head_dim = layer.shape
        self.plan = Fa2Plan(b, heads, kv_heads, page_size, multiprocessors(layer.device))
        self.planner = Fa2Planner(self.plan, table, gather=gather)
        self.wrapper = wrapper(self.planner, float_workspace)
        plan_pages(self.wrapper, self.plan, head_dim, layer.dtype, np.ones(b, dtype=np.int64), table.view(-1)[:0])
        told, expected = [int(n) for n in self.wrapper._plan_info], self.plan.info(head_dim)
        if told != expected:
            raise LayoutError.of("FlashInfer's plan", expected=expected, got=told, version=installed())
        self.planner.constants()


def refusal(
    heads: int, kv_heads: int, head_dim: int, page_size: int, dtype: torch.dtype, device: torch.device | str
) -> str | None:
    """Return why fa2's plan cannot be written in the graph here, None if it can; logs one line where it cannot.

    Looks at the release, then has FlashInfer's own host planner plan random lengths in several buckets and compares
    every array with the kernel's, and the outputs of both plans bit by bit. Runs kernels and waits: at start-up only.
    """
    found = _refusal(heads, kv_heads, head_dim, page_size, dtype, torch.device(device))
    if found is not None:
        logger.info("fa2 needs its host plan: %s", found)
    return found


def _refusal(
    heads: int, kv_heads: int, head_dim: int, page_size: int, dtype: torch.dtype, device: torch.device
) -> str | None:
    release = installed()
    if release not in KNOWN:
        return f"flashinfer-python {release or 'is not installed'}: known is {', '.join(KNOWN)}"
    generator = np.random.default_rng(0)
    for b in TESTED:
        pages = 64
        table = generator.permutation((2 * b + 1) * pages).reshape(2 * b + 1, pages).astype(np.int32)
        lengths = generator.integers(1, pages * page_size + 1, b)
        rows = generator.permutation(2 * b)[:b] + 1
        layer = torch.randn(table.size, 2, page_size, kv_heads, head_dim, dtype=dtype, device=device)
        q = torch.randn(b, heads, head_dim, dtype=dtype, device=device)
        on_table = torch.from_numpy(table).to(device)
        workspace = float_workspace(device)
        try:
            ours = _Bucket(b, heads, layer, on_table, workspace, gather=False)
        except LayoutError as error:
            return str(error)
        ours.planner.run(torch.from_numpy(lengths.astype(np.int32)).to(device), torch.from_numpy(rows).to(device))
        theirs = wrapper(Fa2Planner(ours.plan, on_table, gather=True), workspace)
        used = [table[row, : -(-length // page_size)] for row, length in zip(rows, lengths, strict=True)]
        indices = torch.from_numpy(np.concatenate(used)).to(device)
        plan_pages(theirs, ours.plan, head_dim, dtype, lengths, indices)
        mine, host = (ours.plan.read(w._int_workspace_buffer.cpu().numpy()) for w in (ours.wrapper, theirs))
        for name in ("request", "tile", "first", "chunk_tokens"):
            if not np.array_equal(getattr(mine, name), getattr(host, name)):
                return f"its host planner differs in {name}, {b} rows"
        outputs = [one.run(q, layer, out=torch.empty_like(q)) for one in (ours.wrapper, theirs)]
        if not torch.equal(*outputs):
            return f"outputs differ, {b} rows"
    return None


def wrapper(planner: Fa2Planner, float_workspace: Tensor) -> Any:
    """Return FlashInfer's wrapper of a captured tensor-core decode over a planner's buffers."""
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    made = BatchDecodeWithPagedKVCacheWrapper(
        float_workspace,
        "NHD",
        use_cuda_graph=True,
        use_tensor_cores=True,
        paged_kv_indptr_buffer=planner.indptr,
        paged_kv_indices_buffer=planner.indices,
        paged_kv_last_page_len_buffer=planner.last_page_len,
        backend="fa2",
    )
    made._int_workspace_buffer = planner.workspace
    return made


def plan_pages(
    made: Any, plan: Fa2Plan, head_dim: int, dtype: torch.dtype, lengths: np.ndarray, indices: Tensor
) -> None:
    """Have FlashInfer's host planner plan a step of rows whose pages follow one another in ``indices``."""
    pages = np.maximum(-(-lengths // plan.page_size), 1)
    made.plan(
        torch.from_numpy(np.concatenate([[0], np.cumsum(pages)]).astype(np.int32)),
        indices,
        torch.from_numpy((lengths - (pages - 1) * plan.page_size).astype(np.int32)),
        plan.heads,
        plan.kv_heads,
        head_dim,
        plan.page_size,
        q_data_type=dtype,
        kv_data_type=dtype,
    )


def float_workspace(device: torch.device) -> Tensor:
    """Return what all buckets' partial results share: their steps follow one another on one cuda_stream."""
    return torch.empty(FLOAT_WORKSPACE_BYTES, dtype=torch.uint8, device=device)


def multiprocessors(device: torch.device) -> int:
    """Return the device's multiprocessors, as FlashInfer asks for them."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


def installed() -> str | None:
    """Return FlashInfer's release, None if there is none."""
    try:
        return version("flashinfer-python")
    except PackageNotFoundError:
        return None
