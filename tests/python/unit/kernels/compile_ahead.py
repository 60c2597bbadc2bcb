"""Compile every kernel for a GPU that is not here: ``python compile_ahead.py cuda 90`` or ``hip gfx942``.

Interpreting does not find what the compiler refuses. A driver that only names its target stands in for the real one,
and a launch ends after compiling. Prints one line per kernel: name, warps, bytes of shared memory.
"""

# ruff: noqa: E402  (the package may need a stand-in first)
from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from native_free import prepare

prepare()

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from mstar_resident.attention.fa2_plan import Fa2Plan
from mstar_resident.kernels import (
    few_rows,
    fused_norm_rope,
    gdn_decode,
    hand_over,
    kv_write,
    paged_decode,
    prologue,
    shadow,
)
from mstar_resident.kernels.fa2_planner import Fa2Buffers, Fa2Planner
from mstar_resident.kernels.few_rows_launch import fuses_norm
from mstar_resident.kernels.gdn_launch import Launch
from mstar_resident.kernels.paged_decode import PagedDecode
from mstar_resident.layout import Column, KVTable, RowLayout
from mstar_resident.look_up import LookUp

SEEN = []


class Target:
    """Name a target as the active driver does."""

    def __init__(self, backend: str, arch: str) -> None:
        self.target = GPUTarget(backend, int(arch) if arch.isdigit() else arch, 32 if backend == "cuda" else 64)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0


def compile_only(launch):
    """Return a ``JITFunction.run`` that compiles and does not launch."""

    def run(self, *args, grid, warmup, **kwargs):
        kernel = launch(self, *args, grid=grid, warmup=True, **kwargs)
        SEEN.append((self.__name__, kernel.metadata.num_warps, kernel.metadata.shared, kernel.hash))
        return kernel

    return run


def zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def compile_prologue(layout: RowLayout, b: int) -> None:
    """Compile the prologue and its shadow; every column that is no position is looked up, too."""
    K, wide = layout.cells_per_row, {"dtype": torch.int64}
    tables = [zeros(9, pages, dtype=torch.int32) for pages in layout.table_pages]
    lengths = [zeros(b, dtype=torch.int32) for _ in layout.tables]
    write_loc = [zeros(b, **wide) if table.span else None for table in layout.tables]
    columns = [zeros(b, dtype=torch.int32 if column.kind == "index" else torch.int64) for column in layout.columns]
    looked = [column.name for column in layout.columns if column.kind != "position"]
    look_ups = [LookUp(name, zeros(7, **wide), zeros(b, **wide)) for name in looked]
    inputs, read = zeros(b * (1 + 2 * K), **wide), (lengths, write_loc, columns)
    prologue.run(layout, zeros(9, layout.narrow_cells, **wide), tables, inputs, *read, look_ups)
    ring = zeros(4, b, shadow.record_cells(layout), **wide)
    shadow.run(layout, tables, inputs[:b], *read, ring, zeros(1, **wide))


def compile_attention(rows: int, heads: int, kv_heads: int, head_dim: int, page_size: int) -> None:
    q, layer = zeros(rows, heads, head_dim), zeros(5, 2, page_size, kv_heads, head_dim)
    index, lengths = zeros(rows + 1, dtype=torch.int64), zeros(rows + 1, dtype=torch.int32)
    sizes, before = (rows, heads, kv_heads, head_dim, page_size, 8192), len(SEEN)
    decode = PagedDecode(*sizes, q.dtype, "cpu", multiprocessors=132)
    for begin in (0, 1):  # a mixed step's second launch begins amid its rows
        read = (index[begin : begin + rows], lengths[begin : begin + rows])
        decode.run(q, layer, zeros(9, 4, dtype=torch.int32), *read, torch.zeros_like(q))
    programs = {program for name, _, _, program in SEEN[before:] if name == "_attend_kernel"}
    assert len(programs) == 1, f"{len(programs)} programs of _attend_kernel by where its rows begin, expected one"
    kv_write.write(layer, q[:, :kv_heads], q[:, :kv_heads], index[:rows])


def compile_fa2_plan(plan: Fa2Plan, gather: bool) -> None:
    table = zeros(2 * plan.bucket + 1, 64, dtype=torch.int32)
    planner = Fa2Planner(plan, Fa2Buffers.of(plan.bucket, table, plan.page_size, gather=gather))
    planner.run(zeros(plan.bucket, dtype=torch.int32), zeros(plan.bucket, dtype=torch.int64))


def compile_gdn(heads: int, state: torch.dtype, norm: bool, launch: Launch | None = None, size: int = 128) -> None:
    conv_dim = 2 * 16 * 128 + heads * size
    z = zeros(2, heads, size)
    gdn_decode.step(
        zeros(2, conv_dim), zeros(2, heads), zeros(2, heads), zeros(conv_dim, 4), zeros(heads), zeros(heads),
        zeros(3, conv_dim, 3), zeros(3, heads, size, 128, dtype=state), zeros(2, dtype=torch.int32), z,
        z=z if norm else None, norm_weight=zeros(size) if norm else None, _launch=launch,
    )  # fmt: skip


def compile_pointwise(heads: int, kv_heads: int, head_dim: int, rotary: int) -> None:
    size, float32 = heads * head_dim, torch.float32
    x, h, out = zeros(2, size, dtype=float32), zeros(2, size), zeros(2, size)
    fused_norm_rope.add_rms_norm(x, h, zeros(size, dtype=float32), 1e-6, out)
    fused_norm_rope.gate(h, h, out, silu=True)
    packed, norms = zeros(2, heads + 2 * kv_heads, head_dim), zeros(heads + kv_heads, head_dim, dtype=float32)
    angles = (zeros(2, 1, rotary, dtype=float32),) * 2
    layer, loc = zeros(3, 2, 16, kv_heads, head_dim), zeros(2, dtype=torch.int64)
    fused_norm_rope.embed(loc, zeros(7, size), x)
    positions, both = zeros(2, dtype=torch.int64), zeros(2, 2, 1, rotary, dtype=float32)
    fused_norm_rope.rope_angles(positions, zeros(rotary // 2, dtype=float32), both)
    fused_norm_rope.norm_rope_write(packed, norms, 1e-6, angles, zeros(2, heads, head_dim), layer, loc)


def compile_few_rows(rows: int, hidden: int, inner: int, early: bool | None = None) -> None:
    x, h, norm = zeros(rows, hidden, dtype=torch.float32), zeros(rows, hidden), zeros(hidden, dtype=torch.float32)
    total, out, wide = zeros(rows, hidden, dtype=torch.float32), zeros(rows, hidden), zeros(rows, inner)
    gate_up, down, square = zeros(2 * inner, hidden), zeros(hidden, inner), zeros(hidden, hidden)
    fused: dict[str, Any] = {"norm": norm, "eps": 1e-6, "_early": early}
    if fuses_norm(rows, hidden):
        few_rows.product(x, square, out, h=h, total=total, **fused)
        few_rows.product(x, gate_up, wide, h=h, total=total, swiglu=True, **fused)
    few_rows.product(h, square, out, gate=h, _early=early)
    few_rows.product(wide, down, out, bias=zeros(hidden), _early=early)


def main(backend: str, arch: str) -> None:
    driver.set_active(Target(backend, arch))
    JITFunction.run = compile_only(JITFunction.run)
    for module in (few_rows, fused_norm_rope, gdn_decode, paged_decode, prologue):
        module.starts_early = lambda device: backend == "cuda"  # the device here is the CPU
    own, context = KVTable("own", 128, 2047, 262144), KVTable("context", 48, 30, 1500, span=0)
    columns = [Column("offset", "position", "own"), Column("state", "index"), Column("heat")]
    compile_prologue(RowLayout([own], columns), 64)
    compile_prologue(RowLayout([own, context], columns), 1)
    compile_prologue(RowLayout([], ["heat"]), 3)
    compile_attention(1, 8, 2, 256, 128)
    compile_attention(64, 32, 8, 128, 16)
    compile_attention(128, 20, 20, 64, 48)
    compile_attention(128, 8, 2, 256, 16)
    compile_attention(1, 9, 3, 64, 16)
    compile_attention(1, 32, 8, 128, 16)
    for rows in (1, 64):
        seats = zeros(rows, dtype=torch.int64)
        hand_over.hand_over(seats, seats, seats, seats)
    compile_fa2_plan(Fa2Plan.on_tensor_cores(1, 8, 2, 16, multiprocessors=132), gather=False)
    compile_fa2_plan(Fa2Plan.on_tensor_cores(256, 8, 2, 16, multiprocessors=132), gather=True)
    compile_fa2_plan(Fa2Plan.on_cuda_cores(16, 9, 3, 16, items=396, split=True), gather=True)
    compile_fa2_plan(Fa2Plan.on_cuda_cores(64, 20, 20, 48, items=64, split=False), gather=False)
    compile_gdn(16, torch.float32, norm=True)
    compile_gdn(32, torch.bfloat16, norm=False)
    compile_gdn(48, torch.bfloat16, True, Launch(False, 32, 4, ahead=True))
    compile_gdn(16, torch.float32, True, Launch(True, 16, 4))
    compile_gdn(32, torch.float32, True, Launch(False, 16, 4), size=64)  # values narrower than keys
    compile_pointwise(8, 2, 256, 64)
    compile_pointwise(9, 3, 64, 64)
    for rows in (1, 2, 4):
        compile_few_rows(rows, 1024, 3584)
    compile_few_rows(1, 2560, 9216, early=False)
    for name, warps, shared, _ in SEEN:
        print(name, warps, shared)


if __name__ == "__main__":
    main(*sys.argv[1:])
