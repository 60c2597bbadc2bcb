"""One engine on several ranks: rank 0 decides, the others replay its moves in order.

Read ``moves``, then ``leader`` and ``follower``; ``group`` is what carries moves, ``agreement`` what must be equal
before the first step. No move names a slot, a seat, a handle or a page: those are each rank's own.
"""

from mstar_resident.engine.ranks.follower import Follower
from mstar_resident.engine.ranks.group import LocalGroup, RankGroup, TorchGroup
from mstar_resident.engine.ranks.leader import Leader

__all__ = ["Follower", "Leader", "LocalGroup", "RankGroup", "TorchGroup"]
