"""Kernels that start before the one ahead of them has ended: what that one writes comes when they wait, not sooner."""

from __future__ import annotations

import pytest
import torch

from mstar_resident.kernels import few_rows, fused_norm_rope, paged_decode
from mstar_resident.kernels.paged_decode import PagedDecode

from .attention_cases import Pool

T, SIZE = 2, 16


@pytest.fixture
def ahead(monkeypatch, device):
    """Return what launches twice: behind all that writes the inputs, and ahead of it until a program waits.

    It checks that nothing is read or written before the wait, and returns what the first program called, in order.
    """
    if device != "cpu":
        pytest.skip("only an interpreted kernel can be met where it waits")

    def launched(module, launch, inputs, outputs):
        calls = []
        monkeypatch.setattr(module, "options", lambda early: {"EARLY": True})
        monkeypatch.setattr(module, "gdc_launch_dependents", lambda: calls.append("launch dependents"))
        monkeypatch.setattr(module, "gdc_wait", lambda: None)
        given = [tensor.clone() for tensor in inputs]
        launch()
        expected = [tensor.clone() for tensor in outputs]
        assert all(tensor.any() for tensor in (*given, *expected)), "nothing to be met"
        for tensor in (*inputs, *outputs):
            tensor.zero_()
        calls.clear()

        def wait():
            if "wait" not in calls:
                assert not any(tensor.any() for tensor in (*inputs, *outputs)), "written before the wait"
                for tensor, value in zip(inputs, given, strict=True):
                    tensor.copy_(value)
            calls.append("wait")

        monkeypatch.setattr(module, "gdc_wait", wait)
        launch()
        assert all(torch.equal(tensor, value) for tensor, value in zip(outputs, expected, strict=True))
        return calls[:2]

    return launched


FIRST, LAST = ["launch dependents", "wait"], ["wait", "launch dependents"]


@pytest.mark.parametrize("front", ["sum", "gate", "swiglu"])
def test_a_product_of_few_rows(front, ahead):
    x, other, norm = torch.randn(T, SIZE), torch.randn(T, SIZE), torch.randn(SIZE)
    weight, total, out = torch.randn(8, SIZE), torch.zeros(T, SIZE), torch.zeros(T, 4 if front == "swiglu" else 8)
    more = {"gate": {"gate": other}, "sum": {"h": other, "total": total, "norm": norm}, "swiglu": {"swiglu": True}}
    inputs = [x] if front == "swiglu" else [x, other]
    outputs = [out, total] if front == "sum" else [out]
    calls = ahead(few_rows, lambda: few_rows.product(x, weight, out, **more[front]), inputs, outputs)
    assert calls == FIRST


def test_pointwise_parts(ahead):
    x, h, out, by = torch.randn(T, SIZE), torch.randn(T, SIZE), torch.zeros(T, SIZE), torch.ones(SIZE)
    tokens, table, half = torch.tensor([3, 1]), torch.randn(5, SIZE), torch.rand(SIZE // 2)
    angles = torch.zeros(2, T, 1, SIZE)
    launches = [
        (lambda: fused_norm_rope.embed(tokens, table, out), [tokens], [out]),
        (lambda: fused_norm_rope.add_rms_norm(x, h, by, 1e-6, out), [x, h], [out]),
        (lambda: fused_norm_rope.gate(x, h, out, silu=True), [x, h], [out]),
        (lambda: fused_norm_rope.rope_angles(tokens, half, angles), [tokens], [angles]),
    ]
    for launch, inputs, outputs in launches:
        assert ahead(fused_norm_rope, launch, inputs, outputs) == FIRST


def test_rotation_right_ahead_of_attention_starts_nothing(ahead):
    heads, angles, q = torch.randn(T, 4, SIZE), torch.rand(2, T, 1, SIZE), torch.zeros(T, 2, SIZE)
    pool, loc = torch.zeros(2, 2, 4, 1, SIZE), torch.tensor([5, 7])

    def launch():
        fused_norm_rope.norm_rope_write(heads, None, 0.0, (angles[0], angles[1]), q, pool, loc)

    assert ahead(fused_norm_rope, launch, [heads, angles, loc], [q, pool]) == ["wait", "wait"]


def test_attention_and_its_merge(ahead, monkeypatch):
    pool = Pool([130, 20], 1, 64, 16, torch.float32, "cpu", 0)
    q, out = torch.randn(2, 1, 64), torch.zeros(2, 1, 64)
    decode = PagedDecode(2, 1, 1, 64, 16, 256, torch.float32, "cpu", multiprocessors=4)
    parts = [decode._partial, decode._peak, decode._weight, decode._items]

    def launch():
        decode.run(q, pool.layer, pool.table, pool.rows, pool.lengths, out)

    assert ahead(paged_decode, launch, [q, pool.layer, pool.table, pool.lengths], [out, *parts]) == FIRST
    monkeypatch.setattr(paged_decode, "_attend_kernel", {(1, decode.programs): lambda *given, **more: None})
    out.zero_()
    assert ahead(paged_decode, launch, parts, [out]) == LAST
