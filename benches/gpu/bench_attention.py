"""Time decode attention inside CUDA graphs, in µs per layer, for every backend that is installed.

    python3 benches/gpu/bench_attention.py --head-dim 256 --kv-heads 2 --group 4 --page 16 --rows 1,16

Pages are shuffled and read through shuffled rows of a page table. Each backend's answer is compared with float64 first.
The floor is the bytes of KV over ``--bandwidth`` (TB/s). Beside a layer's time stand, once per step: the planner kernel
of the graph (a graph of it alone) and, for FlashInfer, the host plan that it replaces.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import fa3
import layers
import numpy as np
import torch

from mstar_resident.attention import flashinfer_fa2
from mstar_resident.attention.fa2_plan import CUDA_CORE_GROUPS, LEAST_TENSOR_CORE_GROUP
from mstar_resident.attention.flashinfer_fa2 import FlashInferAttention
from mstar_resident.attention.triton_split import TritonAttention
from mstar_resident.cli.record import write_json
from mstar_resident.engine.inputs import PagedKV
from mstar_resident.kernels.fa2_planner import Fa2Buffers

DTYPE = torch.bfloat16
SKEWED = 8192
"""Tokens of the longest rows where lengths are skewed: one row in eight; the others have at most a sixteenth."""
PLANS = 50


@dataclass(frozen=True)
class Record:
    """Hold one backend's figures at one shape."""

    backend: str
    head_dim: int
    kv_heads: int
    group: int
    page_size: int
    rows: int
    lengths: str
    layers: int
    us: float
    p10_us: float
    p90_us: float
    floor_us: float
    bandwidth_share: float
    planner_us: float
    host_plan_us: float
    relative_error: float


class Case:
    """Hold a step's rows over a pool of several layers."""

    def __init__(self, rows: int, kind: str, args: argparse.Namespace) -> None:
        device = torch.device("cuda")
        heads = args.kv_heads * args.group
        if kind == "skewed":
            lengths = torch.where(torch.arange(rows) % 8 == 0, SKEWED, torch.randint(1, SKEWED // 16, (rows,)))
        else:
            lengths = torch.full((rows,), int(kind))
        columns = -(-int(lengths.max()) // args.page) + 1
        token_bytes = 2 * args.kv_heads * args.head_dim * 2
        self.layers = layers.count(int(lengths.sum()) * token_bytes, args.touch_mib)
        self.floor_us = int(lengths.sum()) * token_bytes / args.bandwidth / 1e6
        shape = (self.layers, rows * columns + 1, 2, args.page, args.kv_heads, args.head_dim)
        self.pool = torch.empty(shape, dtype=DTYPE, device=device).normal_()
        table = torch.zeros(2 * rows + 1, columns, dtype=torch.int32, device=device)
        slots = torch.randperm(2 * rows, device=device)[:rows] + 1
        table[slots] = (torch.randperm(rows * columns, device=device) + 1).view(rows, columns).to(torch.int32)
        self.lengths = lengths
        self.paged = PagedKV(table, slots, lengths.to(device, torch.int32), None, args.page)
        self.q = torch.randn(rows, heads, args.head_dim, device=device).to(DTYPE)

    def error(self, out: torch.Tensor) -> float:
        """Return the relative error of the longest row of the first layer."""
        i = int(self.lengths.argmax())
        pages = self.paged.table[self.paged.rows[i]].long()
        k, v = self.pool[0, pages].transpose(0, 1).flatten(1, 2)[:, : int(self.lengths[i])].double().transpose(1, 2)
        kv_heads, head_dim = k.shape[0], k.shape[2]
        score = self.q[i].double().view(kv_heads, -1, head_dim) @ k.transpose(1, 2) * head_dim**-0.5
        expected = (score.softmax(-1) @ v).flatten(0, 1)
        return float((out[i].double() - expected).norm() / expected.norm())


def bench(name: str, attention, case: Case, kind: str, args: argparse.Namespace) -> Record:
    """Check and time one backend."""
    pool, q, paged = case.pool, case.q, case.paged
    attention.begin(pool[0], q.shape[1], paged)
    error = case.error(attention.decode(pool[0], q, paged))
    if not error < 6e-3:
        raise SystemExit(f"{name}, {len(q)} rows of {kind}: relative error {error}")

    def body() -> None:
        for layer in pool:
            attention.decode(layer, q, paged)

    times = layers.time_graph(body, case.layers, args.replays, args.rounds)
    planner_us = host_plan_us = 0.0
    if isinstance(attention, FlashInferAttention):
        planner_us = layers.time_graph(lambda: begin_often(attention, case), PLANS, args.replays, args.rounds)[0]
        host_plan_us = time_host_plan(attention, case)
    share = case.floor_us / times[0]
    shape = (args.head_dim, args.kv_heads, args.group, args.page, len(q), kind, case.layers)
    return Record(name, *shape, *times, case.floor_us, share, planner_us, host_plan_us, error)


def begin_often(attention: FlashInferAttention, case: Case) -> None:
    """Write the plan several times: alone it is too short to time."""
    for _ in range(PLANS):
        attention.begin(case.pool[0], case.q.shape[1], case.paged)


def time_host_plan(attention: FlashInferAttention, case: Case) -> float:
    """Return µs of the host plan that FlashInfer needs for the same step: median of several."""
    heads, layer = case.q.shape[1], case.pool[0]
    plan = attention._bucket(layer, heads, case.paged).plan
    buffers = Fa2Buffers.of(plan.bucket, case.paged.table, plan.page_size, gather=True)
    made = flashinfer_fa2.wrapper(buffers, flashinfer_fa2.float_workspace(case.q.device), plan.tensor_cores)
    lengths = case.lengths.numpy().astype(np.int64)
    indices = case.paged.table.view(-1)[: int((-(-lengths // plan.page_size)).sum())].cpu()
    took = []
    for _ in range(PLANS):
        begin = time.perf_counter_ns()
        flashinfer_fa2.plan_pages(made, heads, layer, lengths, indices)
        took.append((time.perf_counter_ns() - begin) / 1000)
    torch.cuda.synchronize()
    return statistics.median(took)


def fa2_arms(shape: tuple[int, int, int, int]) -> dict[str, Callable[[], FlashInferAttention]]:
    """Return how to make each fa2 arm: on the cores the group takes, the same gathered, and on the other cores."""
    arms: dict[str, Callable[[], FlashInferAttention]] = {}
    group = shape[0] // shape[1]
    ours = group >= LEAST_TENSOR_CORE_GROUP
    for tensor_cores in (ours, not ours) if group in CUDA_CORE_GROUPS else (ours,):
        cores = "tensor cores" if tensor_cores else "CUDA cores"
        refused = flashinfer_fa2.refusal(*shape, DTYPE, "cuda", tensor_cores=tensor_cores)
        print(f"fa2 on {cores}: {refused or 'planned in the graph, equal to its host planner'}", flush=True)
        if refused is None and tensor_cores == ours:
            arms |= {"fa2": FlashInferAttention, "fa2, gathered": partial(FlashInferAttention, gather=True)}
        elif refused is None:
            arms[f"fa2, {cores}"] = partial(FlashInferAttention, tensor_cores=tensor_cores)
    return arms


def main() -> None:
    """Run the bench, print a line for each backend, write ``--json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head-dim", type=int, default=256)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--group", type=int, default=4, help="query heads of one KV head")
    parser.add_argument("--page", type=int, default=16, help="tokens of a page")
    parser.add_argument("--rows", default="1,16,64,128", help="comma separated")
    parser.add_argument("--lengths", default="768,8192,skewed", help="comma separated: tokens of every row, or skewed")
    layers.add_arguments(parser)
    args = parser.parse_args()
    kinds = args.lengths.split(",")
    if any(kind != "skewed" and not kind.isdecimal() for kind in kinds):
        parser.error(f"--lengths: expected comma-separated ints or skewed, got {args.lengths!r}")
    if not torch.cuda.is_available():
        parser.error("no CUDA device")
    torch.manual_seed(0)
    shape = (args.kv_heads * args.group, args.kv_heads, args.head_dim, args.page)
    arms = {"triton": TritonAttention} | fa2_arms(shape) | fa3.arms()
    print(
        f"{'backend':17} {'rows':>5} {'lengths':>8} {'µs':>9} {'floor':>8} {'share':>6} {'planner':>8} {'host plan':>9}"
    )
    records = []
    for kind in kinds:
        for rows in map(int, args.rows.split(",")):
            case = Case(rows, kind, args)
            for name, make in arms.items():
                r = bench(name, make(), case, kind, args)
                records.append(r)
                print(
                    f"{r.backend:17} {r.rows:5} {r.lengths:>8} {r.us:9.2f} {r.floor_us:8.2f} {r.bandwidth_share:6.2f}"
                    f" {r.planner_us:8.2f} {r.host_plan_us:9.1f}",
                    flush=True,
                )
            del case
    if args.json:
        write_json(args.json, "bench-attention", [asdict(record) for record in records])


if __name__ == "__main__":
    main()
