"""Time the gated delta net's step inside CUDA graphs, in µs per layer.

    python3 benches/gpu/bench_gdn.py --json FILE

The answer and the states are compared with float64 on the first layer. The floor is the bytes of state read and
written over ``--bandwidth`` (TB/s).
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass

import layers
import torch

from mstar_resident.cli.record import write_json
from mstar_resident.kernels import gdn_decode
from mstar_resident.kernels.gdn_launch import Launch

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


class Case:
    """Hold layers of one shape, a step's inputs, and what float64 makes of the first layer."""

    def __init__(self, shape: str, rows: int, state_dtype: torch.dtype, args: argparse.Namespace) -> None:
        heads, key_heads, size = GDN[shape], 16, 128
        conv_dim = (2 * key_heads + heads) * size
        device, dtype = torch.device("cuda"), torch.bfloat16
        state_bytes = rows * heads * size * size * state_dtype.itemsize
        self.name = f"gated delta net {shape}, {state_dtype}, {rows} rows"
        self.floor_us = 2 * state_bytes / args.bandwidth / 1e6
        self.count = layers.count(2 * state_bytes, args.touch_mib)
        self.ssm = torch.zeros(self.count, rows + 1, heads, size, size, dtype=state_dtype, device=device).normal_()
        self.conv = torch.randn(self.count, rows + 1, conv_dim, 3, device=device).to(dtype)
        self.index = (torch.randperm(rows, device=device) + 1).to(torch.int32)
        self.qkv = torch.randn(rows, conv_dim, device=device).to(dtype)
        self.weight = torch.randn(conv_dim, 4, device=device).to(dtype)
        self.a, self.b = torch.randn(2, rows, heads, device=device).to(dtype)
        self.a_log, self.dt_bias = torch.rand(2, heads, device=device)
        self.z, self.out = torch.randn(2, rows, heads, size, device=device).to(dtype)
        self.norm = torch.ones(size, device=device)
        self.before = self.conv[0].clone(), self.ssm[0].clone()

        at = self.index.long()
        window = torch.cat([self.conv[0, at], self.qkv[:, :, None]], 2)
        mixed = torch.nn.functional.silu((window.double() * self.weight.double()).sum(2)).view(rows, -1, size)
        q, k, v = mixed.split([key_heads, key_heads, heads], 1)
        q, k = (t * torch.rsqrt((t * t).sum(2, keepdim=True) + 1e-6) for t in (q, k))
        q, k = (t.repeat_interleave(heads // key_heads, 1) for t in (q * size**-0.5, k))
        step = torch.nn.functional.softplus(self.a.double() + self.dt_bias.double())
        state = self.ssm[0, at].double() * torch.exp(-self.a_log.double().exp() * step)[..., None, None]
        delta = (v - (state @ k[..., None])[..., 0]) * self.b.double().sigmoid()[..., None]
        state += delta[..., None] * k[:, :, None]
        out = (state @ q[..., None])[..., 0]
        out *= torch.rsqrt((out * out).mean(2, keepdim=True) + 1e-6) * torch.nn.functional.silu(self.z.double())
        self.expected = out, window[:, :, 1:], state

    def step(self, layer: int, launch: Launch | None) -> None:
        """Advance one layer."""
        fixed = (self.qkv, self.a, self.b, self.weight, self.a_log, self.dt_bias)
        states = (self.conv[layer], self.ssm[layer], self.index)
        gdn_decode.step(*fixed, *states, self.out, z=self.z, norm_weight=self.norm, _launch=launch)

    def check(self, launch: Launch | None = None) -> float:
        """Return the output's relative error; exit where it or the states of the first layer are wrong."""
        self.conv[0], self.ssm[0] = self.before
        self.out.fill_(float("nan"))
        self.step(0, launch)
        at = self.index.long()
        out, conv, state = self.expected
        error = float((self.out.double() - out).norm() / out.norm())
        state_error = float((self.ssm[0, at].double() - state).norm() / state.norm())
        state_limit = 1e-5 if self.ssm.dtype == torch.float32 else 5e-3
        if not (error < 6e-3 and state_error < state_limit and torch.equal(self.conv[0, at], conv)):
            raise SystemExit(f"{self.name}, {launch}: relative errors {error} of output, {state_error} of state")
        return error

    def time(self, replays: int, rounds: int, launch: Launch | None = None) -> tuple[float, float, float]:
        """Return median, p10 and p90 of µs per layer."""

        def body() -> None:
            for layer in range(self.count):
                self.step(layer, launch)

        return layers.time_graph(body, self.count, replays, rounds)


def gdn(shape: str, rows: int, state_dtype: torch.dtype, args: argparse.Namespace) -> Record:
    """Check and time the gated delta net's step at one shape."""
    case = Case(shape, rows, state_dtype, args)
    error = case.check()
    state_name = str(state_dtype).removeprefix("torch.")
    times = case.time(args.replays, args.rounds)
    return Record(shape, state_name, rows, case.count, *times, case.floor_us, error)


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
