"""A decoder with cross attention: a pool it appends to, and a context it only reads (Whisper large-v3's sizes)."""

from __future__ import annotations

from mstar_resident import Column, KVTable, ResidentPlanner, RowLayout


def main() -> None:
    """Decode over a context, replace the context at equal length, and decode on."""
    layout = RowLayout(
        tables=[
            KVTable("self", page_size=128, pool_pages=512, max_seq_len=448),
            KVTable("context", page_size=128, pool_pages=1024, max_seq_len=1500, span=0),
        ],
        columns=[Column("position_offset", "position", table="self")],
    )
    planner = ResidentPlanner(layout, max_batch=64, device="cpu", walks=("decode",))
    lease = planner.lease(bucket=1)
    print(f"{layout.width} cells a row, {layout.rows(64) - 1} slots")

    request = planner.open()
    planner.set_stream(request, "self", [7], length=4)
    planner.set_stream(request, "context", range(1, 13), length=1500)
    planner.set_column("position_offset", [request], [0])
    batch = planner.batch([request])

    def step() -> None:
        stage = planner.stage(batch, lease)
        planner.flush(stage, 0)
        planner.prologue(lease)
        planner.commit(stage)

    step()
    # A read-only pool has no write location and never advances.
    expect("lengths", {name: t.tolist() for name, t in lease.lengths.items()}, {"self": [5], "context": [1500]})
    expect("write locations", {name: t.tolist() for name, t in lease.write_loc.items()}, {"self": [7 * 128 + 4]})

    planner.set_stream(request, "context", range(21, 33), length=1500)  # encoded again: same length, other pages
    step()
    row = planner.store.tables["context"][planner.slot(request)]
    expect("context pages", row.tolist(), list(range(21, 33)))
    expect("stored lengths", [planner.length(request, name) for name in ("self", "context")], [6, 1500])
    print("the row followed its new context")


def expect(what: str, got: object, expected: object) -> None:
    """Stop with a sentence unless ``got`` is what was expected."""
    if got != expected:
        raise SystemExit(f"{what}: expected {expected}, got {got}")


if __name__ == "__main__":
    main()
