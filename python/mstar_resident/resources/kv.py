"""The adapter of a paged KV pool, appending or read-only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mstar_resident.layout import Column, KVTable
from mstar_resident.resources.base import WalkDeclaration


@dataclass(frozen=True, slots=True)
class KVPool:
    """Describe a KV pool by what decides whether its rows can be resident.

    ``mode`` ``append``: every step adds a token a row; ``read-only``: a cross-attention context.
    ``window``: sliding window in tokens; ``bound``: a bounded or ring KV's tokens; ``nodes``: the
    nodes that use the pool, its own included.
    """

    name: str
    page_size: int
    pool_pages: int
    max_seq_len: int
    mode: Literal["append", "read-only"] = "append"
    layout: Literal["paged", "mla"] = "paged"
    window: int | None = None
    bound: int | None = None
    sink: bool = True
    lora: bool = False
    nodes: tuple[str, ...] = ()
    read_across_nodes: bool = False

    def refusal(self) -> str | None:
        """Return why the pool's rows cannot be resident, or None."""
        if len(set(self.nodes)) > 1:
            return f"the pool is shared by nodes {', '.join(sorted(set(self.nodes)))}"
        if self.read_across_nodes:
            return "the pool is read across nodes"
        if not self.sink:
            return "the pool has no sink page for padding rows"
        if self.lora:
            return "LoRA pools are host-planned"
        if self.layout != "paged":
            return f"the {self.layout.upper()} layout is not supported"
        if self.window is not None:
            return f"sliding windows are not supported, the pool's is {self.window} tokens"
        if self.bound is not None:
            return f"bounded and ring KV are not supported, the pool's bound is {self.bound} tokens"
        return None

    def tables(self) -> Sequence[KVTable]:
        """Return the pool's one table."""
        return (
            KVTable(self.name, self.page_size, self.pool_pages, self.max_seq_len, 1 if self.mode == "append" else 0),
        )

    def columns(self) -> Sequence[Column]:
        """Return nothing: the stored length comes with the table."""
        return ()

    def capture_refusal(self, declarations: Mapping[str, WalkDeclaration]) -> str | None:
        """Return a reason if the walk's span is not the pool's mode."""
        declared = declarations.get(self.name)
        if declared is not None and declared.appends != (self.mode == "append"):
            return f"the pool is {self.mode}, the walk's span is {max(declared.spans)}"
        return None
