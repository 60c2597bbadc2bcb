"""Let the kernels be imported from a checkout whose native module is not built."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType


def prepare() -> None:
    """Stand a bare package in for ``mstar_resident`` if it cannot be imported for want of its native module."""
    try:
        import mstar_resident  # noqa: F401
    except ImportError as error:
        if "_core" not in str(error) and error.name != "mstar_resident":
            raise
        package = ModuleType("mstar_resident")
        package.__path__ = [str(Path(__file__).parents[2] / "python" / "mstar_resident")]
        sys.modules["mstar_resident"] = package
