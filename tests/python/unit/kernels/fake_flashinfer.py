"""A stand-in for FlashInfer's decode wrapper: its planners' arrays, and attention that knows a step by them alone."""

from __future__ import annotations

import math

import numpy as np
import torch

import fa2_host

MULTIPROCESSORS = 132
BLOCKS = 24
"""What the device runs of the kernel for CUDA cores at once: few enough that buckets fill it."""


class BatchDecodeWithPagedKVCacheWrapper:
    """Plan into an int workspace, attend item by item out of it, merge; in float64 on the CPU."""

    plans = 0
    #: Which kernels were asked for: whether for tensor cores.
    asked: frozenset[bool] = frozenset()
    #: What a release that plans otherwise does.
    more_items = 0
    longer_chunks = 1

    def __init__(self, float_workspace, layout, *, use_cuda_graph, use_tensor_cores, backend, **buffers):
        assert (layout, use_cuda_graph, backend) == ("NHD", True, "fa2")
        self.tensor_cores = use_tensor_cores
        type(self).asked |= {use_tensor_cores}
        self.indptr = buffers["paged_kv_indptr_buffer"]
        self.indices = buffers["paged_kv_indices_buffer"]
        self.last_page_len = buffers["paged_kv_last_page_len_buffer"]
        self._int_workspace_buffer = torch.zeros(1 << 20, dtype=torch.uint8)

    def plan(self, indptr, indices, last_page_len, heads, kv_heads, head_dim, page_size, *, q_data_type, kv_data_type):
        type(self).plans += 1
        if not self.tensor_cores and heads // kv_heads not in (1, 2, 3, 4, 6, 8, 16):
            raise RuntimeError(f"Unsupported group_size: {heads // kv_heads}")
        self.indptr.copy_(indptr)
        self.indices[: len(indices)].copy_(indices)
        self.last_page_len.copy_(last_page_len)
        planner, most = (fa2_host.tensor_cores, MULTIPROCESSORS) if self.tensor_cores else (fa2_host.cuda_cores, BLOCKS)
        told = planner(np.diff(indptr.numpy()).tolist(), heads, kv_heads, head_dim, page_size, most)
        workspace = np.frombuffer(told.workspace, dtype=np.uint8)
        self._int_workspace_buffer.numpy()[: len(workspace)] = workspace
        self._plan_info = told.info
        self._ints(self._places()["chunk"], 1)[0] *= self.longer_chunks
        self._plan_info[0] += self.more_items
        self.heads, self.page_size = heads, page_size

    def _places(self):
        """Return where each array begins, as the run takes it from the plan's numbers."""
        info = self._plan_info
        if self.tensor_cores:
            return {
                name: info[n] for name, n in (("request", 4), ("tile", 6), ("first", 8), ("chunk", 9), ("valid", 12))
            }
        return {name: info[n] for name, n in (("request", 3), ("tile", 4), ("first", 5), ("valid", 6), ("chunk", 7))}

    def _ints(self, offset, count):
        return self._int_workspace_buffer.numpy()[offset : offset + 4 * count].view(np.int32)

    def run(self, q, kv, *, out):
        info, at, b = self._plan_info, self._places(), len(q)
        items, split = info[0], info[-1]
        request, tile, first = (
            self._ints(at[name], n) for name, n in (("request", items), ("tile", items), ("first", b + 1))
        )
        if self.tensor_cores:
            assert info[1] == int(self._ints(info[2], 1)[0]) == b
            np.testing.assert_array_equal(self._ints(info[7], b + 1), first)
        chunk = int(self._ints(at["chunk"], 1)[0])
        valid = self._int_workspace_buffer.numpy()[at["valid"] : at["valid"] + items] if split else np.ones(items)
        indptr, last = self.indptr.numpy(), self.last_page_len.numpy()
        partial = {}
        for item in np.flatnonzero(valid).tolist():
            row = int(request[item])
            with np.errstate(over="ignore"):
                length = int((indptr[row + 1] - indptr[row] - 1) * np.int32(self.page_size) + last[row])
            begin, end = (int(tile[item]) * chunk, (int(tile[item]) + 1) * chunk) if split else (0, length)
            token = torch.arange(begin, min(end, length))
            page = self.indices[int(indptr[row]) + token // self.page_size].long()
            # Partial results of a row lie side by side; without a split they are the results.
            assert item == (first[row] + tile[item] if split else row)
            partial[item] = self._attend(q[row], kv[page, :, token % self.page_size])
        for row in range(b):
            parts = [partial[item] for item in (range(first[row], first[row + 1]) if split else (row,))]
            peak = torch.stack([top for _, top, _ in parts]).amax(0)
            weights = [torch.exp(top - peak) * total for _, top, total in parts]
            mixed = sum(weight[:, None] * value for weight, (value, _, _) in zip(weights, parts, strict=True))
            out[row] = (mixed / sum(weights)[:, None]).to(out.dtype)
        return out

    def _attend(self, q, kv):
        group = self.heads // kv.shape[2]
        k, v = kv.double().repeat_interleave(group, 2).unbind(1)
        score = torch.einsum("hd,thd->ht", q.double(), k) / math.sqrt(q.shape[-1])
        peak = score.amax(1)
        weight = torch.exp(score - peak[:, None])
        total = weight.sum(1)
        return torch.einsum("ht,thd->hd", weight, v) / total[:, None], peak, total
