"""A stand-in for FlashInfer's decode wrapper: its planner's arrays, and attention that knows a step by them alone."""

from __future__ import annotations

import math

import numpy as np
import torch

from mstar_resident.attention.fa2_plan import Fa2Plan

MULTIPROCESSORS = 132


class BatchDecodeWithPagedKVCacheWrapper:
    """Plan into an int workspace, attend item by item out of it, merge; in float64 on the CPU."""

    plans = 0
    #: What a release that plans otherwise does.
    more_items = 0
    longer_chunks = 1

    def __init__(self, float_workspace, layout, *, use_cuda_graph, use_tensor_cores, backend, **buffers):
        assert (layout, use_cuda_graph, use_tensor_cores, backend) == ("NHD", True, True, "fa2")
        self.indptr = buffers["paged_kv_indptr_buffer"]
        self.indices = buffers["paged_kv_indices_buffer"]
        self.last_page_len = buffers["paged_kv_last_page_len_buffer"]
        self._int_workspace_buffer = torch.zeros(1 << 20, dtype=torch.uint8)

    def plan(self, indptr, indices, last_page_len, heads, kv_heads, head_dim, page_size, *, q_data_type, kv_data_type):
        type(self).plans += 1
        self.indptr.copy_(indptr)
        self.indices[: len(indices)].copy_(indices)
        self.last_page_len.copy_(last_page_len)
        plan = Fa2Plan(len(last_page_len), heads, kv_heads, page_size, MULTIPROCESSORS)
        lengths = (np.diff(indptr.numpy()) - 1) * page_size + last_page_len.numpy()
        arrays, at = plan.naive(lengths), plan.offsets
        workspace = self._int_workspace_buffer.numpy()
        workspace[: at["end"]] = 171  # what the pinned buffer held before

        def put(name, values, dtype=np.int32):
            raw = np.ascontiguousarray(values, dtype=dtype).view(np.uint8)
            workspace[at[name] : at[name] + len(raw)] = raw

        put("request", arrays.request)
        put("query_tile", np.zeros(len(arrays.request)))
        put("tile", arrays.tile)
        put("first", arrays.first)
        put("merge", arrays.first)
        put("chunk_tokens", [arrays.chunk_tokens * self.longer_chunks])
        put("rows", [plan.bucket])
        put("valid", np.arange(plan.items) < len(arrays.request), np.uint8)
        self._plan_info = plan.info(head_dim)
        self._plan_info[0] += self.more_items
        self.heads, self.page_size = heads, page_size

    def run(self, q, kv, *, out):
        info, workspace = self._plan_info, self._int_workspace_buffer.numpy()

        def ints(offset, count):
            return workspace[offset : offset + 4 * count].view(np.int32)

        items, b, request_at, tile_at, first_at, chunk_at, valid_at = (info[n] for n in (0, 1, 4, 6, 8, 9, 12))
        request, tile, first = ints(request_at, items), ints(tile_at, items), ints(first_at, b + 1)
        assert int(ints(info[2], 1)[0]) == b
        np.testing.assert_array_equal(ints(info[7], b + 1), first)
        chunk = int(ints(chunk_at, 1)[0])
        indptr, last = self.indptr.numpy(), self.last_page_len.numpy()
        partial = {}
        for item in np.flatnonzero(workspace[valid_at : valid_at + items]).tolist():
            row = int(request[item])
            with np.errstate(over="ignore"):
                length = int((indptr[row + 1] - indptr[row] - 1) * np.int32(self.page_size) + last[row])
            token = torch.arange(int(tile[item]) * chunk, min((int(tile[item]) + 1) * chunk, length))
            page = self.indices[int(indptr[row]) + token // self.page_size].long()
            place = first[row] + tile[item]
            assert place == item  # partial results of a row lie side by side
            partial[item] = self._attend(q[row], kv[page, :, token % self.page_size])
        for row in range(b):
            parts = [partial[item] for item in range(first[row], first[row + 1])]
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
