"""What the device does in a step, and who makes it do that."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from mstar_resident.engine.host_plan import Ragged
from mstar_resident.engine.sampler import Sampler
from mstar_resident.engine.view import DecodeView
from mstar_resident.models.base import Decoder

if TYPE_CHECKING:
    from mstar_resident.planner import ResidentPlanner


class Program:
    """Feed last tokens, run the forward, draw, keep the drawn tokens: no value of it reaches the host.

    Tokens loop back on the device: a step reads what the one before drew from ``last``, by seat. So a step can be
    launched before the host has read the tokens of the one before.

    Attributes:
        last: int64[seats]: last drawn token of every seat; seat 0 is a sink for padding.
    """

    def __init__(self, model: Decoder, sampler: Sampler, seats: int, device: torch.device) -> None:
        self.model = model
        self.sampler = sampler
        #: Sees every decode view at the end of its step; set before the first capture, to be recorded with it.
        self.observe: Callable[[DecodeView], None] | None = None
        self.last: Tensor = torch.zeros(seats, dtype=torch.int64, device=device)
        self._hand_over = _hand_over(device)

    @torch.no_grad()
    def decode(self, view: DecodeView) -> None:
        """Run a decode step after its prologue, on the view's buffers alone; a graph can record it."""
        if not view.fed:
            torch.index_select(self.last, 0, view.seats, out=view.inputs.tokens)
        drawn = self.sampler.draw(self.model.forward(view.inputs), view.seats, view.inputs.positions)
        self._hand_over(drawn, view.seats, self.last, view.sampled)
        if self.observe is not None:
            self.observe(view)

    @torch.no_grad()
    def fill(self, step: Ragged) -> Tensor:
        """Run a prefill or mixed step; return ``int64[n]``, the token drawn for every row."""
        inputs = step.inputs
        torch.where(step.feeds > 0, self.last[step.feeds], inputs.tokens, out=inputs.tokens)
        if inputs.query_start is None:
            raise ValueError("a prefill or mixed step needs query_start")
        ends = inputs.query_start[1:].to(inputs.positions.device, torch.int64) - 1
        drawn = self.sampler.draw(self.model.forward(inputs), step.seats, inputs.positions[ends])
        self.last.index_copy_(0, step.seats, drawn)
        return drawn


def _hand_over(device: torch.device) -> Callable[[Tensor, Tensor, Tensor, Tensor], None]:
    """Return what writes ``drawn`` to ``last`` at ``seats``, and to ``sampled``: a kernel on cuda."""
    if device.type == "cuda":
        from mstar_resident.kernels.hand_over import hand_over

        return hand_over

    def in_torch(drawn: Tensor, seats: Tensor, last: Tensor, sampled: Tensor) -> None:
        last.index_copy_(0, seats, drawn)
        sampled.copy_(drawn)

    return in_torch


class Runner(Protocol):
    """Make the device run a step; what it raises fails the step."""

    def decode(self, view: DecodeView) -> None:
        """Run the prologue of the view's lease, if it has one, and the program on the view."""

    def fill(self, step: Ragged) -> Tensor:
        """Run a prefill or mixed step and return the drawn tokens, ``int64[n]``."""
        ...


class EagerRunner:
    """Run every step at once, kernel by kernel; on a CPU that is the only way."""

    def __init__(self, program: Program, planner: ResidentPlanner | None) -> None:
        self.program = program
        self.planner = planner

    def decode(self, view: DecodeView) -> None:
        """Run the prologue and the program."""
        if view.lease is not None and self.planner is not None:
            self.planner.prologue(view.lease)
        self.program.decode(view)

    def fill(self, step: Ragged) -> Tensor:
        """Run a prefill or mixed step."""
        return self.program.fill(step)
