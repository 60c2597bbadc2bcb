//! The planner as Python sees it.

use std::sync::{Mutex, MutexGuard};

use mstar_resident_core as core;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::array::int64;
use crate::errors::{layout_error, raised};
use crate::state::{Flushed, State, StepError};
use crate::values::{Batch, Layout, Stage, Stats};

/// Plans the resident steps of one node. Arrays are 1-D C-contiguous int64.
///
/// Safe to call from several threads: one mutex, never held across a Python call or a wait for the device.
#[pyclass(frozen, module = "mstar_resident._core")]
pub(crate) struct Planner {
    state: Mutex<State>,
    lengths: usize,
}

impl Planner {
    fn state(&self) -> PyResult<MutexGuard<'_, State>> {
        self.state
            .lock()
            .map_err(|_| PyRuntimeError::new_err("the planner panicked in an earlier call"))
    }

    /// The core's number of a global column: the named ones follow the lengths.
    fn column(&self, py: Python<'_>, column: usize) -> PyResult<usize> {
        let wrong = || layout_error(py, "column", "a named column", &column.to_string()).raise(py);
        column.checked_sub(self.lengths).ok_or_else(wrong)
    }
}

#[pymethods]
impl Planner {
    /// Builds a planner for batches of at most max_batch rows; strict also checks what costs O(rows) on every call.
    #[new]
    #[pyo3(signature = (layout, max_batch, strict = false))]
    fn new(py: Python<'_>, layout: &Layout, max_batch: usize, strict: bool) -> PyResult<Self> {
        let mut core = raised(py, core::Planner::new(layout.layout.clone(), max_batch))?;
        core.set_strict(strict);
        let lengths = layout.layout.tables().len();
        Ok(Self {
            state: Mutex::new(State::new(core)),
            lengths,
        })
    }

    /// Binds the store: addresses of the int64[N, C] narrow columns and of each int32[N, P] table, kept alive by the
    /// caller.
    fn bind_store(&self, narrow_ptr: usize, table_ptrs: Vec<usize>, cuda: bool) -> PyResult<()> {
        let mut state = self.state()?;
        state
            .device
            .bind_store(narrow_ptr, table_ptrs, cuda)
            .map_err(PyRuntimeError::new_err)
    }

    #[allow(clippy::needless_pass_by_value)] // pyo3 gives a list as an owned vector
    /// Binds the ring: addresses of buffers of bytes_each bytes, pinned for CUDA, kept alive by the caller.
    fn bind_ring(
        &self,
        py: Python<'_>,
        ptrs: Vec<usize>,
        bytes_each: usize,
        cuda: bool,
    ) -> PyResult<()> {
        let mut state = self.state()?;
        let least = state.core.largest_flush_bytes();
        if bytes_each < least || ptrs.is_empty() {
            let got = format!("{} of {bytes_each} bytes", ptrs.len());
            return Err(layout_error(
                py,
                "ring",
                &format!("buffers of at least {least} bytes"),
                &got,
            )
            .raise(py));
        }
        state
            .device
            .bind_ring(&ptrs, bytes_each, cuda)
            .map_err(PyRuntimeError::new_err)
    }

    /// Bytes of the largest flush: every row of the widest batch whole, its slots and its cells.
    fn largest_flush_bytes(&self) -> PyResult<usize> {
        Ok(self.state()?.core.largest_flush_bytes())
    }

    /// Registers the zeroed int64 input buffer of a lease and returns its number.
    fn add_lease(&self, py: Python<'_>, bucket: usize, inputs_ptr: usize) -> PyResult<usize> {
        let mut state = self.state()?;
        let lease = raised(py, state.core.add_lease(bucket))?;
        state.device.add_lease(inputs_ptr);
        Ok(lease)
    }

    /// Opens a request and returns its handle.
    fn open(&self) -> PyResult<i64> {
        Ok(self.state()?.core.open())
    }

    /// Forgets a request; its slot cools behind the last launched step that read it, whose plan_seq is returned.
    fn release(&self, py: Python<'_>, handle: i64) -> PyResult<u64> {
        raised(py, self.state()?.core.release(handle)).map(core::PlanSeq::get)
    }

    /// Gives up a request's slot and pages but keeps it; returns the last launched step that read its row.
    fn offload(&self, py: Python<'_>, handle: i64) -> PyResult<u64> {
        raised(py, self.state()?.core.offload(handle)).map(core::PlanSeq::get)
    }

    /// Replaces a stream: pages and absolute length.
    fn set_stream(
        &self,
        py: Python<'_>,
        handle: i64,
        table: usize,
        pages: &Bound<'_, PyAny>,
        length: i64,
    ) -> PyResult<()> {
        let pages = int64(pages, "pages")?;
        raised(
            py,
            self.state()?.core.set_stream(handle, table, &pages, length),
        )
    }

    /// Appends counts[i] of the next pages to the stream of handles[i]; all or nothing.
    fn append_pages(
        &self,
        py: Python<'_>,
        table: usize,
        handles: &Bound<'_, PyAny>,
        counts: &Bound<'_, PyAny>,
        pages: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (handles, counts) = (int64(handles, "handles")?, int64(counts, "counts")?);
        let pages = int64(pages, "pages")?;
        raised(
            py,
            self.state()?
                .core
                .append_pages(table, &handles, &counts, &pages),
        )
    }

    /// Adds tokens[i] tokens that a host-planned step appended to the stream of handles[i]; all or nothing.
    fn host_step(
        &self,
        py: Python<'_>,
        table: usize,
        handles: &Bound<'_, PyAny>,
        tokens: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (handles, tokens) = (int64(handles, "handles")?, int64(tokens, "tokens")?);
        raised(py, self.state()?.core.host_step(table, &handles, &tokens))
    }

    /// Rewinds a stream to length tokens on its first pages pages.
    fn truncate(
        &self,
        py: Python<'_>,
        table: usize,
        handle: i64,
        length: i64,
        pages: usize,
    ) -> PyResult<()> {
        raised(
            py,
            self.state()?.core.truncate(table, handle, length, pages),
        )
    }

    /// Sets a named column, by its global number, on every handle; all or nothing.
    fn set_column(
        &self,
        py: Python<'_>,
        column: usize,
        handles: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let column = self.column(py, column)?;
        let (handles, values) = (int64(handles, "handles")?, int64(values, "values")?);
        raised(py, self.state()?.core.set_column(column, &handles, &values))
    }

    /// Forgets a named column of every handle: a row is an error until it is set again.
    fn unset_column(
        &self,
        py: Python<'_>,
        column: usize,
        handles: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let column = self.column(py, column)?;
        let handles = int64(handles, "handles")?;
        raised(py, self.state()?.core.unset_column(column, &handles))
    }

    /// Marks rows to be written whole before they are read again.
    fn mark_stale(&self, py: Python<'_>, handles: &Bound<'_, PyAny>) -> PyResult<()> {
        let handles = int64(handles, "handles")?;
        raised(py, self.state()?.core.mark_stale(&handles))
    }

    /// Marks a stream that gave up tokens inside its length: its row is an error until it is replaced.
    fn mark_released_tokens(&self, py: Python<'_>, table: usize, handle: i64) -> PyResult<()> {
        raised(py, self.state()?.core.mark_released_tokens(table, handle))
    }

    /// Names the rows of a step, in order.
    fn batch(&self, py: Python<'_>, handles: &Bound<'_, PyAny>) -> PyResult<Batch> {
        let handles = int64(handles, "handles")?;
        raised(py, self.state()?.core.batch(&handles)).map(|batch| Batch { batch })
    }

    /// Plans one step of a batch on a lease; an older unlaunched stage is dropped. Touches no device.
    fn stage(&self, py: Python<'_>, batch: &Batch, lease: usize) -> PyResult<Stage> {
        let mut state = self.state()?;
        let info = raised(py, state.core.stage(&batch.batch, lease))?;
        let bucket = raised(py, state.core.bucket(lease))?;
        Ok(Stage {
            info,
            lease,
            bucket,
            batch: batch.batch.clone(),
        })
    }

    /// Whether a stage still stands for this batch and lease.
    fn promote(&self, stage: &Stage, batch: &Batch, lease: usize) -> PyResult<bool> {
        Ok(self
            .state()?
            .core
            .promote(stage.info.seq, &batch.batch, lease))
    }

    /// Drops a stage if it is the unlaunched one; it leaves no trace.
    fn drop(&self, stage: &Stage) -> PyResult<bool> {
        Ok(self.state()?.core.drop_staged(stage.info.seq))
    }

    /// Issues a stage's copies on a CUDA stream (0 on a CPU) and returns how many there were.
    ///
    /// Waits only if the ring is full, without holding the mutex or the interpreter lock.
    fn flush(&self, py: Python<'_>, stage: &Stage, cuda_stream: usize) -> PyResult<usize> {
        loop {
            let flushed = self.state()?.flush(stage.info.seq, cuda_stream);
            match step_raised(py, flushed)? {
                Flushed::Copies(copies) => return Ok(copies),
                Flushed::RingFull(event) => py
                    .detach(|| event.wait())
                    .map_err(PyRuntimeError::new_err)?,
            }
        }
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
        let launched = self
            .state()?
            .launch(stage.info.seq, graph_exec, cuda_stream);
        step_raised(py, launched)?;
        Ok(copies)
    }

    /// Ends a launched step: streams and mirror advance by the span.
    fn commit(&self, py: Python<'_>, stage: &Stage) -> PyResult<()> {
        raised(py, self.state()?.core.commit(stage.info.seq))
    }

    /// Retires a step that raised after its first copy; returns the live handles of its rows.
    fn fail(&self, py: Python<'_>, stage: &Stage) -> PyResult<Vec<i64>> {
        let live = raised(py, self.state()?.core.fail(stage.info.seq))?;
        Ok(live.into_iter().map(core::Handle::pack).collect())
    }

    /// Slots of the step in flight, in batch order; empty if none is.
    fn in_flight_slots(&self) -> PyResult<Vec<usize>> {
        Ok(self
            .state()?
            .core
            .in_flight_slots()
            .iter()
            .map(|slot| slot.get())
            .collect())
    }

    /// The last step that can touch the handle's row or pages; 0 if none can.
    fn last_step(&self, py: Python<'_>, handle: i64) -> PyResult<u64> {
        raised(py, self.state()?.core.last_step(handle)).map(core::PlanSeq::get)
    }

    /// The last step that committed or failed.
    fn committed_seq(&self) -> PyResult<u64> {
        Ok(self.state()?.core.committed_seq().get())
    }

    /// A stream's stored length.
    fn length(&self, py: Python<'_>, handle: i64, table: usize) -> PyResult<i64> {
        raised(py, self.state()?.core.length(handle, table))
    }

    /// A stream's pages, those that its length does not need yet included.
    fn pages(&self, py: Python<'_>, handle: i64, table: usize) -> PyResult<Vec<i32>> {
        raised(
            py,
            self.state()?.core.pages(handle, table).map(<[i32]>::to_vec),
        )
    }

    /// A named column's value, by its global number; None if it is unset.
    fn column_value(&self, py: Python<'_>, handle: i64, column: usize) -> PyResult<Option<i64>> {
        let column = self.column(py, column)?;
        raised(py, self.state()?.core.column(handle, column))
    }

    /// The slot that holds the handle's row, 0 if none does.
    fn slot(&self, py: Python<'_>, handle: i64) -> PyResult<usize> {
        raised(py, self.state()?.core.slot(handle)).map(|slot| slot.map_or(0, core::Slot::get))
    }

    /// Checks every invariant; raises InvariantError.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        raised(py, self.state()?.core.check())
    }

    /// Counters since the planner was built.
    fn stats(&self) -> PyResult<Stats> {
        let state = self.state()?;
        Ok(Stats::new(state.core.stats(), state.device.ring_waits))
    }

    /// Makes the planner the owner of a pool's pages, before the first stream.
    fn own_pages(&self, py: Python<'_>, table: usize) -> PyResult<()> {
        raised(py, self.state()?.core.own_pages(table))
    }

    /// Gives each stream the pages for tokens[i] more tokens; all or nothing.
    fn reserve(
        &self,
        py: Python<'_>,
        table: usize,
        handles: &Bound<'_, PyAny>,
        tokens: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (handles, tokens) = (int64(handles, "handles")?, int64(tokens, "tokens")?);
        raised(py, self.state()?.core.reserve(table, &handles, &tokens))
    }

    /// Gives every row of a batch the page its next token needs, on every owned pool; all or nothing.
    fn reserve_step(&self, py: Python<'_>, batch: &Batch) -> PyResult<()> {
        raised(py, self.state()?.core.reserve_step(&batch.batch))
    }

    /// Makes an empty child stream share the full pages of the parent's first tokens.
    fn fork(
        &self,
        py: Python<'_>,
        table: usize,
        parent: i64,
        child: i64,
        tokens: i64,
    ) -> PyResult<()> {
        raised(py, self.state()?.core.fork(table, parent, child, tokens))
    }

    /// Free pages of an owned pool.
    fn free_pages(&self, py: Python<'_>, table: usize) -> PyResult<u64> {
        raised(py, self.state()?.core.free_pages(table))
    }
}

fn step_raised<T>(py: Python<'_>, result: Result<T, StepError>) -> PyResult<T> {
    result.or_else(|error| match error {
        StepError::Refused(error) => raised(py, Err(error)),
        StepError::Device(error) => Err(PyRuntimeError::new_err(error)),
    })
}
