"""Let the planner own a pool's pages: reserve before a step, fork a shared prefix, run out without harm."""

from __future__ import annotations

from mstar_resident import KVTable, ResidentPlanner, RowLayout
from mstar_resident.errors import OutOfPagesError


def main() -> None:
    """Prefill, fork, decode both, and release; the pool is whole again afterwards."""
    layout = RowLayout(tables=[KVTable("kv", page_size=4, pool_pages=8, max_seq_len=32)], columns=[])
    planner = ResidentPlanner(layout, max_batch=2, device="cpu", walks=("decode",))
    planner.own_pages("kv")  # before the first stream
    lease = planner.lease(bucket=2)

    parent, child = planner.open(), planner.open()
    planner.reserve("kv", [parent], [9])
    planner.host_step("kv", [parent], [9])  # a prefill of nine tokens
    planner.fork("kv", parent, child, 8)  # two full pages, shared
    shared = planner.pages(parent, "kv")[:2]
    expect("shared pages", planner.pages(child, "kv")[:2], shared)

    batch = planner.batch([parent, child])
    for _ in range(4):
        planner.reserve("kv", [parent, child], [1, 1])  # all or nothing; no page where none is needed
        stage = planner.stage(batch, lease)
        planner.flush(stage, 0)
        planner.prologue(lease)
        planner.commit(stage)
    expect("lengths", [planner.length(h, "kv") for h in (parent, child)], [13, 12])

    free = planner.free_pages("kv")
    try:
        planner.reserve("kv", [parent, child], [8, 8])  # two pages each, and three are free
    except OutOfPagesError as error:
        print(f"refused: {error}")
    expect("free pages after a refusal", planner.free_pages("kv"), free)

    planner.release(parent)
    planner.release(child)
    expect("free pages at the end", planner.free_pages("kv"), 8)
    planner.check()


def expect(what: str, got: object, expected: object) -> None:
    """Stop with a sentence unless ``got`` is what was expected."""
    if got != expected:
        raise SystemExit(f"{what}: expected {expected}, got {got}")


if __name__ == "__main__":
    main()
