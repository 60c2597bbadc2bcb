"""The planner of one node: names in, the native core behind, the store and the buffers kept alive."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

import torch

from mstar_resident import _core
from mstar_resident.arrays import Ints, as_int64
from mstar_resident.config import planning_mode
from mstar_resident.device import check_device
from mstar_resident.errors import BatchTooLargeError, InvariantError, LayoutError
from mstar_resident.guarded import check_guards
from mstar_resident.journal import current_journal
from mstar_resident.layout import RowLayout, check_count
from mstar_resident.lease import Lease
from mstar_resident.refusal import Refusal, log_build, log_refusal
from mstar_resident.requests import PlannerRequests
from mstar_resident.resources.base import ResidentResource, find_refusal, lay_out
from mstar_resident.stager import Stager
from mstar_resident.store import Store


def _load_prologue(device: torch.device) -> Callable[..., None]:
    if device.type == "cuda":
        from mstar_resident.kernels import prologue

        return prologue.run
    from mstar_resident.kernels import reference

    return reference.run


class ResidentPlanner(PlannerRequests):
    """Plan the resident steps of one node.

    Holds the store, the ring and the leases for life; the native core decides. Threads: any method may
    be called from any thread, the core serialises them under one lock. Tables and columns go by name.

    Args:
        layout: what a row is made of.
        max_batch: rows of the widest captured bucket; the store has ``2 * max_batch + 1`` rows.
        device: where the store and the leases live, ``cpu`` or ``cuda[:i]``.
        name: the node, for log lines.
        walks: the walks that opted in; a lease names one of them.
        debug: guard cells around the store, the ring and the leases, invariants checked after every commit and
            failure, pages of a stream checked to be distinct, captured addresses checked at every replay.

    Raises:
        LayoutError: a size is not positive, the device is no CPU or CUDA device of this machine, or no walk is named.
    """

    def __init__(
        self,
        layout: RowLayout,
        max_batch: int,
        device: str | torch.device = "cpu",
        *,
        name: str = "node",
        walks: Iterable[str] = ("decode",),
        debug: bool = False,
    ) -> None:
        if not isinstance(layout, RowLayout):
            raise LayoutError.of("layout", expected="a RowLayout", got=layout)
        check_count(max_batch, "max_batch")
        self.max_batch = max_batch
        self.device = check_device(device)
        self.name = name
        self.walks = (walks,) if isinstance(walks, str) else tuple(walks)
        self.debug = debug
        if not self.walks:
            raise LayoutError.of("walks", expected="at least one walk", got=self.walks)
        self._leases: dict[tuple[str, int, int], Lease] = {}
        self._by_id: dict[int, Lease] = {}
        self._aliases: dict[str, str] = {}
        self._lease_lock = threading.Lock()

        tables = [(t.name, t.page_size, t.pool_pages, t.max_seq_len, t.span) for t in layout.tables]
        native_layout = _core.Layout(tables, [column.name for column in layout.columns])
        expected = (layout.width, layout.narrow_cells, layout.cells_per_row, list(layout.table_pages))
        got = (
            native_layout.width,
            native_layout.narrow_cells,
            native_layout.cells_per_row,
            list(native_layout.table_pages),
        )
        if got != expected:
            raise InvariantError.of("native layout", expected=expected, got=got)

        cuda = self.device.type == "cuda"
        core = _core.Planner(native_layout, max_batch, strict=debug, journal=current_journal())
        super().__init__(layout, core)
        self.store = Store(layout, max_batch, self.device, debug)
        self.stager = Stager(-(-self._core.largest_flush_bytes() // 8) * 8, cuda, debug)
        addresses = self.store.addresses()
        self._core.bind_store(addresses[0], list(addresses[1:]), cuda, self.store.guarded)
        self._core.bind_ring(self.stager.addresses(), self.stager.bytes_each, cuda, self.stager.buffers)
        self._prologue = _load_prologue(self.device)
        self._store_arguments = (layout, self.store.narrow, list(self.store.tables.values()))

        # The step path calls the native planner itself; what these do is said by the methods of their names.
        self.flush = self._core.flush  # type: ignore[method-assign]
        self.launch = self._core.launch  # type: ignore[method-assign]
        self.drop = self._core.drop  # type: ignore[method-assign]
        if not debug:
            self.commit = self._core.commit  # type: ignore[method-assign]
            self.fail = self._core.fail  # type: ignore[method-assign]
        log_build(name, layout, max_batch, self.walks)

    @classmethod
    def build(
        cls,
        resources: Sequence[ResidentResource],
        max_batch: int,
        device: str | torch.device = "cpu",
        *,
        name: str = "node",
        walks: Iterable[str] = (),
        resident_planning: str | None = None,
        debug: bool = False,
    ) -> ResidentPlanner | Refusal:
        """Build a node's planner from its resources, or return and log why it stays host-planned.

        Args:
            resources: the node's resources, a pool before the positions that follow it.
            max_batch: rows of the widest captured bucket.
            device: where the store lives.
            name: the node, for log lines.
            walks: the walks that opted in; none is a refusal.
            resident_planning: ``auto`` or ``off``; None reads the environment.
            debug: as in the constructor.

        Raises:
            LayoutError: the knob, a size or the resources' names are invalid.
        """
        walks = tuple(walks)
        if planning_mode(resident_planning) == "off":
            refusal: Refusal | None = Refusal("resident_planning", "it is off")
        elif not walks:
            refusal = Refusal("resident_walks", "no walk opted in")
        else:
            refusal = find_refusal(resources)
        if refusal is not None:
            log_refusal(name, refusal)
            return refusal
        return cls(lay_out(resources), max_batch, device, name=name, walks=walks, debug=debug)

    # Leases

    def lease(self, bucket: int, walk: str = "decode", buffer_idx: int = 0) -> Lease:
        """Return the lease of (walk, bucket, buffer_idx), created on the first call; of an alias, the other walk's.

        Raises:
            LayoutError: the walk did not opt in, or a number is out of range.
            BatchTooLargeError: the bucket is wider than ``max_batch``.
        """
        walk = self._aliases.get(walk, walk)
        key = (walk, bucket, buffer_idx)
        found = self._leases.get(key)
        if found is not None:
            return found
        if walk not in self.walks:
            raise LayoutError.of("walk", expected=f"one of {list(self.walks)}", got=walk)
        check_count(bucket, "bucket")
        check_count(buffer_idx, "buffer_idx", least=0)
        if bucket > self.max_batch:
            raise BatchTooLargeError.of("bucket", expected=f"at most {self.max_batch} rows", got=bucket)
        with self._lease_lock:
            if key not in self._leases:
                lease = Lease(self.layout, walk, bucket, buffer_idx, self.device, self.debug)
                lease.id = self._core.add_lease(bucket, lease.inputs.data_ptr(), lease.inputs)
                self._leases[key] = self._by_id[lease.id] = lease
            return self._leases[key]

    def alias(self, walk: str, of: str) -> None:
        """Have a walk run in the captured steps of another: it gets that walk's leases, and shares what they hold.

        Raises:
            LayoutError: one of the walks did not opt in, ``of`` is an alias, or ``walk`` has leases of its own.
        """
        for name in (walk, of):
            if name not in self.walks:
                raise LayoutError.of("walk", expected=f"one of {list(self.walks)}", got=name)
        with self._lease_lock:
            if of in self._aliases or walk == of or walk in self._aliases.values():
                raise LayoutError.of("alias", expected="a walk with captured steps of its own", got=of, walk=walk)
            if any(key[0] == walk for key in self._leases):
                raise LayoutError.of("alias", expected="a walk without leases", got=walk, of=of)
            self._aliases[walk] = of

    def prologue(self, lease: Lease) -> None:
        """Run the prologue on a lease: the reference on a CPU, the kernel on the current CUDA stream otherwise.

        Raises:
            LayoutError: the lease is another planner's; nothing was touched.
        """
        self._number(lease)
        self._prologue(*self._store_arguments, *lease.prologue_arguments)

    def _number(self, lease: Lease) -> int:
        """Return the number of one of this planner's leases."""
        try:
            if self._by_id.get(lease.id) is lease:
                return lease.id
        except AttributeError:  # it is no lease
            pass
        raise LayoutError.of("lease", expected="one of this planner's", got=lease)

    # A step's life

    def batch(self, handles: Ints) -> _core.Batch:
        """Name the rows of a step, in order; immutable, to be reused while they stay the same.

        Raises:
            UnknownHandleError, DuplicateHandleError, BatchTooLargeError: no batch is made.
        """
        return self._core.batch(as_int64(handles, "handles"))

    def stage(self, batch: _core.Batch, lease: Lease) -> _core.Stage:
        """Decide what a step must send, and drop the unlaunched stage before it. Touches no device.

        Raises:
            NotReadyError: the launched step before has not committed.
            BatchTooLargeError: more rows than the lease's bucket.
            MissingPageError, UnsetColumnError, ReleasedTokensError, UnknownHandleError: nothing changed.
            LayoutError: the lease is another planner's.
        """
        return self._core.stage(batch, self._number(lease))

    def promote(self, stage: _core.Stage, batch: _core.Batch, lease: Lease) -> bool:
        """Return whether ``stage`` still holds for this batch and lease; if not it is dropped, and a new one is due.

        Raises:
            LayoutError: the lease is another planner's.
        """
        return self._core.promote(stage, batch, self._number(lease))

    def flush(self, stage: _core.Stage, cuda_stream: int) -> int:
        """Issue a stage's copies on a CUDA stream (0 on a CPU), right before the replay; return how many there were.

        Raises:
            StageDroppedError: it was dropped, or flushed before.
            LayoutError: the stage is another planner's.
            RuntimeError: a copy failed; the step has failed with it.
        """
        return self._core.flush(stage, cuda_stream)

    def launch(self, stage: _core.Stage, graph_exec: int, cuda_stream: int) -> int:
        """Flush a stage and launch an instantiated CUDA graph behind it, by its address; return the copies issued.

        Raises:
            StageDroppedError: it was dropped, or flushed before.
            LayoutError: the stage is another planner's.
            RuntimeError: a copy or the launch failed; the step has failed with it.
        """
        return self._core.launch(stage, graph_exec, cuda_stream)

    def commit(self, stage: _core.Stage) -> None:
        """Make a launched step's effect final: streams and mirrors advance by the span. Bookkeeping, waits for nothing.

        Raises:
            StageDroppedError: it is not the step in flight.
            LayoutError: the stage is another planner's.
            InvariantError: in debug mode, something is broken.
        """
        self._core.commit(stage)
        self.check()

    def fail(self, stage: _core.Stage) -> list[int]:
        """Retire a step that raised after its first copy, its rows to be rewritten; return its live handles.

        Raises:
            StageDroppedError: it is not the step in flight.
            LayoutError: the stage is another planner's.
            InvariantError: in debug mode, something is broken.
        """
        handles = self._core.fail(stage)
        self.check()
        return handles

    def drop(self, stage: _core.Stage) -> bool:
        """Forget an unlaunched stage, as if it had not been made; return whether it was still there.

        Raises:
            LayoutError: the stage is another planner's.
        """
        return self._core.drop(stage)

    # What is true now

    def last_step(self, handle: int) -> int:
        """Return the plan_seq of the last launched step that read the handle's row, 0 if none did."""
        return self._core.last_step(handle)

    def committed_seq(self) -> int:
        """Return the plan_seq of the last step that committed or failed."""
        return self._core.committed_seq()

    def slot(self, handle: int) -> int:
        """Return the slot that holds the handle's row, 0 if none does; no decision shared by ranks may read it."""
        return self._core.slot(handle)

    def stats(self) -> _core.Stats:
        """Return the counters since the planner was built."""
        return self._core.stats()

    def check(self) -> None:
        """Check every invariant of the core and the store's guard cells.

        Raises:
            InvariantError: one is broken.
        """
        self._core.check()
        check_guards(self.store.guarded)

    def lease_by_id(self, number: int) -> Lease:
        """Return the lease that a stage names.

        Raises:
            LayoutError: no such lease.
        """
        found = self._by_id.get(number)
        if found is None:
            raise LayoutError.of("lease", expected="one of this planner's", got=number)
        return found
