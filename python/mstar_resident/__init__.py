"""Keep decode rows resident on the device: plan what changed, send only that."""

from importlib.metadata import PackageNotFoundError as _PackageNotFoundError
from importlib.metadata import version as _version

from mstar_resident.capture import CapturedResidentStep
from mstar_resident.config import planning_mode
from mstar_resident.errors import CaptureRefused, ResidentError
from mstar_resident.layout import Column, KVTable, RowLayout
from mstar_resident.lease import Lease
from mstar_resident.planner import ResidentPlanner
from mstar_resident.refusal import Refusal
from mstar_resident.row_check import RowCheck, StreamTruth

__all__ = [
    "CaptureRefused",
    "CapturedResidentStep",
    "Column",
    "KVTable",
    "Lease",
    "Refusal",
    "ResidentError",
    "ResidentPlanner",
    "RowCheck",
    "RowLayout",
    "StreamTruth",
    "planning_mode",
]

try:
    __version__ = _version("mstar-resident")
except _PackageNotFoundError:  # a checkout on the path, not installed
    __version__ = "unknown"
