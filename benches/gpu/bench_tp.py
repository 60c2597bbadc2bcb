"""Time and prove a hybrid decoder that several GPUs share, over NCCL; or measure one rank's share alone.

    torchrun --nproc-per-node 4 benches/gpu/bench_tp.py --shape 27b --json out.json
    python3 benches/gpu/bench_tp.py --alone --ranks 4 --shape 27b --json out.json

Weights are drawn from a seed, each rank's on its own device. The arms ``resident`` and ``host`` serve the same requests
in turns; every rank times its own steps. Then, in runs of their own, every row of every resident step is checked on
every rank, by the shadow and by the row check. Exit 1 if tokens differ between arms or ranks, a row differs on any
rank, or a run was not what it is named for. ``--device cpu`` tries all of it over gloo; its times measure nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from prove import drive, sizes, unmet
from tp_ranks import Marks, Place, memory_figures, spoiling

from mstar_resident.bench.decode import (
    LEAST_RESIDENT,
    TOKEN_BUDGET,
    few_collections,
    looked_figures,
    spread,
    timed_figures,
    tokens_per_s,
)
from mstar_resident.bench.growth import measure_growth
from mstar_resident.bench.look import look
from mstar_resident.bench.memory_plan import memory_plan
from mstar_resident.bench.serve import Load, Served, serve
from mstar_resident.bench.shapes import Shape
from mstar_resident.cli.bench_memory import SHAPES
from mstar_resident.cli.record import write_json
from mstar_resident.engine.config import EngineConfig, Planning
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.scenarios.hooks import HookRunner
from mstar_resident.models.sharded import ShardedQwen35

ARMS: tuple[Planning, ...] = ("host", "resident")


class Bench:
    """Hold a rank's place, its part of the model, and the record's cases so far."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.place = Place.of(args.device, args.ranks if args.alone else 0)
        self.config = SHAPES[args.shape]
        self.cases: list[dict[str, Any]] = []
        self.wrong: list[str] = []
        self.engines: list[Engine] = []
        begin = time.perf_counter()
        self.model: ShardedQwen35 = self.place.model(self.config, args.seed)
        self.memory = {"weights": memory_figures(self.place.device)}
        self.say(f"{args.shape}: rank 0 of {self.place.shard.size} drawn in {time.perf_counter() - begin:.1f} s")

    def say(self, text: str) -> None:
        """Print a line, on rank 0."""
        if self.place.leads:
            print(text, flush=True)

    def keep(self, case: dict[str, Any], wrong: Sequence[str]) -> None:
        """Add a case to the record, which is written at once: a run that is cut short leaves what it measured."""
        conditions = {
            "shape": self.args.shape,
            "ranks": self.place.shard.size,
            "alone": self.place.alone,
            "seed": self.args.seed,
        }
        self.cases.append(conditions | case)
        self.wrong.extend(wrong)
        if self.place.leads:
            for text in wrong:
                print(f"wrong: {text}", file=sys.stderr)
            if self.args.json:
                write_json(self.args.json, "bench-tp", self.cases)

    def build(self, config: EngineConfig, **arguments: Any) -> Engine:
        """Return an engine, captured; what a graph could not be captured for ends the run."""
        begin = time.perf_counter()
        engine = self.place.engine(self.model, config, **arguments)
        self.engines.append(engine)
        self.memory[f"{config.planning} built"] = memory_figures(self.place.device)
        if config.planning == "resident" and engine.planner is None:
            raise SystemExit(f"the node stayed host-planned: {engine.refusal}")
        engine.capture()
        self.memory[f"{config.planning} captured"] = memory_figures(self.place.device)
        if engine.graphs is not None and engine.graphs.failed:
            raise SystemExit(f"buckets that could not be captured: {engine.graphs.failed}")
        self.say(f"{config.planning}, up to {config.max_batch} rows: captured in {time.perf_counter() - begin:.1f} s")
        return engine

    def arm_config(self, arm: Planning) -> EngineConfig:
        """Size an arm's engine for the widest captured step."""
        args = self.args
        shape = Shape(args.shape, self.config, args.page_size)
        return EngineConfig(
            max_batch=args.captures,
            max_requests=args.captures,
            pools={"kv": shape.pool(args.captures, args.prompt + args.new)},
            recurrent_states=args.captures,
            token_budget=TOKEN_BUDGET,
            planning=arm,
            device=self.place.device,
            dtype=self.place.dtype,
            least_resident=LEAST_RESIDENT,
        )

    def time(self) -> None:
        """Serve each load with both arms, once marked and then timed, in turns; note memory beside the plan."""
        place = self.place
        engines = {arm: self.build(self.arm_config(arm)) for arm in ARMS}
        plan = memory_plan(self.config, place.shard.size, self.arm_config("resident"))[place.shard.rank]
        of_ranks = place.group.gather({"plan": plan.record(), "measured": self.memory})
        self.keep({"case": "memory", "by_rank": of_ranks}, [])
        for name, held in self.memory.items():
            sizes = ", ".join(f"{what.removesuffix('_bytes')} {count / 2**30:.2f}" for what, count in held.items())
            self.say(f"memory of rank 0 in GiB, {name}: {sizes or 'not known on a CPU'}")
        self.say(f"its plan: weights {plan.weight_bytes / 2**30:.2f}, with an arm {plan.total_bytes / 2**30:.2f}")
        for concurrency in self.args.concurrency:
            self.time_load(engines, Load(concurrency, self.args.prompt, self.args.new))

    def time_load(self, engines: dict[Planning, Engine], load: Load) -> None:
        """Measure one load: a case per arm."""
        place, looks, timed, figures, wrong = self.place, {}, {arm: [] for arm in ARMS}, {}, []
        truth: list[list[int]] | None = None
        for arm, engine in engines.items():
            if place.leads:
                (served, found), _ = place.serve(engine, lambda engine=engine: look(engine, load))
                steps = [graph + rest for graph, rest in zip(found.graph_us, found.between_us, strict=False)]
                mine = {"graph_us": spread(found.graph_us), "idle_us": spread(found.between_us)}
                mine |= {"step_us": spread(steps), "steps": len(found.graph_us)}
                growth = measure_growth(engine, engine.arm.bucket(load.concurrency)) if place.alone else None
                looks[arm] = looked_figures(served, found, growth) | {"bucket": engine.arm.bucket(load.concurrency)}
                told = served.outputs
                truth = truth or told
                wrong += self.compare(arm, load, served, truth)
            else:
                with Marks(engine) as marks:
                    _, told = place.serve(engine, lambda: None)
                mine = marks.figures()
            figures[arm] = place.group.gather({"rank": place.group.rank} | mine)
            said = place.group.gather(told)
            wrong += [f"{arm}: rank {r} says other tokens than rank 0" for r in range(len(said)) if said[r] != said[0]]
        with few_collections():
            for number in range(self.args.rounds):
                for arm in ARMS if number % 2 else ARMS[::-1]:
                    place.barrier()
                    served, _ = place.serve(engines[arm], lambda arm=arm: serve(engines[arm], load))
                    if served is not None and truth is not None:
                        timed[arm].append(served)
                        wrong += self.compare(arm, load, served, truth)
        if place.leads:
            self.keep_load(load, looks, timed, figures, wrong)

    def compare(self, arm: Planning, load: Load, served: Served, truth: list[list[int]]) -> list[str]:
        """Return what is wrong with a run of an arm."""
        wrong = [] if served.outputs == truth else [f"{arm} at {load.concurrency}: tokens differ between runs or arms"]
        if arm == "resident" and served.resident_steps < LEAST_RESIDENT * served.decode_steps:
            wrong.append(f"{served.resident_steps} of {served.decode_steps} decode steps were resident")
        return wrong

    def keep_load(
        self,
        load: Load,
        looks: dict[Planning, dict[str, Any]],
        timed: dict[Planning, list[Served]],
        figures: dict[Planning, list[dict[str, Any]]],
        wrong: list[str],
    ) -> None:
        """Keep a case per arm, its throughput beside the host-planned arm's of the same round."""
        rates = {arm: [tokens_per_s(run, load) for run in runs] for arm, runs in timed.items()}
        for arm in ARMS:
            ratio = spread(ours / theirs for ours, theirs in zip(rates[arm], rates["host"], strict=True))
            case = {"case": "arm", "arm": arm, "concurrency": load.concurrency, "prompt": load.prompt, "new": load.new}
            case |= {"rounds": self.args.rounds, "captures": self.args.captures, "page_size": self.args.page_size}
            case |= {"tok_s": spread(rates[arm]), "ratio": ratio, "ratio_to": "host", "tokens_equal": not wrong}
            case |= timed_figures(timed[arm], load) | looks[arm] | {"by_rank": figures[arm]}
            self.keep(case, wrong if arm == ARMS[-1] else [])
            by_rank = ", ".join(
                f"{rank['graph_us']['median']:.0f}+{rank['idle_us']['median']:.0f}" for rank in figures[arm]
            )
            rate, step = case["tok_s"]["median"], case["step_us"]["median"]
            self.say(
                f"{load.concurrency:>4} {arm:<8} {rate:>9.1f} tok/s, {ratio['median']:.3f} of host; "
                f"step {step:.0f} us; graph+idle us by rank: {by_rank}"
            )

    def prove(self, check: str) -> None:
        """Serve requests that join and leave, every row checked on every rank."""
        args, place = self.args, self.place
        spoiled: dict[str, Any] = {"wrap_runner": HookRunner} if args.inject == place.group.rank else {}
        engine = self.build(sizes(args.rows, check, place.device, place.dtype), **spoiled)
        if spoiled:
            spoiling(engine)
        begin = time.perf_counter()
        joined, _ = place.serve(engine, lambda: drive(engine, args.rows, args.steps, args.seed))
        counters, planner = engine.counters, engine.planner
        checked = engine.shadow.rows if engine.shadow is not None else counters.rows_checked
        mine = {
            "rank": place.group.rank,
            "resident_steps": counters.resident_steps,
            "host_steps": counters.steps - counters.resident_steps,
            "rows_checked": checked,
            "mismatches": len(counters.mismatches),
            "first_mismatches": counters.mismatches[:3],
            "displaced": planner.stats().displaced if planner is not None else None,
        }
        ranks = place.group.gather(mine)
        wrong = [f"{check}, rank {r['rank']}: {r['mismatches']} mismatches" for r in ranks if r["mismatches"]]
        wrong += [
            f"rank {r['rank']} checked other rows" for r in ranks if r["rows_checked"] != ranks[0]["rows_checked"]
        ]
        if place.leads:
            wrong += [f"not proved: {text}" for text in unmet(engine, args.rows, args.steps, joined, checked)]
        # A follower compares every token of every step with rank 0's, and raises where one differs.
        case = {"case": "proof", "check": check, "rows": args.rows, "joined": joined, "by_rank": ranks}
        case |= {"run_s": round(time.perf_counter() - begin, 1), "proved": not wrong}
        self.keep(case, wrong)
        self.say(f"{check}: {[(r['resident_steps'], r['rows_checked'], r['mismatches']) for r in ranks]}")

    def finish(self) -> int:
        """Leave the group; return the exit code, the same on all ranks."""
        wrong = any(self.place.group.gather(bool(self.wrong)))
        self.place.leave(self.engines)
        return int(wrong)


def main() -> int:
    """Be one rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="27b", choices=sorted(SHAPES))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--alone", action="store_true", help="build rank 0's share alone, without the others")
    parser.add_argument("--ranks", type=int, default=4, help="with --alone: of how many it is the share")
    parser.add_argument("--parts", default="time,shadow,row", help="of time, shadow, row (default: all)")
    parser.add_argument("--concurrency", default="1,16,64", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--captures", type=int, default=128, help="rows of the widest captured step of the timed arms")
    parser.add_argument("--page-size", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=40, help="of a proof's steps, a multiple of 8")
    parser.add_argument("--steps", type=int, default=5000, help="resident steps of a proof")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inject", type=int, metavar="RANK", help="spoil a cell of the store there, in the proofs")
    parser.add_argument("--json")
    bench = Bench(parser.parse_args())
    for part in bench.args.parts.split(","):
        if part == "time":
            bench.time()
        else:
            bench.prove(part)
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())
