//! The planner as Python sees it: each method is one operation of the core.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use mstar_resident_core as core;
use mstar_resident_core::{Answer, Op, Shared};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::array::{Count, Int, int64};
use crate::device::Device;
use crate::errors::{called, layout_error, raised};
use crate::journal::Journal;
use crate::values::{Answered, Batch, Layout, Stage, Stats};

/// Plans the resident steps of one node. Arrays are 1-D C-contiguous int64.
///
/// Safe to call from several threads: one mutex, never held across a Python call or a wait for the device.
#[pyclass(frozen, module = "mstar_resident._core")]
pub(crate) struct Planner {
    shared: Shared<Device>,
    lengths: usize,
    /// This planner among all of the process: its batches and stages carry it.
    node: u64,
    /// What holds the memory at the bound addresses: alive as long as anything can write there.
    owners: Mutex<Vec<Py<PyAny>>>,
}

static NODES: AtomicU64 = AtomicU64::new(0);

impl Planner {
    fn make(&self, py: Python<'_>, op: &Op) -> PyResult<Answer> {
        called(py, self.shared.make(op))
    }

    pub(crate) fn answer(&self, py: Python<'_>, op: &Op) -> PyResult<Answered> {
        self.make(py, op).map(Answered)
    }

    fn device<T>(&self, py: Python<'_>, work: impl FnOnce(&mut Device) -> T) -> PyResult<T> {
        called(py, self.shared.device(|device, _| work(device)))
    }

    fn keep(&self, owner: Py<PyAny>) {
        let mut owners = self
            .owners
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        owners.push(owner);
    }

    /// Refuses what another planner made: its handles and plan_seqs mean something else here.
    pub(crate) fn own(&self, py: Python<'_>, field: &str, node: u64) -> PyResult<()> {
        if node == self.node {
            return Ok(());
        }
        Err(layout_error(py, field, "one of this planner's", "another planner's").raise(py))
    }

    /// The plan_seq of a stage of this planner.
    fn seq(&self, py: Python<'_>, stage: &Stage) -> PyResult<core::PlanSeq> {
        self.own(py, "stage", stage.node)?;
        Ok(stage.info.seq)
    }

    /// The core's number of a global column: the named ones follow the lengths.
    pub(crate) fn column(&self, py: Python<'_>, column: usize) -> PyResult<usize> {
        let wrong = || layout_error(py, "column", "a named column", &column.to_string()).raise(py);
        column.checked_sub(self.lengths).ok_or_else(wrong)
    }
}

#[pymethods]
impl Planner {
    /// Builds a planner for batches of at most max_batch rows; strict also checks what costs O(rows) on every call.
    ///
    /// Every call is written to the journal, if there is one.
    #[new]
    #[pyo3(signature = (layout, max_batch, strict = false, journal = None))]
    fn new(
        py: Python<'_>,
        layout: &Layout,
        max_batch: usize,
        strict: bool,
        journal: Option<&Journal>,
    ) -> PyResult<Self> {
        let planner = raised(py, core::Planner::new(layout.layout.clone(), max_batch))?;
        let journal = journal.map(|journal| journal.journal.clone());
        let made = Self {
            shared: Shared::new(planner, Device::default(), journal),
            lengths: layout.layout.tables().len(),
            node: NODES.fetch_add(1, Ordering::Relaxed),
            owners: Mutex::new(Vec::new()),
        };
        if strict {
            made.make(py, &Op::SetStrict(true))?;
        }
        Ok(made)
    }

    /// Binds the store: addresses of the int64[N, C] narrow columns and of each int32[N, P] table, in the memory of
    /// owner, which is kept alive.
    fn bind_store(
        &self,
        py: Python<'_>,
        narrow_ptr: usize,
        table_ptrs: Vec<usize>,
        cuda: bool,
        owner: Py<PyAny>,
    ) -> PyResult<()> {
        self.keep(owner);
        self.device(py, |device| device.bind_store(narrow_ptr, table_ptrs, cuda))?
            .map_err(PyRuntimeError::new_err)
    }

    #[allow(clippy::needless_pass_by_value)] // pyo3 gives a list as an owned vector
    /// Binds the ring: addresses of buffers of bytes_each bytes, pinned for CUDA, in the memory of owner, which is kept
    /// alive.
    fn bind_ring(
        &self,
        py: Python<'_>,
        ptrs: Vec<usize>,
        bytes_each: usize,
        cuda: bool,
        owner: Py<PyAny>,
    ) -> PyResult<()> {
        let least = self.largest_flush_bytes(py)?;
        if bytes_each < least || ptrs.is_empty() {
            let expected = format!("buffers of at least {least} bytes");
            let got = format!("{} of {bytes_each} bytes", ptrs.len());
            return Err(layout_error(py, "ring", &expected, &got).raise(py));
        }
        self.keep(owner);
        self.device(py, |device| device.bind_ring(&ptrs, bytes_each, cuda))?
            .map_err(PyRuntimeError::new_err)
    }

    /// Bytes of the largest flush: every row of the widest batch whole, its slots and its cells.
    fn largest_flush_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        let bytes = |_: &mut Device, planner: &core::Planner| planner.largest_flush_bytes();
        called(py, self.shared.device(bytes))
    }

    /// Registers the zeroed int64 input buffer of a lease, in the memory of owner, which is kept alive; returns its number.
    fn add_lease(
        &self,
        py: Python<'_>,
        bucket: Count,
        inputs_ptr: usize,
        owner: Py<PyAny>,
    ) -> PyResult<usize> {
        let Answer::Number(lease) = self.make(py, &Op::AddLease(bucket.0))? else {
            unreachable!("a lease answers its number")
        };
        self.keep(owner);
        self.device(py, |device| device.add_lease(lease as usize, inputs_ptr))?;
        Ok(lease as usize)
    }

    /// Names the rows of a step, in order.
    fn batch(&self, py: Python<'_>, handles: &Bound<'_, PyAny>) -> PyResult<Batch> {
        let Answer::Batch(batch) = self.make(py, &Op::Batch(int64(handles, "handles")?))? else {
            unreachable!("a batch answers itself")
        };
        Ok(Batch {
            batch,
            node: self.node,
        })
    }

    /// Plans one step of a batch on a lease; an older unlaunched stage is dropped. Touches no device.
    fn stage(&self, py: Python<'_>, batch: &Batch, lease: Count) -> PyResult<Stage> {
        self.own(py, "batch", batch.node)?;
        let batch = batch.batch.clone();
        let (info, bucket) = called(py, self.shared.stage(&batch, lease.0))?;
        Ok(Stage {
            info,
            lease: lease.0,
            bucket,
            batch,
            node: self.node,
        })
    }

    /// Whether a stage still stands for this batch and lease.
    fn promote(
        &self,
        py: Python<'_>,
        stage: &Stage,
        batch: &Batch,
        lease: Count,
    ) -> PyResult<Answered> {
        self.own(py, "batch", batch.node)?;
        let (seq, batch) = (self.seq(py, stage)?, batch.batch.clone());
        self.answer(
            py,
            &Op::Promote {
                seq,
                batch,
                lease: lease.0,
            },
        )
    }

    /// Drops a stage if it is the unlaunched one; it leaves no trace.
    fn drop(&self, py: Python<'_>, stage: &Stage) -> PyResult<Answered> {
        self.answer(py, &Op::DropStaged(self.seq(py, stage)?))
    }

    /// Issues a stage's copies on a CUDA stream (0 on a CPU) and returns how many there were.
    ///
    /// Waits only if the ring is full, without holding the mutex or the interpreter lock.
    fn flush(&self, py: Python<'_>, stage: &Stage, cuda_stream: usize) -> PyResult<usize> {
        let seq = self.seq(py, stage)?;
        let flushed = self
            .shared
            .flush(seq, cuda_stream, |event| py.detach(|| event.wait()));
        called(py, flushed)
    }

    /// Flushes a stage and launches an instantiated CUDA graph behind it; returns the copies issued.
    ///
    /// A launch that fails retires the step as failed.
    fn launch(
        &self,
        py: Python<'_>,
        stage: &Stage,
        graph_exec: usize,
        cuda_stream: usize,
    ) -> PyResult<usize> {
        let copies = self.flush(py, stage, cuda_stream)?;
        let launched = self.shared.launch(stage.info.seq, graph_exec, cuda_stream);
        called(py, launched)?;
        Ok(copies)
    }

    /// Ends a launched step: streams and mirror advance by the span.
    fn commit(&self, py: Python<'_>, stage: &Stage) -> PyResult<()> {
        called(py, self.shared.commit(self.seq(py, stage)?))
    }

    /// Retires a step that raised after its first copy; returns the live handles of its rows.
    fn fail(&self, py: Python<'_>, stage: &Stage) -> PyResult<Answered> {
        self.answer(py, &Op::Fail(self.seq(py, stage)?))
    }

    /// Slots of the step in flight, in batch order; empty if none is.
    fn in_flight_slots(&self, py: Python<'_>) -> PyResult<Answered> {
        self.answer(py, &Op::InFlightSlots)
    }

    /// The last step that can touch the handle's row or pages; 0 if none can.
    fn last_step(&self, py: Python<'_>, handle: Int) -> PyResult<Answered> {
        self.answer(py, &Op::LastStep(handle.0))
    }

    /// The last step that committed or failed.
    fn committed_seq(&self, py: Python<'_>) -> PyResult<Answered> {
        self.answer(py, &Op::CommittedSeq)
    }

    /// A stream's stored length.
    fn length(&self, py: Python<'_>, handle: Int, table: Count) -> PyResult<Answered> {
        self.answer(
            py,
            &Op::Length {
                handle: handle.0,
                table: table.0,
            },
        )
    }

    /// A stream's pages, those that its length does not need yet included.
    fn pages(&self, py: Python<'_>, handle: Int, table: Count) -> PyResult<Answered> {
        self.answer(
            py,
            &Op::Pages {
                handle: handle.0,
                table: table.0,
            },
        )
    }

    /// A named column's value, by its global number; None if it is unset.
    fn column_value(&self, py: Python<'_>, handle: Int, column: Count) -> PyResult<Answered> {
        let column = self.column(py, column.0)?;
        self.answer(
            py,
            &Op::Column {
                handle: handle.0,
                column,
            },
        )
    }

    /// The slot that holds the handle's row, 0 if none does.
    fn slot(&self, py: Python<'_>, handle: Int) -> PyResult<Answered> {
        self.answer(py, &Op::Slot(handle.0))
    }

    /// Checks every invariant; raises InvariantError.
    fn check(&self, py: Python<'_>) -> PyResult<Answered> {
        self.answer(py, &Op::Check)
    }

    /// Counters since the planner was built.
    fn stats(&self, py: Python<'_>) -> PyResult<Stats> {
        let Answer::Stats(stats) = self.make(py, &Op::Stats)? else {
            unreachable!("stats answer counters")
        };
        let ring_waits = self.device(py, |device| device.ring_waits)?;
        Ok(Stats::new(*stats, ring_waits))
    }
}
