"""A small host engine with resident decode rows: the integration you can read."""

from mstar_resident.engine.inputs import PagedKV, StepInputs

__all__ = ["PagedKV", "StepInputs"]
