"""The pages of one KV pool, with reference counts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mstar_resident.errors import InvariantError, PageError
from mstar_resident.layout import check_count

Ints = npt.NDArray[np.int64]


class PagePool:
    """Hand out pages 1..pages of a pool; page 0 is the sink and never leaves it.

    A page is free when nothing refers to it. Streams that share a prefix refer to the same page.

    Raises:
        LayoutError: no pages, or a page size below 1.
    """

    __slots__ = ("_free", "_stack", "name", "page_size", "pages", "refs")

    def __init__(self, name: str, page_size: int, pages: int) -> None:
        self.name = name
        self.page_size = check_count(page_size, "page_size", table=name)
        self.pages = check_count(pages, "pool_pages", table=name)
        self.refs: Ints = np.zeros(pages + 1, dtype=np.int64)
        # A stack: the page given back last is taken first, so that reuse is the rule and not the exception.
        self._stack: Ints = np.arange(pages, 0, -1, dtype=np.int64)
        self._free = pages

    @property
    def free(self) -> int:
        """Pages that can be taken now."""
        return self._free

    def take(self, count: int) -> Ints | None:
        """Return ``count`` pages with one reference each, or None, taking none, if fewer are free."""
        if count > self._free:
            return None
        taken = self._stack[self._free - count : self._free][::-1].copy()
        self._free -= count
        self.refs[taken] = 1
        return taken

    def share(self, pages: Ints) -> None:
        """Add a reference to each page.

        Raises:
            PageError: a page is free, or not of this pool.
        """
        self._check_held(pages)
        np.add.at(self.refs, pages, 1)

    def give(self, pages: Ints) -> None:
        """Drop a reference to each page; a page without any becomes free.

        Raises:
            PageError: a page is free already, or not of this pool.
        """
        self._check_held(pages)
        np.subtract.at(self.refs, pages, 1)
        done = pages[self.refs[pages] == 0]
        self._stack[self._free : self._free + len(done)] = done
        self._free += len(done)

    def check(self) -> None:
        """Check that free pages and referenced pages partition 1..pages.

        Raises:
            InvariantError: they do not.
        """
        free = np.sort(self._stack[: self._free])
        unreferenced = np.flatnonzero(self.refs[1:] == 0) + 1
        if self.refs[0] != 0 or not np.array_equal(free, unreferenced) or bool((self.refs < 0).any()):
            raise InvariantError(f"pool {self.name}: free and referenced pages do not partition it", pool=self.name)

    def _check_held(self, pages: Ints) -> None:
        for page in pages[(pages < 1) | (pages > self.pages)]:
            raise PageError.of("page", expected=f"an id in 1..{self.pages}", got=int(page), pool=self.name)
        for page in pages[self.refs[pages] < 1]:
            raise PageError.of("page", expected="a referenced page", got=int(page), pool=self.name)
