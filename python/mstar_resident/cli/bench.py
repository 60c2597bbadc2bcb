"""``mstar-resident bench plan|host|decode|memory|prologue|attention``."""

from __future__ import annotations

import argparse

from mstar_resident.cli import bench_decode, bench_gpu, bench_host, bench_memory, bench_plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    kinds = parser.add_subparsers(dest="what", required=True, metavar="{plan,host,decode,memory,prologue,attention}")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        return kinds.add_parser(name, help=text)

    bench_plan.add_arguments(add("plan", "what a step's plan costs on the host: core, Python, NumPy planner"))
    bench_host.add_arguments(add("host", "what preparing a decode step costs the host-planned arm"))
    bench_decode.add_arguments(
        add("decode", "the engine end to end: tokens a second, where a step's time goes, by arm")
    )
    bench_memory.add_arguments(add("memory", "what each rank's share of a model takes, worked out without a device"))
    bench_gpu.add_prologue(add("prologue", "what the prologue adds to a captured graph, on a CUDA device"))
    bench_gpu.add_attention(add("attention", "decode attention a layer, for every backend installed, on a CUDA device"))


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    kinds = {"plan": bench_plan.run, "host": bench_host.run, "decode": bench_decode.run, "memory": bench_memory.run}
    return kinds.get(arguments.what, bench_gpu.run)(arguments)
