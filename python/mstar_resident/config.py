"""The one knob: whether a node may plan resident steps at all. Sizes are derived, never configured."""

from __future__ import annotations

import os
from typing import Literal, cast, get_args

from mstar_resident.errors import LayoutError

PlanningMode = Literal["auto", "off"]

#: Environment variable read when no argument says otherwise.
PLANNING_VARIABLE = "MSTAR_RESIDENT_PLANNING"


def planning_mode(argument: str | None = None) -> PlanningMode:
    """Return the planning mode from the argument, else the environment, else ``auto``.

    Raises:
        LayoutError: the value is neither ``auto`` nor ``off``.
    """
    value = argument if argument is not None else os.environ.get(PLANNING_VARIABLE, "auto")
    source = "resident_planning" if argument is not None else PLANNING_VARIABLE
    value = value.strip().lower()
    if value not in get_args(PlanningMode):
        raise LayoutError.of(source, expected="auto or off", got=value)
    return cast(PlanningMode, value)
