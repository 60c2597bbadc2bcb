"""Time decode attention and the gated delta net's step inside CUDA graphs, in µs per layer.

    python3 benches/gpu/bench_kernels.py --json FILE

A graph runs as many layers as it takes to touch ``--touch-mib`` of KV or state (at least eight), each its own memory,
so that a layer finds nothing of its own in the cache. Answers are compared with float64 on the first layer. The floor
is the bytes of KV, or of state read and written, over ``--bandwidth`` (TB/s).
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import asdict, dataclass

import prologue_arms  # noqa: F401  (lets the kernels be imported without the native module)
import torch

from mstar_resident.cli.record import write_json
from mstar_resident.kernels import gdn_decode
from mstar_resident.kernels.paged_decode import PagedDecode

ATTENTION = [(1, 768), (16, 768), (64, 768), (128, 768), (1, 8192), (16, 8192), (64, 8192), (16, -8192), (64, -8192)]
HEADS = {"D256 g4": (8, 2, 256), "D128 g4": (32, 8, 128), "D64 g1": (20, 20, 64)}
GDN = {"16 heads": 16, "32 heads": 32, "48 heads": 48}


@dataclass(frozen=True)
class Record:
    """Hold one kernel's figures at one shape; a negative length stands for lengths drawn from 1 to it."""

    kernel: str
    shape: str
    rows: int
    length: int
    page_size: int
    layers: int
    us: float
    p10_us: float
    p90_us: float
    floor_us: float
    relative_error: float


def time_graph(body, layers: int, args: argparse.Namespace) -> tuple[float, float, float]:
    """Return median, p10 and p90 of µs per layer over rounds of back-to-back replays."""
    body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    figures = []
    for _ in range(args.rounds + 2):
        start.record()
        for _ in range(args.replays):
            graph.replay()
        end.record()
        end.synchronize()
        figures.append(start.elapsed_time(end) * 1000 / args.replays / layers)
    figures = sorted(figures[2:])
    return statistics.median(figures), figures[len(figures) // 10], figures[len(figures) * 9 // 10]


def layers_of(bytes_each: int, args: argparse.Namespace) -> int:
    """Return how many layers touch enough memory, and fit."""
    wanted = max(8, -(-(args.touch_mib << 20) // bytes_each))
    return max(1, min(wanted, 64, (40 << 30) // bytes_each))


def attention(shape: str, rows: int, length: int, page_size: int, args: argparse.Namespace) -> Record:
    """Check and time decode attention at one shape."""
    heads, kv_heads, head_dim = HEADS[shape]
    longest = abs(length)
    lengths = torch.full((rows,), longest) if length > 0 else torch.randint(1, longest + 1, (rows,))
    columns = -(-longest // page_size)
    dtype, device = torch.bfloat16, torch.device("cuda")
    token_bytes = 2 * kv_heads * head_dim * 2
    layers = layers_of(int(lengths.sum()) * token_bytes, args)
    pages = rows * columns + 1
    pool = torch.empty(layers, pages, 2, page_size, kv_heads, head_dim, dtype=dtype, device=device).normal_()
    table = torch.zeros(2 * rows + 1, columns, dtype=torch.int32, device=device)
    slots = torch.randperm(2 * rows, device=device)[:rows] + 1
    table[slots] = (torch.randperm(rows * columns, device=device) + 1).view(rows, columns).to(torch.int32)
    on_device = lengths.to(torch.int32).to(device)
    q = torch.randn(rows, heads, head_dim, device=device).to(dtype)
    out = torch.empty_like(q)
    decode = PagedDecode(rows, heads, kv_heads, head_dim, page_size, 262_144, dtype, device)

    def body() -> None:
        for layer in range(layers):
            decode.run(q, pool[layer], table, slots, on_device, out)

    decode.run(q, pool[0], table, slots, on_device, out)
    i = int(lengths.argmax())
    k, v = pool[0, table[slots[i]].long()].transpose(0, 1).flatten(1, 2)[:, : int(lengths[i])].double().transpose(1, 2)
    score = q[i].double().view(kv_heads, -1, head_dim) @ k.transpose(1, 2) * head_dim**-0.5
    expected = (score.softmax(-1) @ v).flatten(0, 1)
    error = float((out[i].double() - expected).norm() / expected.norm())
    if not error < 6e-3:
        raise SystemExit(f"attention {shape}, {rows} rows of {length}: relative error {error}")
    floor = int(lengths.sum()) * token_bytes / args.bandwidth / 1e6
    return Record("attention", shape, rows, length, page_size, layers, *time_graph(body, layers, args), floor, error)


def gdn(shape: str, rows: int, state_dtype: torch.dtype, args: argparse.Namespace) -> Record:
    """Check and time the gated delta net's step at one shape."""
    heads, key_heads, size = GDN[shape], 16, 128
    conv_dim = (2 * key_heads + heads) * size
    device, dtype = torch.device("cuda"), torch.bfloat16
    state_bytes = rows * heads * size * size * state_dtype.itemsize
    layers = layers_of(2 * state_bytes, args)
    ssm = torch.zeros(layers, rows + 1, heads, size, size, dtype=state_dtype, device=device).normal_()
    conv = torch.randn(layers, rows + 1, conv_dim, 3, device=device).to(dtype)
    index = (torch.randperm(rows, device=device) + 1).to(torch.int32)
    qkv, weight = (
        torch.randn(rows, conv_dim, device=device).to(dtype),
        torch.randn(conv_dim, 4, device=device).to(dtype),
    )
    a, b = torch.randn(2, rows, heads, device=device).to(dtype)
    a_log, dt_bias = torch.rand(2, heads, device=device)
    z, out = torch.randn(2, rows, heads, size, device=device).to(dtype)
    norm = torch.ones(size, device=device)

    def one(layer: int) -> None:
        states = (conv[layer], ssm[layer])
        gdn_decode.step(qkv, a, b, weight, a_log, dt_bias, *states, index, out, z=z, norm_weight=norm)

    def body() -> None:
        for layer in range(layers):
            one(layer)

    window = torch.cat([conv[0, index.long()], qkv[:, :, None]], 2).double()
    mixed = torch.nn.functional.silu((window * weight.double()).sum(2)).view(rows, -1, size)
    q, k, v = mixed.split([key_heads, key_heads, heads], 1)
    q, k = (t * torch.rsqrt((t * t).sum(2, keepdim=True) + 1e-6) for t in (q, k))
    q, k = (t.repeat_interleave(heads // key_heads, 1) for t in (q * size**-0.5, k))
    decay = torch.exp(-a_log.double().exp() * torch.nn.functional.softplus(a.double() + dt_bias.double()))
    state = ssm[0, index.long()].double() * decay[..., None, None]
    delta = (v - (state @ k[..., None])[..., 0]) * b.double().sigmoid()[..., None]
    state += delta[..., None] * k[:, :, None]
    expected = (state @ q[..., None])[..., 0]
    expected *= torch.rsqrt((expected * expected).mean(2, keepdim=True) + 1e-6)
    expected *= torch.nn.functional.silu(z.double())
    one(0)
    error = float((out.double() - expected).norm() / expected.norm())
    if not error < 6e-3:
        raise SystemExit(f"gated delta net {shape}, {rows} rows: relative error {error}")
    del state, expected
    floor = 2 * state_bytes / args.bandwidth / 1e6
    name = f"{shape} {str(state_dtype).removeprefix('torch.')}"
    return Record("gdn", name, rows, 0, 0, layers, *time_graph(body, layers, args), floor, error)


def main() -> None:
    """Run the bench and print a table; write the records to ``--json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page-size", default="16,128", help="page sizes of attention, comma separated")
    parser.add_argument("--heads", default="D256 g4", help=f"shapes of attention, comma separated, of {list(HEADS)}")
    parser.add_argument("--gdn-rows", default="1,16,64,128", help="rows of the gated delta net, comma separated")
    parser.add_argument("--touch-mib", type=int, default=256, help="MiB that a graph touches")
    parser.add_argument("--bandwidth", type=float, default=4.3, help="TB/s of the floor")
    parser.add_argument("--replays", type=int, default=10, help="replays timed at once")
    parser.add_argument("--rounds", type=int, default=20, help="rounds")
    parser.add_argument("--json", help="file for the records")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no CUDA device")
    torch.manual_seed(0)
    records = []
    for shape in args.heads.split(","):
        for page_size in map(int, args.page_size.split(",")):
            records += [attention(shape, rows, length, page_size, args) for rows, length in ATTENTION]
    for shape in GDN:
        for state_dtype in (torch.float32, torch.bfloat16):
            records += [gdn(shape, int(rows), state_dtype, args) for rows in args.gdn_rows.split(",")]
    titles = ("kernel", "shape", "rows", "length", "page", "us", "p10", "p90", "floor", "error")
    print("{:9} {:18} {:>4} {:>6} {:>4} {:>8} {:>8} {:>8} {:>8} {:>8}".format(*titles))
    for r in records:
        print(
            f"{r.kernel:9} {r.shape:18} {r.rows:4} {r.length:6} {r.page_size:4} {r.us:8.2f} {r.p10_us:8.2f}"
            f" {r.p90_us:8.2f} {r.floor_us:8.2f} {r.relative_error:8.1e}"
        )
    if args.json:
        write_json(args.json, "bench-kernels", [asdict(record) for record in records])


if __name__ == "__main__":
    main()
