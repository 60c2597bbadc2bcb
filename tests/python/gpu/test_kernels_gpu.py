"""The kernels on a GPU: every unit test of theirs, production shapes in half precision, and replays of graphs."""

from __future__ import annotations

import random

import pytest
import torch

from ..native_free import prepare

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
prepare()

from mstar_resident.kernels import kv_write, prologue, reference  # noqa: E402
from mstar_resident.kernels.paged_decode import PagedDecode  # noqa: E402
from mstar_resident.layout import Column, KVTable, RowLayout  # noqa: E402

from ..unit.kernels.attention_cases import TOLERANCE, relative_error  # noqa: E402
from ..unit.kernels.gdn_cases import Net, error  # noqa: E402
from ..unit.kernels.prologue_cases import LAYOUTS, Case, assert_equal  # noqa: E402
from ..unit.kernels.test_fused_norm_rope import *  # noqa: E402, F403
from ..unit.kernels.test_gdn_decode import *  # noqa: E402, F403
from ..unit.kernels.test_hand_over import *  # noqa: E402, F403
from ..unit.kernels.test_kv_write import *  # noqa: E402, F403
from ..unit.kernels.test_mixed_rows import *  # noqa: E402, F403
from ..unit.kernels.test_paged_decode import *  # noqa: E402, F403
from ..unit.kernels.test_prologue import *  # noqa: E402, F403


@pytest.fixture
def device() -> str:
    """The device that the unit tests run on."""
    return "cuda"


def captured(body) -> torch.cuda.CUDAGraph:
    """Return a graph of what ``body`` launches; it must have run once."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    return graph


@pytest.mark.parametrize("name", ["one append table", "five tables", "no table"])
@pytest.mark.parametrize("b", [1, 48, 128])
def test_a_captured_prologue_matches_the_reference_over_many_replays(name, b):
    layout = LAYOUTS[name]
    draw = random.Random(b)
    drawn = Case.drawn(layout, 2 * b + 1, b, 5, "cpu")
    case = Case.empty(layout, 2 * b + 1, b, "cuda")
    prologue.run(*case.arguments())  # warm-up on zeros
    graph = captured(lambda: prologue.run(*case.arguments()))
    graph.replay()
    assert not case.narrow.any()
    expected = drawn.to("cpu")
    for to, source in zip(case.tensors(), drawn.tensors(), strict=True):
        to.copy_(source)
    for step in range(200):
        if step % 3 == 0:  # other rows, and cells for some; in between the buffer is replayed as it is
            slots = draw.sample(range(1, 2 * b + 1), b)
            expected.inputs[:b] = torch.tensor([slot if draw.random() < 0.9 else 0 for slot in slots])
            for i in range(b):
                if draw.random() < 0.2:
                    expected.draw_cells(draw, i)
            case.inputs.copy_(expected.inputs)
        graph.replay()
        reference.run(*expected.arguments())
        if step % 20 == 19:
            assert_equal(case, expected)
    assert not case.narrow[0].any()
    assert not any(table[0].any() for table in case.tables)


def ragged(rows: int, longest: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [longest] + [draw.choice([1, longest, draw.randint(1, longest)]) for _ in range(rows - 1)]


class BigPool:
    """Hold one layer of a KV pool on the GPU, full of numbers, and rows over shuffled pages."""

    def __init__(self, lengths, kv_heads, head_dim, page_size, dtype):
        b, columns = len(lengths), -(-max(lengths) // page_size) + 1
        self.layer = torch.randn(b * columns + 1, 2, page_size, kv_heads, head_dim, device="cuda").to(dtype)
        self.table = torch.zeros(2 * b + 1, columns, dtype=torch.int32, device="cuda")
        self.rows = torch.randperm(2 * b, device="cuda")[:b] + 1
        self.table[self.rows] = (torch.randperm(b * columns, device="cuda") + 1).view(b, columns).to(torch.int32)
        self.lengths = torch.tensor(lengths, dtype=torch.int32, device="cuda")

    def expected(self, q):
        out = torch.zeros(q.shape, dtype=torch.float64, device="cuda")
        group = q.shape[1] // self.layer.shape[3]
        for i, (row, length) in enumerate(zip(self.rows.tolist(), self.lengths.tolist(), strict=True)):
            k, v = self.layer[self.table[row].long()].transpose(0, 1).flatten(1, 2)[:, :length].double().transpose(1, 2)
            grouped = q[i].double().view(-1, group, q.shape[2])
            score = grouped @ k.transpose(1, 2) * q.shape[2] ** -0.5
            out[i] = (score.softmax(-1) @ v).flatten(0, 1)
        return out.cpu()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("page_size", [16, 128])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(8, 2, 256), (24, 4, 256), (32, 8, 128), (20, 20, 64)])
@pytest.mark.parametrize(("rows", "longest"), [(1, 1), (1, 8192), (16, 3000), (128, 1500)])
def test_attention_of_production_shapes_matches_float64(dtype, page_size, heads, kv_heads, head_dim, rows, longest):
    pool = BigPool(ragged(rows, longest, rows), kv_heads, head_dim, page_size, dtype)
    q = torch.randn(rows, heads, head_dim, device="cuda").to(dtype)
    out = torch.full_like(q, float("nan"))
    decode = PagedDecode(rows, heads, kv_heads, head_dim, page_size, 16384, dtype, "cuda")
    decode.run(q, pool.layer, pool.table, pool.rows, pool.lengths, out)
    assert relative_error(out, pool.expected(q)) < TOLERANCE[dtype]


def test_one_captured_attention_serves_any_lengths():
    dtype, rows = torch.bfloat16, 16
    decode = PagedDecode(rows, 8, 2, 256, 16, 4096, dtype, "cuda")
    pool = BigPool([4096] * rows, 2, 256, 16, dtype)
    q = torch.randn(rows, 8, 256, device="cuda").to(dtype)
    out = torch.full_like(q, float("nan"))

    def body():
        decode.run(q, pool.layer, pool.table, pool.rows, pool.lengths, out)

    body()
    graph = captured(body)
    for seed, longest in enumerate([1, 16, 17, 300, 4096]):
        pool.lengths.copy_(torch.tensor(ragged(rows, longest, seed)))
        out.fill_(float("nan"))
        graph.replay()
        assert relative_error(out, pool.expected(q)) < TOLERANCE[dtype]


def test_a_captured_step_writes_and_attends_what_the_prologue_says():
    """Prologue, write and attention in one graph, over crossings, against streams kept on the host."""
    dtype, b, live, page_size = torch.bfloat16, 8, 6, 16
    layout = RowLayout([KVTable("kv", page_size, 8 * 8, 8 * page_size)], [Column("offset", "position", "kv")])
    case = Case.empty(layout, 2 * b + 1, b, "cuda")
    layer = torch.zeros(8 * 8 + 1, 2, page_size, 2, 128, dtype=dtype, device="cuda")
    q = torch.randn(b, 8, 128, device="cuda").to(dtype)
    k, v = (torch.randn(b, 2, 128, device="cuda").to(dtype) for _ in range(2))
    out = torch.zeros_like(q)
    decode = PagedDecode(b, 8, 2, 128, page_size, 8 * page_size, dtype, "cuda")

    def body():
        prologue.run(*case.arguments())
        kv_write.write(layer, k, v, case.write_loc[0])
        decode.run(q, layer, case.tables[0], case.inputs[:b], case.lengths[0], out)

    body()
    graph = captured(body)
    slots = random.Random(3).sample(range(1, 2 * b + 1), live)
    pages = (torch.randperm(8 * 8)[: 8 * live] + 1).view(live, 8).to(torch.int32)
    case.inputs[:live] = torch.tensor(slots, device="cuda")
    case.tables[0][slots] = pages.cuda()
    starts = [0, 1, 15, 16, 17, 40]
    case.narrow[slots, 0] = torch.tensor(starts, device="cuda")
    for _ in range(50):
        for tensor in (q, k, v):
            tensor.copy_(torch.randn(tensor.shape))
        graph.replay()
        for i in range(live):
            starts[i] += 1
        pool = BigPool.__new__(BigPool)
        pool.layer, pool.table, pool.rows = layer, case.tables[0], torch.tensor(slots)
        pool.lengths = torch.tensor(starts)
        assert case.lengths[0].tolist() == [*starts, *[1] * (b - live)]
        assert relative_error(out[:live], pool.expected(q[:live])) < TOLERANCE[dtype]
        for i, stored in enumerate(starts):
            page = int(pages[i, (stored - 1) // page_size])
            assert torch.equal(layer[page, 0, (stored - 1) % page_size], k[i])
            assert torch.equal(layer[page, 1, (stored - 1) % page_size], v[i])


@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("value_heads", [16, 32, 48])
@pytest.mark.parametrize("norm", [False, True])
def test_gdn_of_production_shapes_matches_float64(state_dtype, value_heads, norm):
    index = [5, 0, 3, 12, 0, 1, 7]
    net = Net.drawn(16, value_heads, 128, 128, index, torch.bfloat16, state_dtype, "cuda", states=14)
    net.ssm_state[0] = net.conv_state[0] = float("nan")
    others = [i for i in range(14) if i not in index] + [0]
    before = net.conv_state[others].clone(), net.ssm_state[others].clone()
    out = torch.full((len(index), value_heads, 128), float("nan"), dtype=torch.bfloat16, device="cuda")
    expected, conv, state = net.expected(norm)
    net.run(out, norm)
    live = [i for i, at in enumerate(index) if at]
    at = net.index.long()[live]
    assert error(out[live], expected[live]) < 5e-3
    assert error(net.ssm_state[at], state[live]) < (1e-5 if state_dtype == torch.float32 else 5e-3)
    assert error(net.conv_state[at], conv[live]) == 0
    assert out.isfinite().all()
    torch.testing.assert_close((net.conv_state[others], net.ssm_state[others]), before, rtol=0, atol=0, equal_nan=True)


def test_a_captured_gdn_step_follows_its_index_and_its_states():
    net = Net.drawn(2, 4, 128, 128, [3, 1, 0], torch.bfloat16, torch.float32, "cuda")
    out = torch.empty(3, 4, 128, dtype=torch.bfloat16, device="cuda")
    net.run(out)
    graph = captured(lambda: net.run(out))
    for seed in range(12):
        net.index.copy_(torch.tensor(random.Random(seed).sample(range(1, 9), 2) + [0]))
        net.qkv.copy_(torch.randn(net.qkv.shape, generator=torch.Generator().manual_seed(seed)))
        expected, _, state = net.expected()
        graph.replay()
        assert error(out[:2], expected[:2]) < 5e-3
        assert error(net.ssm_state[net.index.long()[:2]], state[:2]) < 1e-5
