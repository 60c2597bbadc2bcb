"""Launching a kernel before the one ahead of it has ended, where a device can.

A kernel so launched calls ``gdc_wait`` before it reads what any kernel of its graph wrote, or writes at all; every
program of it does, and so waits for all kernels ahead, not for the one right ahead alone. One that calls
``gdc_launch_dependents`` lets the next of that kind start beside it. Right ahead of attention of other libraries no
kernel may call it: theirs read their plan before they wait.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch


@cache
def starts_early(device: torch.device) -> bool:
    """Return whether kernels of a device can start before those ahead of them have ended."""
    nvidia = device.type == "cuda" and torch.version.hip is None
    return nvidia and torch.cuda.get_device_capability(device) >= (9, 0)


def options(early: bool) -> dict[str, Any]:
    """Return what a launch takes besides: ``EARLY`` for the kernel, and the launch's attribute."""
    return {"EARLY": True, "launch_pdl": True} if early else {"EARLY": False}
