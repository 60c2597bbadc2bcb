"""Matrix products of few rows, against float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mstar_resident.errors import LayoutError
from mstar_resident.kernels import few_rows
from mstar_resident.kernels.few_rows import product
from mstar_resident.kernels.few_rows_launch import FEW_ROWS, MANY_COLUMNS, Launch, choose
from mstar_resident.models.products_triton import TritonProducts

from .attention_cases import relative_error

#: Most relative error of one rounding; the interpreter rounds to bfloat16 toward zero.
ROUNDING = {torch.float32: 2e-6, torch.float16: 5e-4, torch.bfloat16: 8e-3}
DTYPES = pytest.mark.parametrize("dtype", list(ROUNDING))
#: Over one tile, over several and a part of one, over tiles wider than k.
LAUNCHES = [Launch(4, 128, 1), Launch(8, 32, 2), Launch(2, 512, 1)]
SHAPES = pytest.mark.parametrize(("t", "n", "k"), [(1, 40, 128), (3, 24, 120), (4, 9, 96), (2, 16, 64)])


def filled(*shape, dtype, device):
    return torch.full(shape, float("nan"), dtype=dtype, device=device)


@DTYPES
@SHAPES
@pytest.mark.parametrize("launch", [None, *LAUNCHES])
@pytest.mark.parametrize("swiglu", [True, False])
def test_a_product_matches_float64(dtype, t, n, k, launch, swiglu, device):
    w = torch.randn(2 * n if swiglu else n, k).to(dtype)
    x = torch.randn(t, k + 8).to(dtype)[:, :k]
    expected = x.double() @ w.double().T
    if swiglu:
        gate, up = expected.chunk(2, 1)
        expected = F.silu(gate) * up
    out = filled(t, n, dtype=dtype, device=device)
    product(x.to(device), w.to(device), out, swiglu=swiglu, _launch=launch)
    assert relative_error(out, expected) < ROUNDING[dtype]


@DTYPES
@SHAPES
@pytest.mark.parametrize("launch", [None, *LAUNCHES])
@pytest.mark.parametrize(("adds", "swiglu"), [(True, True), (True, False), (False, False)])
def test_a_product_of_the_norm_of_a_sum_matches_float64(dtype, t, n, k, launch, adds, swiglu, device):
    w, norm = torch.randn(2 * n if swiglu else n, k).to(dtype), 1 + 0.3 * torch.randn(k)
    x, h = torch.randn(t, k), torch.randn(t, k + 8).to(dtype)[:, :k]
    sum_ = x.double() + (h.double() if adds else 0)
    expected = F.rms_norm(sum_, (k,), norm.double(), 1e-6) @ w.double().T
    if swiglu:
        gate, up = expected.chunk(2, 1)
        expected = F.silu(gate) * up
    out, total = filled(t, n, dtype=dtype, device=device), filled(t, k, dtype=torch.float32, device=device)
    moved, more = x.to(device, copy=True), {"h": h.to(device), "total": total} if adds else {}
    product(moved, w.to(device), out, norm=norm.to(device), eps=1e-6, swiglu=swiglu, _launch=launch, **more)
    assert relative_error(out, expected) < ROUNDING[dtype]
    assert torch.equal(moved.cpu(), x)
    if adds:
        assert relative_error(total, sum_) < 1e-6


@DTYPES
@pytest.mark.parametrize("launch", LAUNCHES)
def test_a_product_of_what_is_gated_matches_float64(dtype, launch, device):
    t, n, k = 3, 12, 96
    w, packed = torch.randn(n, k).to(dtype), torch.randn(t, 3 * k).to(dtype)
    x, by = packed[:, :k], packed[:, -k:]
    expected = (x.double() * by.double().sigmoid()) @ w.double().T
    out, packed = filled(t, n, dtype=dtype, device=device), packed.to(device)
    product(packed[:, :k], w.to(device), out, gate=packed[:, -k:], _launch=launch)
    assert relative_error(out, expected) < ROUNDING[dtype]


def test_a_bias_is_added(device):
    x, w, bias = torch.randn(2, 64).half(), torch.randn(20, 64).half(), torch.randn(20).half()
    out = filled(2, 20, dtype=torch.float16, device=device)
    product(x.to(device), w.to(device), out, bias=bias.to(device))
    assert relative_error(out, x.double() @ w.double().T + bias.double()) < ROUNDING[torch.float16]


def test_a_sum_is_multiplied_without_a_norm_too(device):
    x, h, w = torch.randn(2, 64).half(), torch.randn(2, 64).half(), torch.randn(20, 64).half()
    out, total = filled(2, 20, dtype=torch.float16, device=device), filled(2, 64, dtype=torch.float32, device=device)
    product(x.to(device), w.to(device), out, h=h.to(device), total=total)
    assert relative_error(out, (x.double() + h.double()) @ w.double().T) < ROUNDING[torch.float16]
    assert relative_error(total, x.double() + h.double()) < 1e-6


def test_no_rows_are_no_launch(monkeypatch, device):
    monkeypatch.setattr(few_rows, "_few_rows_kernel", {})  # of any grid
    none, w = torch.zeros(0, 64, device=device), torch.zeros(8, 64, device=device)
    product(none, w, torch.zeros(0, 8, device=device), h=none, total=none.clone())


@pytest.mark.parametrize("t", range(1, FEW_ROWS + 1))
def test_as_many_rows_as_are_few_are_made(t, device):
    x, w = torch.randn(t, 256).half(), torch.randn(16, 256).half()
    out = filled(t, 16, dtype=torch.float16, device=device)
    product(x.to(device), w.to(device), out)
    assert relative_error(out, x.double() @ w.double().T) < ROUNDING[torch.float16]


def test_what_does_not_fit_is_refused(device):
    x, w, out = (torch.zeros(*shape, device=device) for shape in ((2, 64), (8, 64), (2, 8)))
    norm = torch.ones(64, device=device)
    with pytest.raises(LayoutError, match="weight"):
        product(x, w[:, ::2], out)
    with pytest.raises(LayoutError, match="out"):
        product(x, w, out[:1])
    with pytest.raises(LayoutError, match="in front"):
        product(x, w, out, h=x)
    with pytest.raises(LayoutError, match="in front"):
        product(x, w, out, gate=x, norm=norm)
    with pytest.raises(LayoutError, match="float32"):
        product(x, w, out, h=x, total=x.half())
    for x_, h in ((x, w[:2]), (w[:2], x)):
        with pytest.raises(LayoutError, match="memory of its own"):
            product(x_, w, out, h=h, total=x)
    with pytest.raises(LayoutError, match="bias"):
        product(x, w, out[:, :4].contiguous(), swiglu=True, bias=norm[:4])
    with pytest.raises(LayoutError, match="<= 4"):
        product(torch.zeros(5, 64, device=device), w, torch.zeros(5, 8, device=device))


def test_a_head_of_many_columns_and_more_rows_are_a_librarys(monkeypatch, device):
    def refused(*given, **more):
        raise AssertionError("the kernel was asked")

    monkeypatch.setattr(few_rows, "product", refused)
    products, norm = TritonProducts(), torch.ones(16, device=device)
    head, square = torch.randn(MANY_COLUMNS, 16, device=device), torch.randn(16, 16, device=device)
    for rows, weight in ((1, head), (FEW_ROWS + 1, square)):
        x = torch.randn(rows, 16, device=device)
        assert torch.equal(products.plain(x, weight), F.linear(x, weight))
        products.normed(x, None, norm, 1e-6, weight)
    with pytest.raises(AssertionError, match="was asked"):
        products.plain(torch.randn(1, 16, device=device), square)


@pytest.mark.parametrize("rows", range(1, FEW_ROWS + 1))
@pytest.mark.parametrize(("n", "k"), [(8224, 1024), (1024, 3584), (2560, 4096), (2560, 9216), (12_352, 2560), (3, 40)])
@pytest.mark.parametrize("pair", [False, True])
def test_every_shape_has_a_launch_that_fits(rows, n, k, pair):
    launch = choose(rows, n, k, pair)
    assert launch == launch.fitted(n, k)
    assert launch.block_n * launch.block_k * (2 if pair else 1) <= 16 * 1024
