"""Handing a step's tokens over to the next step and to the host."""

from __future__ import annotations

import pytest
import torch

from mstar_resident.errors import LayoutError
from mstar_resident.kernels.hand_over import hand_over


@pytest.mark.parametrize("b", [1, 3, 128, 300])
def test_tokens_reach_their_seats_and_the_host_and_nothing_else(b, device):
    drawn = torch.randint(1, 2**40, (b,))
    seats = torch.randperm(2 * b)[:b] + 1
    before = torch.full((2 * b + 1,), -7)
    last = before.to(device)
    sampled = torch.full((b + 2,), -9, pin_memory=device != "cpu")
    hand_over(drawn.to(device), seats.to(device), last, sampled[:b])
    if device != "cpu":
        torch.cuda.synchronize()
    before[seats] = drawn
    assert torch.equal(last.cpu(), before)
    assert sampled.tolist() == [*drawn.tolist(), -9, -9]


def test_tokens_that_a_sampler_leaves_in_a_column_of_its_own_are_handed_over(device):
    best = torch.arange(12, device=device).view(4, 3)  # as of topk(3), of which the first is taken
    last = torch.zeros(5, dtype=torch.int64, device=device)
    sampled = torch.zeros(4, dtype=torch.int64, pin_memory=device != "cpu")
    hand_over(best[:, 0], torch.arange(1, 5, device=device), last, sampled)
    assert last.tolist() == [0, 0, 3, 6, 9]
    assert sampled.tolist() == [0, 3, 6, 9]


def test_rows_of_padding_leave_every_seat_but_the_sink_alone(device):
    last = torch.arange(5, device=device)
    sampled = torch.zeros(4, dtype=torch.int64, pin_memory=device != "cpu")
    hand_over(torch.tensor([50, 60, 70, 80], device=device), torch.tensor([3, 0, 0, 0], device=device), last, sampled)
    assert last[1:].tolist() == [1, 2, 50, 4]
    assert last[0].item() in (60, 70, 80)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("drawn", lambda t: t.int()),
        ("seats", lambda t: t[:-1]),
        ("last", lambda t: t[:, None]),
        ("sampled", lambda t: torch.cat((t, t))[::2]),
        ("sampled", lambda t: torch.cat((t, t))),
    ],
)
def test_another_shape_dtype_or_stride_is_refused_and_nothing_changes(name, wrong, device):
    given = {key: torch.arange(4, device=device) for key in ("drawn", "seats", "last", "sampled")}
    given["last"] += 10
    given[name] = wrong(given[name])
    with pytest.raises(LayoutError, match=name):
        hand_over(**given)
    assert given["last"].flatten().tolist() == [10, 11, 12, 13]
