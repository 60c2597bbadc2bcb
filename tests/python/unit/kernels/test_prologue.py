"""The prologues, kernel and reference, against a naive one and at the edges."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from mstar_resident.errors import LayoutError
from mstar_resident.kernels import prologue, reference
from mstar_resident.layout import Column, KVTable, RowLayout
from mstar_resident.look_up import LookUp

from .prologue_cases import LAYOUTS, Case, assert_equal, naive

RUNS = {"reference": reference.run, "kernel": prologue.run}
ONE = LAYOUTS["one append table"]


@pytest.fixture(params=RUNS)
def run(request):
    return RUNS[request.param]


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(("b", "rows"), [(1, 3), (5, 11), (32, 65), (48, 97)])
def test_a_prologue_matches_naive_on_ragged_rows(run, name, b, rows, device):
    for seed in range(1 if b >= 32 and device == "cpu" else 3):  # many rows are slow where they are interpreted
        case = Case.drawn(LAYOUTS[name], rows, b, seed, device)
        expected = case.to("cpu")
        run(*case.arguments())
        naive(expected)
        assert_equal(case, expected)


def test_rows_of_one_program_do_not_matter(device):
    for rows_per_program in (1, 4, 32):
        case = Case.drawn(LAYOUTS["append and read-only"], 15, 7, 9, device)
        expected = case.to("cpu")
        names = [t.name for t in case.layout.tables]
        store = SimpleNamespace(narrow=case.narrow, tables=dict(zip(names, case.tables, strict=True)))
        lease = SimpleNamespace(
            inputs=case.inputs,
            lengths=dict(zip(names, case.lengths, strict=True)),
            write_loc={n: w for n, w in zip(names, case.write_loc, strict=True) if w is not None},
            columns={c.name: t for c, t in zip(case.layout.columns, case.columns, strict=True)},
            look_ups=[],
        )
        launch = prologue.bind(case.layout, store, lease, rows_per_program)
        for _ in range(3):
            launch()
            naive(expected)
        assert_equal(case, expected)


@pytest.mark.parametrize("b", [1, 3, 40])
def test_look_ups_follow_a_rows_column_with_its_cells_applied(run, b, device):
    layout = RowLayout(
        [KVTable("kv", 4, 9, 32)], [Column("offset", "position", "kv"), Column("state", "index"), "seat"]
    )
    case = Case.empty(layout, 2 * b + 1, b, device)
    slots = torch.randperm(2 * b)[:b] + 1
    slots[b // 2] = 0  # padding
    seats, states = torch.randint(1, 50, (2, 2 * b + 1))
    case.inputs[:b] = slots.to(device)
    case.narrow[:, 2], case.narrow[:, 3] = states.to(device), seats.to(device)
    if slots[0]:
        case.cell(0, 0, 3, 7)  # another seat from this step on
        seats[slots[0]] = 7
    tokens, heat = torch.randint(1, 2**40, (50,)), torch.randint(1, 99, (50,), dtype=torch.int32)
    out, warm = torch.full((b,), -1, device=device), torch.full((b,), -1, dtype=torch.int32, device=device)
    looked = [LookUp("seat", tokens.to(device), out), LookUp("state", heat.to(device), warm)]
    for _ in range(2):
        run(*case.arguments(), looked)
        live = slots != 0
        assert torch.equal(out.cpu(), tokens[seats[slots] * live])
        assert torch.equal(warm.cpu(), heat[states[slots] * live])
        assert torch.equal(case.columns[2].cpu(), seats[slots] * live)


def one_row(device: str, layout: RowLayout = ONE, b: int = 2) -> Case:
    case = Case.empty(layout, 2 * b + 1, b, device)
    case.inputs[0] = 3
    return case


def test_a_cell_is_applied_once_and_its_buffer_is_cleared(run, device):
    case = one_row(device)
    case.cell(0, 0, 0, 8)  # stored length 8, the start of page column 2
    case.cell(0, 1, case.layout.table_starts[0] + 2, 17)
    run(*case.arguments())
    assert case.lengths[0].tolist() == [9, 1]
    assert case.write_loc[0].tolist() == [17 * 4, 0]
    assert not case.inputs[case.b :].any()
    for step in range(1, 4):  # a cell applied again would set the length back to 8
        run(*case.arguments())
        assert case.lengths[0].tolist() == [9 + step, 1]
        assert case.write_loc[0].tolist() == [17 * 4 + step, 0]
    run(*case.arguments())
    assert case.write_loc[0].tolist() == [0, 0]  # page column 3 still holds the sink page
    assert int(case.narrow[3, 0]) == 13


def test_padding_attends_one_token_and_writes_nothing_but_the_sink(run, device):
    case = one_row(device, LAYOUTS["append and read-only"], b=3)
    case.inputs[0] = 0
    case.cell(0, 0, 0, 5)  # a cell of a padding row is cleared, not applied
    for _ in range(50):
        run(*case.arguments())
    assert [length.tolist() for length in case.lengths] == [[1, 1, 1]] * 2
    assert case.write_loc[0].tolist() == [0, 0, 0]
    assert [column.tolist() for column in case.columns] == [[0, 0, 0]] * 2
    assert not any(part.any() for part in (case.narrow, *case.tables, case.inputs))


def test_a_write_location_is_64_bits_wide(run, device):
    for page_size, page, location in (
        (16, 200_000_000, 3_200_000_005),
        (128, 2**31 - 1, (2**31 - 1) * 128 + 5),
        (2**20, 2**31 - 1, (2**31 - 1) * 2**20 + 5),
    ):
        layout = RowLayout([KVTable("kv", page_size, 2**31 - 1, 4 * page_size)])
        case = one_row(device, layout)
        case.narrow[3, 0] = page_size + 5
        case.tables[0][3, 1] = page
        run(*case.arguments())
        assert int(case.write_loc[0][0]) == location
        case.narrow[3, 0] = page_size + 5
        case.cell(0, 0, layout.table_starts[0] + 1, page)  # the same page in the step that enters it
        run(*case.arguments())
        assert int(case.write_loc[0][0]) == location


def test_a_length_of_31_bits_and_an_offset_of_62_are_exact(run, device):
    layout = RowLayout([KVTable("kv", 2**20, 2**31 - 1, 2047 * 2**20)], [Column("offset", "position", "kv")])
    case = one_row(device, layout)
    length = 2047 * 2**20 - 1
    for offset in (2**62, -(2**62)):
        case.narrow[3] = torch.tensor([length, offset])
        case.tables[0][3, 2046] = 7
        run(*case.arguments())
        assert case.lengths[0].tolist() == [length + 1, 1]
        assert int(case.write_loc[0][0]) == 7 * 2**20 + 2**20 - 1
        assert int(case.columns[0][0]) == length + offset
        assert int(case.narrow[3, 0]) == length + 1


def test_a_length_past_the_table_writes_to_the_sink_page(run, device):
    case = one_row(device)
    case.narrow[3, 0] = ONE.table_pages[0] * 4 + 2
    case.tables[0][:] = 9
    before = case.tables[0].clone()
    run(*case.arguments())
    assert int(case.write_loc[0][0]) == 2
    assert torch.equal(case.tables[0], before)


def test_a_position_counts_from_the_length_before_the_step(run, device):
    case = one_row(device)
    case.narrow[3] = torch.tensor([10, -4, 6])
    run(*case.arguments())
    assert case.columns[0].tolist() == [6, 0]
    assert case.columns[1].tolist() == [6, 0]
    assert case.columns[1].dtype == torch.int32


def test_a_cell_of_the_last_column_stays_in_its_table(run, device):
    layout = LAYOUTS["append and read-only"]
    case = one_row(device, layout)
    starts, pages = layout.table_starts, layout.table_pages
    case.cell(0, 0, starts[0] + pages[0] - 1, 21)
    case.cell(0, 1, starts[1], 22)
    case.cell(0, 2, starts[1] + pages[1] - 1, 23)
    run(*case.arguments())
    assert int(case.tables[0][3, -1]) == 21
    assert (int(case.tables[1][3, 0]), int(case.tables[1][3, -1])) == (22, 23)
    assert sum(int((part != 0).sum()) for part in case.tables) == 3


def test_rows_out_of_the_step_are_not_touched(run, device):
    case = Case.drawn(LAYOUTS["five tables"], 41, 8, 3, device)
    others = [slot for slot in range(41) if slot not in case.inputs[:8].tolist()]
    before = [part[others].clone() for part in (case.narrow, *case.tables)]
    run(*case.arguments())
    for old, part in zip(before, (case.narrow, *case.tables), strict=True):
        assert torch.equal(old, part[others])


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("narrow", lambda t: t.to(torch.int32)),
        ("inputs", lambda t: t[:-1]),
        ("narrow", lambda t: t.t().contiguous().t()),
        ("lengths", lambda t: [t[0].to(torch.int64)]),
        ("tables", lambda t: [t[0][:, :-1]]),
        ("write_loc", lambda t: []),
        ("columns", lambda t: [t[1], t[0]]),
    ],
)
def test_a_buffer_that_is_not_the_layouts_is_refused(field, change, device):
    case = one_row(device, RowLayout([KVTable("kv", 4, 40, 64)], [Column("p", "position", "kv"), Column("s", "index")]))
    setattr(case, field, change(getattr(case, field)))
    with pytest.raises(LayoutError, match="expected"):
        prologue.run(*case.arguments())
