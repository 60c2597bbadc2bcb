"""Small numbers that are taken and given back."""

from __future__ import annotations

from mstar_resident.errors import InvariantError


class Indices:
    """Hand out the numbers 1..count; 0 is the sink and never leaves. The one given back last is taken first."""

    __slots__ = ("_free", "_taken", "count", "name")

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.count = count
        self._free = list(range(count, 0, -1))
        self._taken: set[int] = set()

    @property
    def free(self) -> int:
        """Numbers that can be taken now."""
        return len(self._free)

    def take(self) -> int:
        """Return a number.

        Raises:
            InvariantError: all are taken; ask ``free`` first.
        """
        if not self._free:
            raise InvariantError.of(self.name, expected="a free index", got=None)
        index = self._free.pop()
        self._taken.add(index)
        return index

    def give(self, index: int) -> None:
        """Give a number back.

        Raises:
            InvariantError: it is not taken.
        """
        if index not in self._taken:
            raise InvariantError.of(self.name, expected="an index that is taken", got=index)
        self._taken.remove(index)
        self._free.append(index)
