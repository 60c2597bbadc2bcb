"""Four steps of two requests, one of which enters its next page: what a step sends, and what a replay reads."""

from __future__ import annotations

from mstar_resident import Column, KVTable, ResidentPlanner, RowLayout


def main() -> None:
    """Run the steps and check every number."""
    layout = RowLayout(
        tables=[KVTable("kv", page_size=16, pool_pages=64, max_seq_len=1024)],
        columns=[Column("position_offset", "position", table="kv")],
    )
    planner = ResidentPlanner(layout, max_batch=4, device="cpu", walks=("decode",))
    lease = planner.lease(bucket=4)

    a, b = planner.open(), planner.open()
    planner.set_stream(a, "kv", [5, 9], length=30)
    planner.set_stream(b, "kv", [2], length=7)
    planner.set_column("position_offset", [a, b], [0, -3])  # b has an image: positions advance by less than tokens

    batch = planner.batch([a, b])
    lengths, write_loc, positions = [], [], []
    for _ in range(4):
        if planner.length(a, "kv") == 32:  # both pages are full: the next token needs a third
            planner.append_pages("kv", [a], [1], [11])
        stage = planner.stage(batch, lease)
        copies = planner.flush(stage, 0)
        planner.prologue(lease)
        planner.commit(stage)
        lengths.append(lease.lengths["kv"].tolist())
        write_loc.append(lease.write_loc["kv"].tolist())
        positions.append(lease.columns["position_offset"].tolist())
        print(f"copies {copies}  lengths {lengths[-1]}  write_loc {write_loc[-1]}  positions {positions[-1]}")

    # The bucket is wider than the step: padding attends one token of the sink page and writes there.
    expect("lengths", lengths, [[31, 8, 1, 1], [32, 9, 1, 1], [33, 10, 1, 1], [34, 11, 1, 1]])
    expect("write_loc", write_loc, [[158, 39, 0, 0], [159, 40, 0, 0], [176, 41, 0, 0], [177, 42, 0, 0]])
    expect("positions", positions, [[30, 4, 0, 0], [31, 5, 0, 0], [32, 6, 0, 0], [33, 7, 0, 0]])
    expect("crossings", planner.stats().crossings, 1)
    expect("whole rows", planner.stats().whole_rows, 2)


def expect(what: str, got: object, expected: object) -> None:
    """Stop with a sentence unless ``got`` is what was expected."""
    if got != expected:
        raise SystemExit(f"{what}: expected {expected}, got {got}")


if __name__ == "__main__":
    main()
