"""Time the gated delta net's step inside CUDA graphs, in µs per layer.

    python3 benches/gpu/bench_gdn.py --json FILE

The answer is compared with float64 on the first layer. The floor is the bytes of state read and written over
``--bandwidth`` (TB/s).
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass

import layers
import torch

from mstar_resident.cli.record import write_json
from mstar_resident.kernels import gdn_decode

GDN = {"16 heads": 16, "32 heads": 32, "48 heads": 48}


@dataclass(frozen=True)
class Record:
    """Hold the figures at one shape."""

    shape: str
    state: str
    rows: int
    layers: int
    us: float
    p10_us: float
    p90_us: float
    floor_us: float
    relative_error: float


def gdn(shape: str, rows: int, state_dtype: torch.dtype, args: argparse.Namespace) -> Record:
    """Check and time the gated delta net's step at one shape."""
    heads, key_heads, size = GDN[shape], 16, 128
    conv_dim = (2 * key_heads + heads) * size
    device, dtype = torch.device("cuda"), torch.bfloat16
    state_bytes = rows * heads * size * size * state_dtype.itemsize
    count = layers.count(2 * state_bytes, args.touch_mib)
    ssm = torch.zeros(count, rows + 1, heads, size, size, dtype=state_dtype, device=device).normal_()
    conv = torch.randn(count, rows + 1, conv_dim, 3, device=device).to(dtype)
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
        for layer in range(count):
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
    state_name = str(state_dtype).removeprefix("torch.")
    times = layers.time_graph(body, count, args.replays, args.rounds)
    return Record(shape, state_name, rows, count, *times, floor, error)


def main() -> None:
    """Run the bench and print a table; write the records to ``--json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,16,64,128", help="comma separated")
    layers.add_arguments(parser)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no CUDA device")
    torch.manual_seed(0)
    print(f"{'shape':10} {'state':9} {'rows':>4} {'µs':>8} {'p10':>8} {'p90':>8} {'floor':>8} {'error':>8}")
    records = []
    for shape in GDN:
        for state_dtype in (torch.float32, torch.bfloat16):
            for rows in map(int, args.rows.split(",")):
                r = gdn(shape, rows, state_dtype, args)
                records.append(r)
                print(
                    f"{r.shape:10} {r.state:9} {r.rows:4} {r.us:8.2f} {r.p10_us:8.2f} {r.p90_us:8.2f} {r.floor_us:8.2f}"
                    f" {r.relative_error:8.1e}",
                    flush=True,
                )
    if args.json:
        write_json(args.json, "bench-gdn", [asdict(record) for record in records])


if __name__ == "__main__":
    main()
