"""Time the decoders' matrix products of few rows, with their neighbours, inside CUDA graphs, in µs per product.

    python3 benches/gpu/bench_linear.py --json FILE

Every launch is compared with float64 first. ``torch`` is torch's product with this package's kernels between;
``share`` is of ``--bandwidth`` (TB/s), by the bytes of weights; "early" launches overlap the kernel ahead of them.
Kernels are compiled ahead by ``--compilers`` processes.
"""

from __future__ import annotations

import argparse
import multiprocessing
from dataclasses import asdict, dataclass

import layers
import torch
import torch.nn.functional as F
from torch import Tensor

from mstar_resident.cli.record import write_json
from mstar_resident.kernels import few_rows
from mstar_resident.kernels.few_rows_launch import Launch, choose
from mstar_resident.models.layers_triton import TritonPointwise
from mstar_resident.models.products import TorchProducts

#: Columns and elements of k of each product, by what lies in front of it or behind.
PRODUCTS = {
    "0.8b": {"delta": (8224, 1024), "attention": (5120, 1024), "mlp": (3584, 1024), "down": (1024, 3584)}
    | {"out": (1024, 2048), "gated": (1024, 2048)},
    "4b": {"delta": (12352, 2560), "attention": (10240, 2560), "mlp": (9216, 2560), "down": (2560, 9216)}
    | {"out": (2560, 4096), "gated": (2560, 4096)},
    "qwen3": {"attention": (4096, 1024), "mlp": (3072, 1024), "down": (1024, 3072), "out": (1024, 2048)},
}
NORMED = ("delta", "attention", "mlp")
DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Record:
    """Hold the figures of one launch of one product; no launch is torch's."""

    shape: str
    product: str
    rows: int
    launch: Launch | None
    early: bool
    us: float
    share: float
    relative_error: float


class Case:
    """Hold a product's weights, a layer each, its inputs, and what float64 makes of the first layer."""

    def __init__(self, shape: str, name: str, rows: int, args: argparse.Namespace, memory: Tensor | None) -> None:
        self.name, self.rows = name, rows
        self.n, self.k = PRODUCTS[shape][name]
        self.swiglu, self.normed, self.gated = name == "mlp", name in NORMED, name == "gated"
        columns = self.n * (2 if self.swiglu else 1)
        each = columns * self.k
        self.floor_us = each * DTYPE.itemsize / args.bandwidth / 1e6
        if memory is None:
            memory = torch.zeros(each, dtype=DTYPE, device="cuda")
        self.count = min(layers.count(each * DTYPE.itemsize, args.touch_mib), memory.numel() // each)
        self.weights = memory[: self.count * each].view(self.count, columns, self.k)
        self.h, self.gate = torch.randn(2, rows, self.k, device="cuda").to(DTYPE)
        self.norm, self.total = torch.rand(self.k, device="cuda") + 0.5, torch.empty(rows, self.k, device="cuda")
        self.x = torch.randn(rows, self.k, device="cuda").to(torch.float32 if self.normed else DTYPE)
        self.out = torch.empty(rows, self.n, dtype=DTYPE, device="cuda")
        self.pointwise = TritonPointwise()
        self.torch = TorchProducts(self.pointwise)

    def expected(self) -> Tensor:
        """Return the first layer's product."""
        x = self.x.double()
        if self.normed:
            x = F.rms_norm(x + self.h.double(), (self.k,), self.norm.double(), 1e-6)
        if self.gated:
            x = x * self.gate.double().sigmoid()
        y = x @ self.weights[0].double().T
        if self.swiglu:
            gate, up = y.chunk(2, 1)
            y = F.silu(gate) * up
        return y

    def step(self, layer: int, launch: Launch | None, early: bool) -> Tensor:
        """Make one product."""
        w, x = self.weights[layer], self.x
        if launch is None:
            if self.swiglu:
                return self.torch.normed_swiglu(self.total, self.h, self.norm, 1e-6, w)[1]
            if self.normed:
                return self.torch.normed(self.total, self.h, self.norm, 1e-6, w)[1]
            return self.torch.gated(x, self.gate, w) if self.gated else self.torch.plain(x, w)
        given = {"h": self.h, "total": self.total, "norm": self.norm, "eps": 1e-6} if self.normed else {}
        given |= {"gate": self.gate} if self.gated else {}
        few_rows.product(x, w, self.out, swiglu=self.swiglu, _launch=launch, _early=early, **given)
        return self.out

    def check(self, expected: Tensor, launch: Launch | None, early: bool) -> float:
        """Return the relative error; exit where the product or the sum is wrong."""
        self.out.fill_(float("nan"))
        self.total.copy_(self.x if self.normed and launch is None else torch.full_like(self.total, float("nan")))
        got = self.step(0, launch, early)
        error = float((got.double() - expected).norm() / expected.norm())
        summed = not self.normed or torch.equal(self.total, self.x + self.h)
        if not (error < 8e-3 and summed):
            raise SystemExit(f"{self.name}, {self.rows} rows, {launch}: relative error {error}, sum right: {summed}")
        return error

    def time(self, launch: Launch | None, early: bool, replays: int, rounds: int) -> float:
        """Return the median of µs per product."""

        def body() -> None:
            for layer in range(self.count):
                self.step(layer, launch, early)

        return layers.time_graph(body, self.count, replays, rounds)[0]


def tried(case: Case) -> list[Launch]:
    """Return the launches to try, once each, the chosen one first."""
    columns, k = 2 if case.swiglu else 1, case.k
    launches = [choose(case.rows, case.n, k, case.swiglu)]
    if k <= 1024:
        sizes = [(8, 1024, 4), (4, 1024, 4), (8, 512, 2), (16, 1024, 4)]
    else:
        sizes = [(2, 4096, 4), (2, 1024, 4), (4, 1024, 4), (4, 512, 2), (4, 2048, 8), (8, 1024, 4)]
    launches += [Launch(max(1, n // columns), block, warps) for n, block, warps in sizes]
    return list(dict.fromkeys(launch.fitted(case.n, k) for launch in launches))


def compile_some(work: tuple[list[tuple[str, str, int]], argparse.Namespace]) -> None:
    """Compile the launches of some products into the cache on disk, by running each once."""
    cases, args = work
    for shape, name, rows in cases:
        case = Case(shape, name, rows, args, None)
        for launch in tried(case):
            for early in (False, True):
                case.step(0, launch, early)
    torch.cuda.synchronize()


def measure(shape: str, name: str, rows: int, args: argparse.Namespace, memory: Tensor) -> list[Record]:
    """Check and time torch and every launch of one product."""
    case, records = Case(shape, name, rows, args, memory), []
    expected = case.expected()
    for launch in (None, *tried(case)):
        for early in (False, True) if launch else (False,):
            error = case.check(expected, launch, early)
            us = case.time(launch, early, args.replays, args.rounds)
            records.append(Record(shape, name, rows, launch, early, us, case.floor_us / us, error))
    return records


def text(record: Record) -> str:
    """Return a launch and its figures in a few letters."""
    launch = record.launch or Launch(0, 0, 0)
    early = " early" if record.early else ""
    return f"{launch.block_n}x{launch.block_k}x{launch.warps}w{early} {record.us:.2f} ({record.share:.0%})"


def main() -> None:
    """Measure and print a line per product; write the records to ``--json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,2,4", help="comma separated")
    parser.add_argument("--shapes", default=",".join(PRODUCTS), help="comma separated")
    parser.add_argument("--compilers", type=int, default=14, help="processes that compile; 0: none")
    layers.add_arguments(parser)
    parser.set_defaults(replays=3, rounds=5)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no CUDA device")
    torch.manual_seed(0)
    rows = [int(t) for t in args.rows.split(",")]
    cases = [(shape, name, t) for shape in args.shapes.split(",") for name in PRODUCTS[shape] for t in rows]
    if args.compilers:
        work = [(cases[i :: args.compilers], args) for i in range(args.compilers)]
        with multiprocessing.get_context("spawn").Pool(args.compilers) as pool:
            pool.map(compile_some, work, chunksize=1)
    # The first layers of all products are the same memory; the floor of touched bytes holds for each.
    memory = torch.randn(max(args.touch_mib, 128) << 19, device="cuda").mul_(0.03).to(DTYPE)
    records: list[Record] = []
    for shape, name, t in cases:
        library, *ours = here = measure(shape, name, t, args, memory)
        records += here
        chosen = next(r for r in ours if r.early)
        best = sorted(ours, key=lambda record: record.us)
        best = [*best[:2], *[r for r in best if not r.early][:1]]
        line = "; ".join(map(text, dict.fromkeys(best)))
        print(
            f"{shape:6} {name:9} {t:2}: torch {library.us:6.2f} ({library.share:.0%}); chosen {text(chosen)}; {line}",
            flush=True,
        )
    if args.json:
        write_json(
            args.json, "bench-linear", [asdict(r) | {"launch": r.launch and r.launch._asdict()} for r in records]
        )


if __name__ == "__main__":
    main()
