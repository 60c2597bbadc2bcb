"""Time the prologue inside a CUDA graph: what each arm adds to a graph of many small kernels.

    python3 benches/gpu/bench_prologue.py --rows 1,64,128 --columns 2050 --json FILE

Every arm is checked against the oracle first. Arms are timed in turn, round after round, over back-to-back replays. A
graph keeps the places that its capture gave it, so every arm is captured anew several times; what an arm adds in one
capture is the median of its differences to "no planner" in the same round, and the figure is the median over captures,
with the least and the greatest beside it. ``--cold-mib`` makes the graph's last kernel overwrite
that much memory, so that the store has left the cache by the next replay, as it has after a forward. "beside" is the
prologue on a branch of its own, joined after as many kernels as a decoder runs before it needs a row.
"""

from __future__ import annotations

import argparse
import random
import statistics
from dataclasses import asdict, dataclass

import torch
from prologue_arms import ARMS, Launch, torch_reference

from mstar_resident.cli.record import write_json
from mstar_resident.layout import Column, KVTable, RowLayout
from mstar_resident.lease import Lease
from mstar_resident.store import Store

PAGE_SIZE = 128
NARROW = 3  # stored length, position offset, recurrent index
BESIDE = 3  # kernels that need no row: embedding, norm, the first projection


@dataclass(frozen=True)
class Record:
    """Hold one arm's figures at one shape."""

    arm: str
    rows: int
    columns: int
    kernels: int
    cold_mib: int
    replay_us: float
    added_us: float
    added_least_us: float
    added_greatest_us: float


def make_state(layout: RowLayout, rows: int, device: torch.device, seed: int) -> tuple[Store, Lease]:
    """Return a store whose rows are drawn and a lease whose slots are a draw of them, in any order."""
    draw = random.Random(seed)
    store, lease = Store(layout, rows, torch.device("cpu")), Lease(layout, "decode", rows, 0, torch.device("cpu"))
    table = layout.tables[0]
    for slot in range(1, store.rows):
        length = draw.randrange(table.page_size * table.pages // 2)
        store.narrow[slot] = torch.tensor([length, draw.randrange(-9, 9), draw.randrange(1, 1000)])
    generator = torch.Generator().manual_seed(seed)
    shape = (store.rows - 1, table.pages)
    store.tables[table.name][1:] = torch.randint(1, table.pool_pages, shape, generator=generator, dtype=torch.int32)
    lease.slots[:] = torch.tensor(draw.sample(range(1, store.rows), rows))
    moved_store, moved_lease = Store(layout, rows, device), Lease(layout, "decode", rows, 0, device)
    pairs = [(moved_store.narrow, store.narrow), (moved_lease.inputs, lease.inputs)]
    pairs += [(moved_store.tables[name], store.tables[name]) for name in store.tables]
    for to, source in pairs:
        to.copy_(source)
    return moved_store, moved_lease


def check(name: str, layout: RowLayout, rows: int, device: torch.device) -> None:
    """Raise if an arm's outputs or store differ from the oracle's after three steps, the first with cells."""
    state, expected = make_state(layout, rows, device, 1), make_state(layout, rows, torch.device("cpu"), 1)
    for _, lease in (state, expected):
        lease.cells[0, 0] = torch.tensor([1, 5 * PAGE_SIZE])  # a refreshed length, and the page that it starts
        lease.cells[0, 1] = torch.tensor([1 + layout.table_starts[0] + 5, 77])
    for _ in range(3):
        ARMS[name](layout, *state)()
        torch_reference(layout, *expected)()
    for got, want in zip(tensors(*state), tensors(*expected), strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=0, atol=0, msg=f"arm {name}")


def tensors(store: Store, lease: Lease) -> list[torch.Tensor]:
    """Return everything that a prologue may write."""
    outputs = [*lease.lengths.values(), *lease.write_loc.values(), *lease.columns.values()]
    return [store.narrow, *store.tables.values(), lease.inputs, *outputs]


def capture(launch: Launch, beside: int, args: argparse.Namespace, device: torch.device) -> torch.cuda.CUDAGraph:
    """Return a graph of ``launch``, small kernels in a chain, the overwrite; ``beside`` kernels do not wait for it."""
    small = torch.zeros(64 * 1024, device=device)
    cold = torch.zeros(args.cold_mib << 18, device=device)  # 4 bytes each
    graph, branch = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    launch()
    small.add_(1.0)
    cold.add_(1.0)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        if beside:
            branch.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(branch):
                launch()
            for _ in range(beside):
                small.add_(1.0)
            torch.cuda.current_stream().wait_stream(branch)
        else:
            launch()
        for _ in range(args.kernels - beside):
            small.add_(1.0)
        if args.cold_mib:
            cold.add_(1.0)
    graph.keep = (small, cold, launch)
    return graph


def time_replays(graph: torch.cuda.CUDAGraph, replays: int) -> float:
    """Return µs of GPU time per replay, back to back."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1000 / replays


def bench(rows: int, columns: int, args: argparse.Namespace, device: torch.device) -> list[Record]:
    """Check and time every arm at one shape."""
    pages = columns - NARROW
    layout = RowLayout(
        [KVTable("kv", PAGE_SIZE, pages, pages * PAGE_SIZE)],
        [Column("position_offset", "position", "kv"), Column("recurrent_index", "index")],
    )
    for name in ARMS:
        if name != "no planner":
            check(name, layout, rows, device)
    arms = {name: (arm, 0) for name, arm in ARMS.items()} | {"fused, beside": (ARMS["fused"], BESIDE)}
    replay: dict[str, list[float]] = {name: [] for name in arms}
    added: dict[str, list[float]] = {name: [] for name in arms}
    for seed in range(args.captures):
        graphs = {
            name: capture(arm(layout, *make_state(layout, rows, device, seed)), beside, args, device)
            for name, (arm, beside) in arms.items()
        }
        for graph in graphs.values():
            time_replays(graph, args.replays)
        rounds = [
            {name: time_replays(graph, args.replays) for name, graph in graphs.items()} for _ in range(args.rounds)
        ]
        for name in arms:
            replay[name].append(statistics.median(one[name] for one in rounds))
            added[name].append(statistics.median(one[name] - one["no planner"] for one in rounds))
    return [
        Record(
            name,
            rows,
            columns,
            args.kernels,
            args.cold_mib,
            statistics.median(replay[name]),
            statistics.median(added[name]),
            min(added[name]),
            max(added[name]),
        )
        for name in arms
    ]


def main() -> None:
    """Run the bench and print a table; write the records to ``--json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,64,128", help="buckets, comma separated")
    parser.add_argument("--columns", type=int, default=2050, help="columns of a row")
    parser.add_argument("--kernels", type=int, default=300, help="small kernels of the graph")
    parser.add_argument("--cold-mib", type=int, default=0, help="MiB that the graph overwrites at its end")
    parser.add_argument("--replays", type=int, default=50, help="replays timed at once")
    parser.add_argument("--rounds", type=int, default=10, help="rounds over all arms of a capture")
    parser.add_argument("--captures", type=int, default=7, help="captures of every arm")
    parser.add_argument("--json", help="file for the records")
    args = parser.parse_args()
    if args.columns <= NARROW:
        parser.error(f"--columns: expected more than {NARROW}, got {args.columns}")
    if not torch.cuda.is_available():
        parser.error("no CUDA device")
    device = torch.device("cuda", torch.cuda.current_device())
    records = [record for rows in args.rows.split(",") for record in bench(int(rows), args.columns, args, device)]
    print(f"{'rows':>5} {'columns':>8} {'arm':28} {'replay µs':>10} {'added µs':>9} {'least':>7} {'greatest':>8}")
    for r in records:
        print(
            f"{r.rows:5} {r.columns:8} {r.arm:28} {r.replay_us:10.2f} {r.added_us:9.2f}"
            f" {r.added_least_us:7.2f} {r.added_greatest_us:8.2f}"
        )
    if args.json:
        write_json(args.json, "bench-prologue", [asdict(record) for record in records])


if __name__ == "__main__":
    main()
