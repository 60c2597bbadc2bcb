"""The row check compares a step's cells on the device with the engine's own books; spoil one and it says which."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mstar_resident import KVTable, ResidentPlanner, RowCheck, RowLayout

Ints = npt.NDArray[np.int64]


class Books:
    """What the engine knows of its streams, kept apart from the planner."""

    def __init__(self, pages: dict[int, list[int]], lengths: dict[int, int]) -> None:
        self._pages = pages
        self._lengths = lengths

    def advance(self) -> None:
        """Count the token that every request of the step got."""
        self._lengths = {handle: length + 1 for handle, length in self._lengths.items()}

    def pages(self, handles: Ints, table: str) -> Ints:
        """Return the pages of each stream, one row a request."""
        width = max(len(pages) for pages in self._pages.values())
        return np.array([(self._pages[handle] + [0] * width)[:width] for handle in handles.tolist()])

    def lengths(self, handles: Ints, table: str) -> Ints:
        """Return the stored length of each stream."""
        return np.array([self._lengths[handle] for handle in handles.tolist()])

    def column(self, handles: Ints, name: str) -> Ints:
        """Return a named column; this layout has none."""
        raise KeyError(name)


def main() -> None:
    """Check a good step, spoil a page id in the store, and check the next."""
    layout = RowLayout(tables=[KVTable("kv", page_size=16, pool_pages=32, max_seq_len=256)], columns=[])
    planner = ResidentPlanner(layout, max_batch=2, device="cpu", walks=("decode",))
    lease = planner.lease(bucket=2)
    check = RowCheck(planner)

    handles = [planner.open(), planner.open()]
    pages, lengths = {handles[0]: [3, 4], handles[1]: [6]}, {handles[0]: 20, handles[1]: 5}
    books = Books(pages, lengths)
    for handle in handles:
        planner.set_stream(handle, "kv", pages[handle], lengths[handle])
    batch = planner.batch(handles)

    for spoil in (False, True):
        if spoil:
            planner.store.tables["kv"][planner.slot(handles[0]), 0] = 31  # a stranger's page
        stage = planner.stage(batch, lease)
        planner.flush(stage, 0)
        planner.prologue(lease)
        planner.commit(stage)
        books.advance()
        found = check.check(stage, books)
        print(f"step {check.steps}: {len(found)} mismatches", *found, sep="\n  ")
        if len(found) != int(spoil):
            raise SystemExit(f"expected {int(spoil)} mismatches, got {len(found)}")


if __name__ == "__main__":
    main()
