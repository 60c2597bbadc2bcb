"""Prompts' full pages, kept so that a later request with the same beginning need not fill them again."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator

import numpy as np

from mstar_resident.engine.pages import Ints, PagePool


class PrefixCache:
    """Map the beginnings of prompts, in whole pages, to the pages that hold them.

    A page in the cache is sealed: full, and never written again. The cache holds a reference of its own. A prompt's
    last token is never matched, since its forward gives the first output.
    """

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._pages: OrderedDict[bytes, int] = OrderedDict()  # least recently used first
        self.hits = 0

    def match(self, tokens: Ints) -> Ints:
        """Return the pages of the longest known beginning of ``tokens``, with a reference for the caller."""
        found: list[bytes] = []
        for key in self._keys(tokens[:-1]):
            if key not in self._pages:
                break
            found.append(key)
        self._touch(found)
        pages = np.array([self._pages[key] for key in found], dtype=np.int64)
        self._pool.share(pages)
        self.hits += len(pages)
        return pages

    def seal(self, tokens: Ints, pages: Ints) -> None:
        """Keep the full pages of a stored prompt."""
        keys = list(self._keys(tokens))
        for key, page in zip(keys, pages.tolist(), strict=False):
            if key not in self._pages:
                self._pages[key] = page
                self._pool.share(np.array([page]))
        self._touch(keys)

    def evictable(self) -> int:
        """Return how many pages only the cache refers to."""
        pages = np.fromiter(self._pages.values(), dtype=np.int64, count=len(self._pages))
        return int((self._pool.refs[pages] == 1).sum())

    def evict(self, count: int) -> None:
        """Give up to ``count`` pages back that only the cache refers to, least recently used first."""
        for key in [key for key, page in self._pages.items() if self._pool.refs[page] == 1][:count]:
            self._pool.give(np.array([self._pages.pop(key)]))

    def _touch(self, keys: list[bytes]) -> None:
        # Last page first, so that a beginning is never evicted before what continues it.
        for key in reversed(keys):
            self._pages.move_to_end(key)

    def _keys(self, tokens: Ints) -> Iterator[bytes]:
        digest = hashlib.blake2b(digest_size=16)
        size = self._pool.page_size
        for end in range(size, len(tokens) + 1, size):
            digest.update(np.ascontiguousarray(tokens[end - size : end]).tobytes())
            yield digest.copy().digest()
