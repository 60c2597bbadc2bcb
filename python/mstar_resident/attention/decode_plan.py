"""The decode plan of paged attention that is planned on the host: kept between steps, edited where a step differs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from mstar_resident.arrays import as_int64
from mstar_resident.errors import BatchTooLargeError, InvariantError, LayoutError, LengthError
from mstar_resident.layout import INT32_MAX, check_count

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

#: ``off`` builds every plan anew, ``on`` keeps it, ``verify`` keeps it and compares it with one built row by row.
PlanMode = Literal["off", "on", "verify"]


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """Hold which pages each batch index of a decode step attends, this step's token included.

    The arrays are a cache's own: they are true until its next plan. A padding row attends one token of the sink page,
    and no row has no page, which some schedules could not bear.
    """

    indptr: Int32
    """int32[b + 1], cpu: batch index i attends the pages ``indices[indptr[i]:indptr[i + 1]]``."""
    indices: Int32
    """int32[indptr[b]], cpu: page ids, row after row; rows that share pages repeat them."""
    last_page_len: Int32
    """int32[b], cpu: tokens in each row's last page, 1 to the page size: a full page is never 0."""
    version: int
    """Another number of the same cache means that ``indptr`` or ``indices`` differ; no two plans reuse one."""

    def difference(self, other: DecodePlan) -> str | None:
        """Return the first array that differs and where, as text; None if all are equal."""
        for name in ("indptr", "indices", "last_page_len"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine.shape != theirs.shape:
                return f"{name} has {theirs.size} values, not {mine.size}"
            wrong = np.flatnonzero(mine != theirs)
            if len(wrong):
                return f"{name}[{wrong[0]}] is {theirs[wrong[0]]}, not {mine[wrong[0]]}"
        return None


def naive_decode_plan(pages: Int32, lengths: Int64, rows: Int64, bucket: int, page_size: int, span: int) -> DecodePlan:
    """Build a plan row by row, without a thought for speed: the oracle of :class:`DecodePlanCache`.

    Arguments as there.
    """
    indptr, indices, last = [0], [], []
    for row in rows.tolist():
        tokens = int(lengths[row]) + span
        count = -(-tokens // page_size)
        indices += pages[row, :count].tolist()
        indptr.append(indptr[-1] + count)
        last.append(tokens - (count - 1) * page_size)
    for _ in range(bucket - len(rows)):
        indices.append(0)
        indptr.append(indptr[-1] + 1)
        last.append(1)
    as_int32 = [np.array(values, dtype=np.int32) for values in (indptr, indices, last)]
    return DecodePlan(as_int32[0], as_int32[1], as_int32[2], version=0)


class DecodePlanCache:
    """Keep one pool's decode plan between steps.

    Most steps differ from the one before by "every length + 1": then only ``last_page_len`` moves. A row that entered
    a page has it spliced in. Other rows, another order or another bucket build the plan anew, and so does a row whose
    attended pages changed otherwise, which must be told: :meth:`truncated` and :meth:`replaced`. Lengths and appended
    pages are read from the arrays and need no call, so that steps planned elsewhere (resident, prefill, mixed) leave
    the cache valid.

    Args:
        pages: int32[requests, P], cpu: page ids of every stream, in order; the engine's own, kept by reference.
        lengths: int64[requests], cpu: stored lengths; the engine's own, kept by reference.
        page_size: tokens a page.
        span: tokens that a step appends to each row, 1, or 0 for a read-only pool.
        max_batch: the widest bucket; the arrays are allocated for it, P pages a row.
        mode: see :data:`PlanMode`.
        name: the pool, for errors.

    Attributes:
        built, spliced, reused: plans of each kind so far.

    Raises:
        LayoutError: an unknown mode, a number out of range, or an array of another shape or dtype.
    """

    def __init__(
        self,
        pages: Int32,
        lengths: Int64,
        page_size: int,
        span: int,
        max_batch: int,
        *,
        mode: PlanMode = "on",
        name: str = "kv",
    ) -> None:
        if mode not in get_args(PlanMode):
            raise LayoutError.of("attention plan", expected=f"one of {list(get_args(PlanMode))}", got=mode)
        if not _is(pages, np.int32, 2) or not pages.shape[1]:
            raise LayoutError.of("pages", expected="int32[requests, P]", got=_kind(pages), pool=name)
        if not _is(lengths, np.int64, 1) or len(lengths) != len(pages):
            expected = f"int64[{len(pages)}], one a row of pages"
            raise LayoutError.of("lengths", expected=expected, got=_kind(lengths), pool=name)
        check_count(page_size, "page_size", pool=name)
        check_count(span, "span", least=0, most=1, pool=name)
        check_count(max_batch, "max_batch", most=INT32_MAX // pages.shape[1], pool=name)  # indptr is int32
        self.mode = mode
        self.built = self.spliced = self.reused = 0
        self._name = name
        self._pages, self._lengths = pages, lengths
        self._page_size, self._span = page_size, span
        self._indptr: Int32 = np.zeros(max_batch + 1, np.int32)
        self._indices: Int32 = np.zeros(max_batch * pages.shape[1], np.int32)
        self._last: Int32 = np.ones(max_batch, np.int32)
        self._rows: Int64 = np.zeros(0, np.int64)
        self._row_of: Int64 = np.full(len(pages), -1, np.int64)
        self._counts: Int64 = np.zeros(0, np.int64)  # pages attended, per row
        self._before: Int64 = np.zeros(0, np.int64)  # stored length at which a row's last page has no token of it
        self._bucket = 0
        self._plan = DecodePlan(self._indptr[:1], self._indices[:0], self._last[:0], 0)
        self._version = 0

    def plan(self, rows: Int64, bucket: int) -> DecodePlan:
        """Return the plan of a decode step of the requests ``rows``, int64[n], padded to ``bucket`` batch indices.

        What is refused leaves the plan before it as it was.

        Raises:
            LayoutError: rows that are no ints or none of the requests, or a bucket that is not positive.
            BatchTooLargeError: more rows than the bucket, or a bucket wider than ``max_batch``.
            LengthError: a row would attend no token, or more than its pages could hold.
            InvariantError: in mode ``verify``, the kept plan is not what a full one is.
        """
        rows = as_int64(rows, "rows")
        if self.mode == "off" or bucket != self._bucket or not np.array_equal(rows, self._rows):
            self._build(rows, bucket)
        else:
            last = self._lengths[rows] - self._before
            if last.min(initial=1) < 1:
                self._build(rows, bucket)  # rewound into an earlier page
            elif last.max(initial=1) > self._page_size:
                self._splice(last)
            else:
                self._last[: len(rows)] = last
                self.reused += 1
        if self.mode == "verify":
            self._verify(rows, bucket)
        return self._plan

    def truncated(self, row: int, pages: int) -> None:
        """Hear that a stream kept only its first ``pages`` pages; what it appends later takes the place of the rest.

        Raises:
            LayoutError: there is no such row.
        """
        if not 0 <= row < len(self._row_of):
            raise LayoutError.of("row", expected=f"0 to {len(self._row_of) - 1}", got=row, pool=self._name)
        place = self._row_of[row]
        if place >= 0 and pages < self._counts[place]:
            self._bucket = 0  # no step's

    def replaced(self, row: int) -> None:
        """Hear that a stream is another one: a new request's, reloaded, forked, reset."""
        self.truncated(row, 0)

    def _build(self, rows: Int64, bucket: int) -> None:
        n, size = len(rows), self._page_size
        if type(bucket) is not int or not max(n, 1) <= bucket < len(self._indptr):
            self._check_bucket(n, bucket)
        if np.minimum.reduce(rows, initial=0) < 0:
            raise self._no_such_row(rows)
        try:
            tokens = self._lengths[rows] + self._span
        except IndexError:
            raise self._no_such_row(rows) from None
        counts = -(-tokens // size)
        for i in np.flatnonzero((counts < 1) | (counts > self._pages.shape[1]))[:1].tolist():
            most = self._pages.shape[1] * size
            raise LengthError.of("tokens to attend", expected=f"1 to {most}", got=int(tokens[i]), pool=self._name)
        self._row_of[self._rows] = -1
        self._rows, self._bucket = rows.copy(), bucket
        self._row_of[rows] = np.arange(n)
        self._counts = counts
        self._before = (counts - 1) * size - self._span
        indptr = self._indptr
        np.cumsum(counts, out=indptr[1 : n + 1])
        used = int(indptr[n])
        columns = np.arange(counts.max(initial=0))
        self._indices[:used] = self._pages[rows, : len(columns)][columns < counts[:, None]]
        self._last[:n] = tokens - (counts - 1) * size
        if n < bucket:
            indptr[n + 1 : bucket + 1] = np.arange(used + 1, used + 1 + bucket - n)
            self._indices[used : used + bucket - n] = 0
            self._last[n:bucket] = 1
        self.built += 1
        self._changed()

    def _check_bucket(self, n: int, bucket: int) -> None:
        check_count(bucket, "bucket", pool=self._name)
        most = len(self._indptr) - 1
        if bucket > most:
            raise BatchTooLargeError.of("bucket", expected=f"at most {most}", got=bucket, pool=self._name)
        if n > bucket:
            raise BatchTooLargeError.of("rows", expected=f"at most {bucket}", got=n, pool=self._name)

    def _no_such_row(self, rows: Int64) -> LayoutError:
        count = len(self._pages)
        wrong = int(rows[(rows < 0) | (rows >= count)][0])
        return LayoutError.of("rows", expected=f"each in 0..{count - 1}", got=wrong, pool=self._name)

    def _splice(self, last: Int64) -> None:
        """Put the pages that rows entered behind those that they had, from the back so that each page moves once."""
        size = self._page_size
        grown = np.flatnonzero(last > size)
        more = (last[grown] - 1) // size
        if len(grown) > 64 or (self._counts[grown] + more).max() > self._pages.shape[1]:
            self._build(self._rows, self._bucket)
            return
        indptr, indices, rows = self._indptr, self._indices, self._rows
        shift, end = int(more.sum()), int(indptr[self._bucket])
        for row, count in zip(grown[::-1].tolist(), more[::-1].tolist(), strict=True):
            behind, held = int(indptr[row + 1]), int(self._counts[row])
            indices[behind + shift : end + shift] = indices[behind:end]
            shift -= count
            indices[behind + shift : behind + shift + count] = self._pages[rows[row], held : held + count]
            end = behind
        shifts = np.zeros(self._bucket + 1, np.int32)
        shifts[grown + 1] = more
        indptr[: self._bucket + 1] += np.cumsum(shifts, dtype=np.int32)
        self._counts[grown] += more
        self._before[grown] += more * size
        last[grown] -= more * size
        self._last[: len(rows)] = last
        self.spliced += 1
        self._changed()

    def _changed(self) -> None:
        self._version += 1
        b = self._bucket
        self._plan = DecodePlan(self._indptr[: b + 1], self._indices[: self._indptr[b]], self._last[:b], self._version)

    def _verify(self, rows: Int64, bucket: int) -> None:
        full = naive_decode_plan(self._pages, self._lengths, rows, bucket, self._page_size, self._span)
        difference = full.difference(self._plan)
        if difference is not None:
            raise InvariantError(f"pool {self._name}: the kept decode plan is wrong, {difference}", pool=self._name)


def _is(array: object, dtype: type[np.generic], ndim: int) -> bool:
    return isinstance(array, np.ndarray) and array.dtype == dtype and array.ndim == ndim


def _kind(array: object) -> str:
    if isinstance(array, np.ndarray):
        return f"{array.dtype}{list(array.shape)}"
    return type(array).__name__
