"""What capturing the ladder of a node came to, bucket by bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mstar_resident.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class BucketReport:
    """Say how the decode steps of one bucket run."""

    bucket: int
    resident: bool
    """Whether its rows stay on the device; else the host plans every step of it."""
    reason: str
    """Why not; empty if they do."""
    attention: dict[str, str]
    """Per KV pool what attends over it; empty where the model does not say."""
    host_plan_free: bool
    """Whether no attention of it needs a host plan."""

    def __str__(self) -> str:
        """Return one line."""
        arm = "resident" if self.resident else f"host-planned ({self.reason})"
        plan = "host-plan-free" if self.host_plan_free else "attention planned by the host"
        by = "; ".join(f"{pool}: {name}" for pool, name in self.attention.items() if name)
        return f"bucket {self.bucket}: {arm}, {plan}" + (f", {by}" if by else "")


@dataclass(frozen=True, slots=True)
class CaptureReport:
    """Say how every bucket's decode steps run, widest last."""

    buckets: tuple[BucketReport, ...]

    @classmethod
    def of(cls, engine: Engine) -> CaptureReport:
        """Report on an engine's ladder as it is now."""
        pools = engine.model.kv_spec()
        free = not any(pool.host_plan for pool in pools)
        node = str(engine.refusal or "")
        failed = dict.fromkeys(engine.arm.host_planned, "another rank could not capture it")
        failed |= engine.graphs.failed if engine.graphs is not None else {}
        found = []
        for bucket in engine.config.buckets():
            reason = node or failed.get(bucket, "")
            attention = {pool.name: pool.backend(bucket) for pool in pools if pool.backend is not None}
            found.append(BucketReport(bucket, not reason, reason, attention, free))
        return cls(tuple(found))

    @property
    def host_plan_free(self) -> bool:
        """Whether every bucket is resident and needs no host plan of its attention."""
        return all(bucket.resident and bucket.host_plan_free for bucket in self.buckets)

    def __str__(self) -> str:
        """Return a line for each bucket."""
        return "\n".join(map(str, self.buckets))
