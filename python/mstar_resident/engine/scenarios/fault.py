"""What a fault of a planner is: one kind of harm, done to a run on purpose, that a check must catch."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mstar_resident.engine.view import DecodeView
from mstar_resident.lease import Lease
from mstar_resident.planner import ResidentPlanner

if TYPE_CHECKING:
    from mstar_resident.engine.engine import Engine

#: Resident steps that run unharmed before a fault acts.
FIRST_STEP = 3

#: What can go wrong in a planner like this; a fault of each can be injected.
KINDS = {
    "stale": "a row was not refreshed after its request was out of the step, or after a dropped plan",
    "in flight": "a slot, row or page was used again while a step that reads it was in flight",
    "padding": "padding touched live state, or is undefined",
    "staging": "the host source of a copy was overwritten before the copy ran",
    "length": "a stored length is off",
    "width": "a row reaches further than its table or its used cells",
    "edge": "a token beyond a page's edge went to the wrong page",
    "recurrent": "a recurrent index is wrong, leaked or not reset",
    "group": "several pools of one node were mixed up",
    "sampler": "a row draws with another's parameters",
    "position": "a position offset is wrong",
    "graph": "a recorded address is not the buffer's any more",
    "rank": "ranks exchanged what only one of them knows",
    "offload": "a reload came back with wrong pages",
    "integer": "a number does not fit where it goes",
    "cost": "a step did work that nothing called for",
    "life": "something was not given back",
}


class Fault:
    """Do one kind of harm, once, as soon as a step allows it.

    Attributes:
        done: whether harm was done.
    """

    name: ClassVar[str]
    kind: ClassVar[str]
    text: ClassVar[str]

    def __init__(self) -> None:
        self.done = False
        self._steps = 0

    def between(self, engine: Engine) -> None:
        """Act between two steps."""

    def flushed(self, planner: ResidentPlanner, view: DecodeView) -> None:
        """Act after a flush, before the prologue reads what it sent."""
        self._steps += 1
        if not self.done and self._steps > FIRST_STEP and view.lease is not None:
            self.done = self.before_prologue(planner, view.lease)

    def ran(self, planner: ResidentPlanner, view: DecodeView) -> None:
        """Act after the program, before the commit."""
        if not self.done and self._steps > FIRST_STEP and view.lease is not None:
            self.done = self.after_program(planner, view.lease)

    def before_prologue(self, planner: ResidentPlanner, lease: Lease) -> bool:
        """Do harm before the prologue; return whether anything changed."""
        return False

    def after_program(self, planner: ResidentPlanner, lease: Lease) -> bool:
        """Do harm after the program; return whether anything changed."""
        return False

    def exchanged(self, lease: Lease) -> list[int]:
        """Add to what ranks exchange after a step."""
        return []
