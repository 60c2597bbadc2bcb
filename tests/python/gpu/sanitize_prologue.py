"""A few prologues of small shape, for compute-sanitizer: `compute-sanitizer --tool racecheck python3 THIS_FILE`.

It checks their outputs against the oracle too, so that a run that sanitized nothing fails.
"""

from __future__ import annotations

import torch

from mstar_resident.kernels import prologue, reference
from mstar_resident.layout import Column, KVTable, RowLayout
from mstar_resident.lease import Lease
from mstar_resident.store import Store


def main() -> None:
    """Run both prologues on twin stores over a few steps, crossings and padding among them."""
    layout = RowLayout(
        [KVTable("kv", 4, 60, 64), KVTable("context", 8, 30, 40, span=0)],
        [Column("offset", "position", "kv"), Column("state", "index")],
    )
    devices = (torch.device("cuda"), torch.device("cpu"))
    twins = [(Store(layout, 40, device), Lease(layout, "decode", 40, 0, device)) for device in devices]
    for store, lease in twins:
        rows = torch.arange(1, 81)
        store.narrow[1:] = torch.stack([rows % 50, rows % 33, -rows, rows], dim=1).to(store.narrow.device)
        for table in store.tables.values():
            table[1:] = (rows[:, None] + torch.arange(table.shape[1])).remainder(29).add(1).to(table)
        lease.slots[:35] = torch.arange(80, 45, -1)
    for step in range(6):
        for store, lease in twins:
            for row in range(step, 35, 4):
                column = layout.table_starts[0] + (row + step) % 16
                lease.cells[row, 0] = torch.tensor([1, 7 * step + row % 9])
                lease.cells[row, 1] = torch.tensor([column + 1, step + 2])
            run = prologue.run if store.narrow.is_cuda else reference.run
            run(layout, store.narrow, list(store.tables.values()), *lease.prologue_arguments)
        torch.cuda.synchronize()
        for (name, one), other in zip(outputs(*twins[0]), outputs(*twins[1]), strict=True):
            if not torch.equal(one.cpu(), other[1]):
                raise SystemExit(f"step {step}: {name} differs from the oracle")
    print("6 prologues of 40 rows equal the oracle")


def outputs(store: Store, lease: Lease) -> list[tuple[str, torch.Tensor]]:
    """Return everything that a prologue writes, by name."""
    named = [("narrow", store.narrow), ("inputs", lease.inputs), *store.tables.items(), *lease.write_loc.items()]
    return [*named, *lease.lengths.items(), *lease.columns.items()]


if __name__ == "__main__":
    main()
