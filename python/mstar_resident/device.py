"""The device that a planner's store and leases live on."""

from __future__ import annotations

import torch

from mstar_resident.errors import LayoutError


def check_device(device: str | torch.device) -> torch.device:
    """Return ``device`` as torch's, if it is a CPU or a CUDA device that this machine has.

    Raises:
        LayoutError: it is not.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):  # what torch cannot read
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise LayoutError.of("device", expected="cpu or cuda[:N]", got=str(device))
    if found.type == "cuda":
        if not torch.cuda.is_available():
            raise LayoutError.of("device", expected="cpu, as this machine has no CUDA device", got=str(device))
        count = torch.cuda.device_count()
        if (found.index or 0) >= count:  # none is the current one
            raise LayoutError.of("device", expected=f"cpu or a CUDA device below {count}", got=str(device))
    return found
