"""A small host engine with resident decode rows: the integration you can read, in about an hour.

Read in this order:

1. ``request``, ``seats``, ``streams``, ``pages``: what a request is, and the host truth of it, in arrays.
2. ``scheduler``, ``plan``: which rows run next.
3. ``engine``: one step after another; ``admission``, ``memory``: what a request holds, and how it gets and loses it.
4. ``arm``, ``host_plan``: a step whose inputs the host builds; ``resident_arm``: a step whose rows stay on the device,
   and every call that the planner needs for that; ``attention_plan``: what attention gets that cannot read tables.
5. ``view``, ``program``, ``sampler``, ``results``: what the device does, and how its tokens come back.
6. ``ranks``: the same engine on several ranks, one of which decides.
7. ``toy``, ``oracle``, ``scenarios``: how all of it is checked.
"""

from mstar_resident.engine.config import EngineConfig, PoolConfig
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.inputs import PagedKV, StepInputs
from mstar_resident.engine.request import Request, Sampling

__all__ = ["Engine", "EngineConfig", "PagedKV", "PoolConfig", "Request", "Sampling", "StepInputs"]
