"""``mstar-resident generate``: text from a real model, and a short report of how its rows lived."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from mstar_resident.cli.exits import GOOD, MISMATCH, UsageError
from mstar_resident.cli.record import check_writable, write_json
from mstar_resident.config import planning_mode
from mstar_resident.device import check_device
from mstar_resident.engine.config import EngineConfig, PoolConfig
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.request import Request, Sampling
from mstar_resident.engine.request_check import check_sampling
from mstar_resident.models import smollm2
from mstar_resident.models.llama import Llama


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("prompt", help="what to say to the model")
    parser.add_argument("--planning", choices=("auto", "off"), help="default: $MSTAR_RESIDENT_PLANNING, else auto")
    parser.add_argument("--check", action="store_true", help="check every resident step's rows cell by cell")
    parser.add_argument("--max-new", type=int, default=128, metavar="N", help="tokens at most (default 128)")
    parser.add_argument("--model", metavar="DIR", help="folder of config.json, safetensors and tokenizer")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy, the default")
    parser.add_argument("--top-k", type=int, default=0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--max-batch", type=int, default=8, metavar="B", help="rows of the widest bucket")
    parser.add_argument("--device", default="cpu", help="cpu or cuda[:N] (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON too")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    check_writable(arguments.json)
    if arguments.max_new < 1:
        raise UsageError(f"--max-new: expected at least 1, got {arguments.max_new}")
    planning = planning_mode(arguments.planning)
    config = EngineConfig(
        max_batch=arguments.max_batch,
        max_requests=1,
        pools={
            "kv": PoolConfig(arguments.page_size, pool_pages=1 + 4096 // max(arguments.page_size, 1), max_seq_len=4096)
        },
        planning="resident" if planning == "auto" else "off",
        check=arguments.check,
        device=arguments.device,
    )
    sampling = Sampling(arguments.temperature, arguments.top_k, arguments.top_p, arguments.seed)
    check_sampling(sampling)
    check_device(arguments.device)
    tokenizer, model = _load(arguments.model, arguments.device)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": arguments.prompt}], tokenize=False, add_generation_prompt=True
    )
    tokens = np.array(tokenizer(text, add_special_tokens=False)["input_ids"], dtype=np.int64)
    shown = _Stream(tokenizer)
    request = Request(
        "generate",
        tokens,
        arguments.max_new,
        sampling,
        stop=frozenset({tokenizer.eos_token_id}),
        on_token=shown.add,
    )
    engine = Engine(model, config)
    engine.add(request)
    engine.run()
    shown.end()
    case = report(engine, request)
    print("\n".join(_lines(case, engine)))
    if arguments.json:
        write_json(arguments.json, "generate", [case | {"prompt": arguments.prompt, "text": shown.text}])
    return MISMATCH if case["mismatches"] else GOOD


def report(engine: Engine, request: Request) -> dict[str, Any]:
    """Return what a run did, by name."""
    counters, stats = engine.counters, engine.planner.stats() if engine.planner is not None else None
    spent = counters.clock.spent_ns
    plan_ns = sum(spent[phase] for phase in ("pre-plan stage", "plan", "fresh plan", "flush", "commit"))
    return {
        "prompt_tokens": len(request.prompt),
        "new_tokens": len(request.outputs),
        "stopped_by": request.reason,
        "steps": counters.steps,
        "decode_steps": counters.decode_steps,
        "resident_steps": counters.resident_steps,
        "whole_rows": stats.whole_rows if stats else 0,
        "crossings": stats.crossings if stats else 0,
        "bytes_sent": stats.bytes if stats else 0,
        "plan_us_per_step": round(plan_ns / 1000 / counters.resident_steps, 2) if counters.resident_steps else 0.0,
        "rows_checked": counters.rows_checked,
        "mismatches": len(counters.mismatches),
    }


def _lines(case: dict[str, Any], engine: Engine) -> list[str]:
    planned = "" if engine.refusal is None else f" (host-planned, {engine.refusal})"
    return [
        f"steps           {case['steps']}, {case['decode_steps']} of them decode only",
        f"resident steps  {case['resident_steps']}{planned}",
        f"whole rows      {case['whole_rows']}",
        f"crossings       {case['crossings']}",
        f"bytes sent      {case['bytes_sent']}",
        f"plan time       {case['plan_us_per_step']} us a resident step, on the host, between forwards",
        f"rows checked    {case['rows_checked']}",
        *engine.counters.mismatches[:10],
        f"mismatches: {case['mismatches']}",
    ]


def _load(directory: str | None, device: str) -> tuple[Any, Llama]:
    if directory is not None and not (Path(directory) / "config.json").is_file():
        raise UsageError(f"--model: {directory} holds no config.json")
    print("loading the model", file=sys.stderr)
    folder = Path(directory) if directory is not None else smollm2.ensure()
    from transformers import AutoTokenizer  # takes seconds to import: only now

    return AutoTokenizer.from_pretrained(str(folder)), Llama.from_directory(folder, device=device)


class _Stream:
    """Print text as its tokens come; a token may end in the middle of a character."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self.text = ""

    def add(self, token: int) -> None:
        """Print what a token adds."""
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            self._show(text)

    def end(self) -> None:
        """Print what is left, and end the text."""
        self._show(self._tokenizer.decode(self._tokens, skip_special_tokens=True))
        print("\n")

    def _show(self, text: str) -> None:
        print(text[len(self.text) :], end="", flush=True)
        self.text = text
