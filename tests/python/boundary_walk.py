"""Walk over every call of the native module, good and bad arguments, without torch and NumPy: quick under valgrind.

Run as a program; exits non-zero if a call misbehaves or one was never made.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from array import array
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = Path(__file__).resolve().parents[2] / "python" / "mstar_resident"
DEPTH = 8
#: Calls that are no operation of the core, and those that have another name there.
NOT_LOGGED = {"bind_store", "bind_ring", "largest_flush_bytes"}
RENAMED = {"drop": "drop_staged", "column_value": "column"}
OFFSET = 2  # the column of the named column, after the stored lengths of two tables


def load() -> tuple[Any, Any]:
    """Import the native module and the errors alone: the package itself would import torch."""
    bare = ModuleType("mstar_resident")
    bare.__path__ = [str(PACKAGE)]
    sys.modules["mstar_resident"] = bare
    from mstar_resident import _core, errors

    return _core, errors


class Recorder:
    """Pass every call on to the planner, and keep the names of those made."""

    def __init__(self, planner: Any) -> None:
        self._planner = planner
        self.called: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.called.add(name)
        return getattr(self._planner, name)


def ints(*values: int) -> array[int]:
    return array("q", values)


def bind(core: Any, journal: Any, layout: Any, max_batch: int) -> tuple[Recorder, list[int], list[array[int]]]:
    """Make a planner over memory that Python holds; returns it, its leases and that memory."""
    planner = Recorder(core.Planner(layout, max_batch, strict=True, journal=journal))
    tables = list(layout.table_pages)
    rows = 2 * max_batch + 1
    narrow = array("q", bytes(8 * rows * layout.narrow_cells))
    stores = [array("i", bytes(4 * rows * pages)) for pages in tables]
    bytes_each = -(-planner.largest_flush_bytes() // 8) * 8
    ring = [array("q", bytes(bytes_each)) for _ in range(DEPTH)]
    planner.bind_store(narrow.buffer_info()[0], [s.buffer_info()[0] for s in stores], False, (narrow, stores))
    planner.bind_ring([r.buffer_info()[0] for r in ring], bytes_each, False, ring)
    inputs = [array("q", bytes(8 * (b + 2 * b * layout.cells_per_row))) for b in (2, max_batch)]
    leases = [planner.add_lease(len(i) // (1 + 2 * layout.cells_per_row), i.buffer_info()[0], i) for i in inputs]
    return planner, leases, [narrow, *stores, *ring, *inputs]


def walk(core: Any, errors: Any, journal: Any, seed: int, steps: int) -> set[str]:
    """Run a random history of engine-owned streams; errors are expected and must leave the planner whole."""
    draw = random.Random(seed)
    layout = core.Layout([("kv", 4, 200, 64, 1), ("context", 8, 50, 64, 0)], ["offset"])
    planner, leases, memory = bind(core, journal, layout, 4)
    live: list[int] = []
    stage: Any = None
    for _ in range(steps):
        with suppress(errors.ResidentError):
            if len(live) < 9 or draw.random() < 0.1:
                handle = planner.open()
                live.append(handle)
                planner.set_stream(handle, 0, ints(*draw.sample(range(1, 201), 3)), draw.randint(0, 12))
                planner.set_stream(handle, 1, ints(7), draw.randint(1, 8))
                planner.set_column(OFFSET, ints(handle), ints(draw.randint(-5, 5)))
            members = draw.sample(live, draw.randint(1, min(4, len(live))))
            handle = members[0]
            batch = planner.batch(ints(*members))
            if batch.handles() != members:
                raise SystemExit("a batch forgot its handles")
            lease = leases[len(members) > 2]
            for member in members:
                held = len(planner.pages(member, 0))
                if planner.length(member, 0) + 1 > 4 * held:
                    planner.append_pages(0, ints(member), ints(1), ints(draw.randint(1, 200)))
            stage = planner.stage(batch, lease)
            action = draw.randrange(12)
            if action == 0:
                planner.release(live.pop(live.index(handle)))
            elif action == 1:
                planner.offload(handle)
            elif action == 2:
                planner.mark_stale(ints(handle))
            elif action == 3:
                planner.host_step(0, ints(handle), ints(1))
            elif action == 4:
                planner.truncate(0, handle, planner.length(handle, 0) // 2, len(planner.pages(handle, 0)))
            elif action == 5:
                planner.unset_column(OFFSET, ints(handle))
                planner.set_column(OFFSET, ints(handle), ints(3))
            elif action == 6:
                planner.drop(stage)
            if not planner.promote(stage, batch, lease):
                stage = planner.stage(batch, lease)
            planner.flush(stage, 0)
            (planner.fail if draw.random() < 0.1 else planner.commit)(stage)
        planner.check()
    with suppress(errors.ResidentError):
        planner.mark_released_tokens(0, live[0])
        planner.stage(planner.batch(ints(live[0])), leases[0])
    bad_arguments(planner, errors, live[0])
    handle = live[-1]
    _ = planner.last_step(handle), planner.slot(handle), planner.column_value(handle, OFFSET), planner.in_flight_slots()
    stats = planner.stats()
    for name in [name for name in dir(stats) if not name.startswith("_")]:
        getattr(stats, name)
    if planner.committed_seq() != stats.committed_seq or stats.steps == 0:
        raise SystemExit("no step was committed")
    planner.check()
    del memory
    return planner.called


def bad_arguments(planner: Recorder, errors: Any, handle: int) -> None:
    """Hand in what must be refused: wrong types, shapes, sizes, numbers."""
    strided = memoryview(ints(1, 2, 3, 4))[::2]
    for arguments in (
        (handle, 0, ints(1, 2), 99),
        (handle, 0, ints(0), 1),
        (handle, 0, ints(10**12), 1),
        (handle, 9, ints(1), 1),
        (handle + 12345, 0, ints(1), 1),
        (-1, 0, ints(1), 1),
        (2**63, 0, ints(1), 1),
        (handle, 0, array("i", [1]), 1),
        (handle, 0, array("d", [1.0]), 1),
        (handle, 0, strided, 1),
        (handle, 0, b"12345678", 1),
        (handle, 0, None, 1),
    ):
        try:
            planner.set_stream(*arguments)
        except (errors.ResidentError, TypeError, ValueError, OverflowError, BufferError):
            planner.check()
        else:
            raise SystemExit(f"set_stream took {arguments}")


def own(core: Any, errors: Any, journal: Any) -> set[str]:
    """Let the planner own the pages: reserve, fork, run out."""
    layout = core.Layout([("kv", 4, 8, 32, 1)], [])
    planner, leases, memory = bind(core, journal, layout, 2)
    planner.own_pages(0)
    parent, child = planner.open(), planner.open()
    planner.reserve(0, ints(parent), ints(9))
    planner.host_step(0, ints(parent), ints(9))
    planner.fork(0, parent, child, 8)
    batch = planner.batch(ints(parent, child))
    for _ in range(4):
        planner.reserve_step(batch)
        stage = planner.stage(batch, leases[0])
        planner.flush(stage, 0)
        planner.commit(stage)
    with suppress(errors.ResidentError):
        planner.reserve(0, ints(parent), ints(19))
        raise SystemExit("a pool gave more pages than it has")
    planner.release(parent)
    planner.release(child)
    if planner.free_pages(0) != 8:
        raise SystemExit("pages were lost")
    planner.check()
    del memory
    return planner.called


def replay(core: Any, errors: Any, journal: Any, file: Path, called: set[str]) -> None:
    """See that every call is in the log, and that the log replays; a log that was cut off does not."""
    logged: set[str] = set()
    for line in file.read_text().splitlines():
        if (call := json.loads(line).get("call")) is not None:
            logged.add(call["op"] if isinstance(call["op"], str) else next(iter(call["op"])))
    if missing := {RENAMED.get(name, name) for name in called - NOT_LOGGED} - logged:
        raise SystemExit(f"never logged: {sorted(missing)}")
    if core.replay(str(file)) != (5, journal.calls()):
        raise SystemExit("the log replays to another number of calls")
    file.write_text(file.read_text()[:-9])
    with suppress(errors.LogError):
        core.replay(str(file))
        raise SystemExit("a log that was cut off was replayed")


def main() -> None:
    """Walk, own, replay, bench; then see that no call was left out."""
    core, errors = load()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "walk.log"
        journal = core.Journal(str(file))
        called = own(core, errors, journal)
        for seed in range(4):
            called |= walk(core, errors, journal, seed, 60)
        replay(core, errors, journal, file, called)
    core.bench_core(2, "steady", 10)
    needs_a_device = {"launch"}
    left_out = {name for name in dir(core.Planner) if not name.startswith("_")} - called - needs_a_device
    if left_out:
        raise SystemExit(f"never called: {sorted(left_out)}")
    if "torch" in sys.modules or "numpy" in sys.modules:
        raise SystemExit("torch or numpy was imported")
    print(f"{len(called)} calls of the native planner walked")


if __name__ == "__main__":
    main()
