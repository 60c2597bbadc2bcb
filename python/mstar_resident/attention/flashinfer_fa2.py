"""Decode attention by FlashInfer's fa2 kernels, their plan written inside the captured graph instead of by the host."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mstar_resident.attention.fa2_plan import LEAST_TENSOR_CORE_GROUP, Fa2Plan, check
from mstar_resident.attention.triton_split import TritonAttention
from mstar_resident.errors import LayoutError
from mstar_resident.kernels import kv_write
from mstar_resident.kernels.fa2_planner import Fa2Buffers, Fa2Planner, readable_through

if TYPE_CHECKING:
    from mstar_resident.engine.inputs import PagedKV

#: Releases whose plan is known to be the one of :class:`~mstar_resident.attention.fa2_plan.Fa2Plan`.
KNOWN = ("0.7.2.post1",)
FLOAT_WORKSPACE_BYTES = 128 * 1024 * 1024
#: Buckets that a self-test plans.
TESTED = (1, 7, 64, 200)
#: Pages of a self-test's pool, so that it is small beside the engine's; rows of large buckets share some.
TESTED_PAGES = 2048


class FlashInferAttention:
    """Be an :class:`~mstar_resident.attention.base.Attention` on cuda: fa2 for decode, this package's for prefill.

    A bucket has a FlashInfer wrapper and a planner kernel, made when the bucket first runs, which is before its
    capture. The wrapper plans once, for any lengths; every step then runs :meth:`begin`, which writes the plan of its
    own lengths to the same places. FlashInfer's kernels read the plan before they wait for the kernel in front of
    them, so :meth:`begin` comes before the first projection, never right before :meth:`decode`.

    fa2 has a decode kernel for tensor cores, taken from ``LEAST_TENSOR_CORE_GROUP`` query heads for each KV head on,
    and one for CUDA cores, taken below.

    Args:
        gather: copy the used page ids of each step instead of reading them through the page table, as is done for a
            table too large for that.
        tensor_cores: whether to decode on tensor cores; by the group if None.
    """

    #: A bucket that decodes with it needs no host plan; what cannot be planned in the graph raises.
    host_plan_free = True

    def __init__(self, *, gather: bool = False, tensor_cores: bool | None = None) -> None:
        self.gather, self.tensor_cores = gather, tensor_cores
        self._buckets: dict[tuple[object, ...], _Bucket] = {}
        self._float_workspace: Tensor | None = None
        self._prefill = TritonAttention()  # a wrapper and a plan for every number of rows would be too many

    def backend(self, rows: int) -> str:
        """Name the backend."""
        return "flashinfer"

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
        return self._prefill.prefill(layer, q, paged, query_start)

    def _bucket(self, layer: Tensor, heads: int, paged: PagedKV) -> _Bucket:
        b = paged.rows.shape[0]
        key = (b, heads, layer.shape[2:], layer.dtype, paged.table.data_ptr())
        found = self._buckets.get(key)
        if found is None:
            if self._float_workspace is None:
                self._float_workspace = float_workspace(layer.device)
            gather = self.gather or not readable_through(paged.table, layer.shape[2])
            buffers = Fa2Buffers.of(b, paged.table, layer.shape[2], gather=gather)
            found = _Bucket(heads, layer, buffers, self._float_workspace, self.tensor_cores)
            self._buckets[key] = found
        return found


class _Bucket:
    """Hold one bucket's wrapper, planned once, and the planner that writes to its buffers."""

    def __init__(
        self, heads: int, layer: Tensor, buffers: Fa2Buffers, float_workspace: Tensor, tensor_cores: bool | None
    ) -> None:
        _, _, page_size, kv_heads, head_dim = layer.shape
        if tensor_cores is None:
            tensor_cores = heads >= LEAST_TENSOR_CORE_GROUP * kv_heads
        b = buffers.last_page_len.numel()
        check(b, heads, kv_heads, page_size, tensor_cores)
        self.wrapper = wrapper(buffers, float_workspace, tensor_cores)
        plan_pages(self.wrapper, heads, layer, np.ones(b, dtype=np.int64), buffers.table.view(-1)[:0])
        told = [int(n) for n in self.wrapper._plan_info]
        if tensor_cores:
            self.plan = Fa2Plan.on_tensor_cores(b, heads, kv_heads, page_size, multiprocessors(layer.device))
        else:
            self.plan = Fa2Plan.on_cuda_cores(b, heads, kv_heads, page_size, items=told[0], split=bool(told[-1]))
        expected = self.plan.info(head_dim)
        if told != expected:
            raise LayoutError.of("FlashInfer's plan", expected=expected, got=told, version=installed())
        self.planner = Fa2Planner(self.plan, buffers)


def refusal(
    heads: int,
    kv_heads: int,
    head_dim: int,
    page_size: int,
    dtype: torch.dtype,
    device: torch.device | str,
    *,
    gather: bool = False,
    tensor_cores: bool | None = None,
) -> str | None:
    """Return why fa2's plan cannot be written in the graph here, None if it can.

    Looks at the release, then has FlashInfer's own host planner plan random lengths in several buckets and compares
    every array with the kernel's, and the outputs of both plans bit by bit: for the given way to read pages and the
    given cores, or those that :class:`FlashInferAttention` would take. Runs kernels and waits: at start-up only.
    """
    release = installed()
    if release not in KNOWN:
        return f"flashinfer-python {release or 'is not installed'}: known is {', '.join(KNOWN)}"
    device = torch.device(device)
    draw = torch.Generator(device).manual_seed(0)  # torch's own generators are the node's
    generator = np.random.default_rng(0)
    for b in TESTED:
        columns, pool = 64, min((2 * b + 1) * 64, TESTED_PAGES)
        table = (generator.permutation((2 * b + 1) * columns) % pool).reshape(-1, columns).astype(np.int32)
        lengths = generator.integers(1, columns * page_size + 1, b)
        rows = generator.permutation(2 * b)[:b] + 1
        layer, q = (
            torch.randn(shape, dtype=dtype, device=device, generator=draw)
            for shape in ((pool, 2, page_size, kv_heads, head_dim), (b, heads, head_dim))
        )
        on_table = torch.from_numpy(table).to(device)
        graphs, hosts = (Fa2Buffers.of(b, on_table, page_size, gather=copied) for copied in (gather, True))
        workspace = float_workspace(device)
        try:
            ours = _Bucket(heads, layer, graphs, workspace, tensor_cores)
        except LayoutError as error:
            return str(error)
        ours.planner.run(torch.from_numpy(lengths.astype(np.int32)).to(device), torch.from_numpy(rows).to(device))
        theirs = wrapper(hosts, workspace, ours.plan.tensor_cores)
        used = [table[row, : -(-length // page_size)] for row, length in zip(rows, lengths, strict=True)]
        plan_pages(theirs, heads, layer, lengths, torch.from_numpy(np.concatenate(used)).to(device))
        mine, host = (ours.plan.read(buffers.workspace.cpu().numpy()) for buffers in (graphs, hosts))
        if (name := mine.difference(host)) is not None:
            return f"its host planner differs in {name}, {b} rows"
        outputs = [one.run(q, layer, out=torch.empty_like(q)) for one in (ours.wrapper, theirs)]
        if not torch.equal(*outputs):
            return f"outputs differ, {b} rows"
    return None


def wrapper(buffers: Fa2Buffers, float_workspace: Tensor, tensor_cores: bool) -> Any:
    """Return FlashInfer's wrapper of a captured decode over a bucket's buffers."""
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    made = BatchDecodeWithPagedKVCacheWrapper(
        float_workspace,
        "NHD",
        use_cuda_graph=True,
        use_tensor_cores=tensor_cores,
        paged_kv_indptr_buffer=buffers.indptr,
        paged_kv_indices_buffer=buffers.indices,
        paged_kv_last_page_len_buffer=buffers.last_page_len,
        backend="fa2",
    )
    made._int_workspace_buffer = buffers.workspace
    return made


def plan_pages(made: Any, heads: int, layer: Tensor, lengths: np.ndarray, indices: Tensor) -> None:
    """Have FlashInfer's host planner plan a step over ``layer``, of rows whose pages follow one another in ``indices``.

    Args:
        made: a :func:`wrapper` of as many rows as ``lengths`` has.
        heads: query heads.
        layer: ``[pages, 2, page_size, kv_heads, head_dim]``: the pool's, whose shape and dtype the plan is for.
        lengths: int64[b]: tokens that each row attends.
        indices: int32: page ids.
    """
    _, _, page_size, kv_heads, head_dim = layer.shape
    pages = np.maximum(-(-lengths // page_size), 1)
    made.plan(
        torch.from_numpy(np.concatenate([[0], np.cumsum(pages)]).astype(np.int32)),
        indices,
        torch.from_numpy((lengths - (pages - 1) * page_size).astype(np.int32)),
        heads,
        kv_heads,
        head_dim,
        page_size,
        q_data_type=layer.dtype,
        kv_data_type=layer.dtype,
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
