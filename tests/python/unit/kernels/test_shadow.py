"""The shadow's kernel against the same in torch."""

from __future__ import annotations

import pytest
import torch

from mstar_resident.kernels import shadow

from .prologue_cases import KINDS, LAYOUTS


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_shadow_kernel_matches_torch(name: str, device: str) -> None:
    layout = LAYOUTS[name]
    rows, b, depth = 9, 5, 4
    seeded = torch.Generator().manual_seed(7)

    def ints(high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.randint(0, high, shape, generator=seeded, dtype=dtype).to(device)

    tables = [ints(50, rows, pages, dtype=torch.int32) for pages in layout.table_pages]
    slots = torch.tensor([3, 8, 1, 0, 0], device=device)
    lengths = [ints(table.pages * table.page_size, b, dtype=torch.int32) for table in layout.tables]
    write_loc = [ints(1 << 40, b) if table.span else None for table in layout.tables]
    columns = [ints(1 << 20, b, dtype=KINDS[column.kind]) for column in layout.columns]
    rings = [torch.full((depth, 6, shadow.record_cells(layout)), -1, device=device) for _ in "ab"]
    counters = [torch.full((1,), 4 * depth + 2, device=device) for _ in "ab"]
    for run, ring, counter in zip((shadow.run, shadow.run_torch), rings, counters, strict=True):
        run(layout, tables, slots, lengths, write_loc, columns, ring, counter)
    assert torch.equal(rings[0], rings[1])
    assert rings[0][2, 0, 0] == 3
    assert (rings[0][[0, 1, 3]] == -1).all()
    assert counters[0].item() == counters[1].item() == 4 * depth + 3
