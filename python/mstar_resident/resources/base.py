"""What a resource tells the planner: its tables and columns, why it refuses, which walks it can be captured in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mstar_resident.errors import CaptureRefused, LayoutError
from mstar_resident.layout import Column, KVTable, RowLayout
from mstar_resident.refusal import Refusal


@dataclass(frozen=True, slots=True)
class WalkDeclaration:
    """Declare what every captured step of ``walk`` does with one resource.

    ``labels`` are the labels of the streams that the step's rows use, ``spans`` the tokens that they
    add; a captured step can have one label and spans that are all 1 or all 0. The flags name what a
    captured step cannot do.
    """

    walk: str
    resource: str
    labels: tuple[str, ...] = ("main",)
    spans: tuple[int, ...] = (1,)
    forks: bool = False
    retention: bool = False
    attention_sink: bool = False
    explicit_positions: bool = False
    commit: bool = True

    @property
    def appends(self) -> bool:
        """Whether every row adds a token."""
        return set(self.spans) == {1}

    def refusal(self) -> str | None:
        """Return the reason that holds for any resource, or None."""
        if not self.labels:
            return "names no label"
        if len(set(self.labels)) > 1:
            return f"more than one label: {', '.join(sorted(set(self.labels)))}"
        if set(self.spans) not in ({0}, {1}):
            return f"spans are neither all 1 nor all 0: {', '.join(map(str, sorted(set(self.spans)))) or 'none'}"
        flags = {
            "forks a stream": self.forks,
            "releases tokens (retention)": self.retention,
            "keeps an attention sink": self.attention_sink,
            "sets positions explicitly": self.explicit_positions,
            "does not commit (commit=False)": not self.commit,
        }
        return next((f"a step {reason}" for reason, holds in flags.items() if holds), None)


@runtime_checkable
class ResidentResource(Protocol):
    """What an engine implements once per resource of a node."""

    @property
    def name(self) -> str:
        """The resource's key on its node."""
        ...

    def refusal(self) -> str | None:
        """Return why the node must stay host-planned, or None to opt in."""
        ...

    def tables(self) -> Sequence[KVTable]:
        """Return the tables that the resource keeps in a row."""
        ...

    def columns(self) -> Sequence[Column]:
        """Return the narrow columns that the resource keeps in a row, stored lengths apart."""
        ...

    def capture_refusal(self, declarations: Mapping[str, WalkDeclaration]) -> str | None:
        """Return why the walk, one declaration per resource, cannot be captured, or None."""
        ...


@dataclass(frozen=True, slots=True)
class HostPlanned:
    """Stand for a resource that keeps the node host-planned: one that has not opted in, or a LoRA pool."""

    name: str
    reason: str = "has not opted in"

    def refusal(self) -> str | None:
        """Return the reason."""
        return self.reason

    def tables(self) -> Sequence[KVTable]:
        """Return nothing."""
        return ()

    def columns(self) -> Sequence[Column]:
        """Return nothing."""
        return ()

    def capture_refusal(self, declarations: Mapping[str, WalkDeclaration]) -> str | None:
        """Return the reason."""
        return self.reason


def find_refusal(resources: Sequence[ResidentResource]) -> Refusal | None:
    """Return the first resource's refusal, or None if all opted in."""
    for resource in resources:
        reason = resource.refusal()
        if reason is not None:
            return Refusal(resource.name, reason)
    return None


def lay_out(resources: Sequence[ResidentResource]) -> RowLayout:
    """Build the row layout of a node from its resources, in their order.

    Raises:
        LayoutError: two resources, tables or columns share a name, or there is nothing to lay out.
    """
    names = [resource.name for resource in resources]
    for name in names:
        if names.count(name) > 1:
            raise LayoutError.of("resource name", expected="each resource named once", got=name)
    return RowLayout(
        [table for resource in resources for table in resource.tables()],
        [column for resource in resources for column in resource.columns()],
    )


def check_walk(resources: Sequence[ResidentResource], walk: str, declarations: Sequence[WalkDeclaration]) -> None:
    """Check that every declared step of ``walk`` can be captured as a resident step.

    Raises:
        CaptureRefused: it cannot; ``walk``, ``resource`` and ``reason`` are its fields.
        LayoutError: a declaration names another walk, an unknown resource, or one twice.
    """
    known = {resource.name for resource in resources}
    by_resource: dict[str, WalkDeclaration] = {}
    for declaration in declarations:
        if declaration.walk != walk:
            raise LayoutError.of("walk of a declaration", expected=walk, got=declaration.walk)
        if declaration.resource not in known or declaration.resource in by_resource:
            raise LayoutError.of(
                "resource of a declaration", expected=f"each of {sorted(known)} once", got=declaration.resource
            )
        by_resource[declaration.resource] = declaration
    for resource in resources:
        declared = by_resource.get(resource.name)
        reason = declared.refusal() if declared is not None else None
        if declared is None and (resource.tables() or resource.columns()):
            # The prologue gathers and advances every table of a row, so a walk cannot leave one out.
            reason = "the walk does not declare what its steps do with it"
        reason = reason or resource.capture_refusal(by_resource)
        if reason is not None:
            raise CaptureRefused(
                f"walk {walk} cannot be captured, {resource.name}: {reason}",
                walk=walk,
                resource=resource.name,
                reason=reason,
            )
