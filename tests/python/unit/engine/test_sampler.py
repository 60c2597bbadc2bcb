"""A row's token depends on that row alone."""

from __future__ import annotations

import pytest
import torch

from mstar_resident.engine.request import Sampling
from mstar_resident.engine.sampler import TokenSampler, uniform

CPU = torch.device("cpu")


def sampler(*parameters: Sampling) -> TokenSampler:
    made = TokenSampler(len(parameters) + 1, CPU)
    for seat, sampling in enumerate(parameters, 1):
        made.admit(seat, sampling)
    return made


def logits(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, 50, generator=torch.Generator().manual_seed(seed)) * 3


def test_temperature_0_takes_the_greatest() -> None:
    made = sampler(Sampling(), Sampling(temperature=1.0, seed=3))
    values = logits(2)
    drawn = made.draw(values, torch.tensor([1, 1]), torch.tensor([4, 5]))
    assert drawn.tolist() == values.argmax(-1).tolist()


def test_a_row_draws_the_same_in_any_batch_and_place() -> None:
    made = sampler(*(Sampling(temperature=0.5 + seat / 4, top_k=seat * 5, top_p=0.9, seed=seat) for seat in range(4)))
    values, seats, positions = logits(4), torch.tensor([1, 2, 3, 4]), torch.tensor([7, 0, 99, 7])
    together = made.draw(values, seats, positions).tolist()
    order = torch.tensor([2, 0, 3, 1])
    assert made.draw(values[order], seats[order], positions[order]).tolist() == [together[i] for i in order.tolist()]
    for row in range(4):
        alone = slice(row, row + 1)
        assert made.draw(values[alone], seats[alone], positions[alone]).tolist() == together[alone]


def test_top_k_and_top_p_cut_off_the_tail() -> None:
    made = sampler(Sampling(temperature=5.0, top_k=3), Sampling(temperature=5.0, top_p=1e-6))
    values = logits(1)
    best = values[0].topk(3).indices.tolist()
    drawn = {int(made.draw(values, torch.tensor([1]), torch.tensor([p]))) for p in range(200)}
    assert drawn == set(best)
    drawn = {int(made.draw(values, torch.tensor([2]), torch.tensor([p]))) for p in range(50)}
    assert drawn == {best[0]}


def test_draws_follow_the_distribution() -> None:
    made = sampler(Sampling(temperature=1.0, seed=11))
    probability = torch.tensor([0.5, 0.3, 0.15, 0.05])
    rows = 20_000
    values = probability.log().expand(rows, -1)
    drawn = made.draw(values, torch.ones(rows, dtype=torch.int64), torch.arange(rows))
    share = torch.bincount(drawn, minlength=4) / rows
    assert torch.allclose(share, probability, atol=0.015)


def test_a_reused_seat_keeps_nothing_of_its_earlier_request() -> None:
    made = sampler(Sampling(temperature=2.0, top_k=2, top_p=0.5, seed=9))
    made.admit(1, Sampling(temperature=2.0, seed=5))
    fresh = sampler(Sampling(temperature=2.0, seed=5))
    values, seats, positions = logits(30), torch.ones(30, dtype=torch.int64), torch.arange(30)
    assert made.draw(values, seats, positions).tolist() == fresh.draw(values, seats, positions).tolist()


@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1, 2**62])
def test_random_numbers_are_spread_over_0_to_1(seed: int) -> None:
    values = uniform(torch.full((10_000,), seed), torch.arange(10_000))
    assert 0 <= float(values.min()) < 0.01
    assert 0.99 < float(values.max()) < 1
    assert abs(float(values.mean()) - 0.5) < 0.02
    assert len(values.unique()) == len(values)
