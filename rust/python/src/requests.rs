//! What an engine tells the planner about its requests: their streams, columns and pages.

use mstar_resident_core::Op;
use pyo3::prelude::*;

use crate::array::{Count, Int, int64};
use crate::planner::Planner;
use crate::values::{Answered, Batch};

#[pymethods]
impl Planner {
    /// Opens a request and returns its handle.
    fn open(&self, py: Python<'_>) -> PyResult<Answered> {
        self.answer(py, &Op::Open)
    }

    /// Forgets a request; its slot cools behind the last launched step that read it, whose plan_seq is returned.
    fn release(&self, py: Python<'_>, handle: Int) -> PyResult<Answered> {
        self.answer(py, &Op::Release(handle.0))
    }

    /// Gives up a request's slot and pages but keeps it; returns the last launched step that read its row.
    fn offload(&self, py: Python<'_>, handle: Int) -> PyResult<Answered> {
        self.answer(py, &Op::Offload(handle.0))
    }

    /// Replaces a stream: pages and absolute length.
    fn set_stream(
        &self,
        py: Python<'_>,
        handle: Int,
        table: Count,
        pages: &Bound<'_, PyAny>,
        length: Int,
    ) -> PyResult<Answered> {
        let pages = int64(pages, "pages")?;
        self.answer(
            py,
            &Op::SetStream {
                handle: handle.0,
                table: table.0,
                pages,
                length: length.0,
            },
        )
    }

    /// Appends counts[i] of the next pages to the stream of handles[i]; all or nothing.
    fn append_pages(
        &self,
        py: Python<'_>,
        table: Count,
        handles: &Bound<'_, PyAny>,
        counts: &Bound<'_, PyAny>,
        pages: &Bound<'_, PyAny>,
    ) -> PyResult<Answered> {
        let (handles, counts) = (int64(handles, "handles")?, int64(counts, "counts")?);
        let pages = int64(pages, "pages")?;
        self.answer(
            py,
            &Op::AppendPages {
                table: table.0,
                handles,
                counts,
                pages,
            },
        )
    }

    /// Adds tokens[i] tokens that a host-planned step appended to the stream of handles[i]; all or nothing.
    fn host_step(
        &self,
        py: Python<'_>,
        table: Count,
        handles: &Bound<'_, PyAny>,
        tokens: &Bound<'_, PyAny>,
    ) -> PyResult<Answered> {
        let (handles, tokens) = (int64(handles, "handles")?, int64(tokens, "tokens")?);
        self.answer(
            py,
            &Op::HostStep {
                table: table.0,
                handles,
                tokens,
            },
        )
    }

    /// Rewinds a stream to length tokens on its first pages pages.
    fn truncate(
        &self,
        py: Python<'_>,
        table: Count,
        handle: Int,
        length: Int,
        pages: Count,
    ) -> PyResult<Answered> {
        self.answer(
            py,
            &Op::Truncate {
                table: table.0,
                handle: handle.0,
                length: length.0,
                pages: pages.0,
            },
        )
    }

    /// Sets a named column, by its global number, on every handle; all or nothing.
    fn set_column(
        &self,
        py: Python<'_>,
        column: Count,
        handles: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
    ) -> PyResult<Answered> {
        let column = self.column(py, column.0)?;
        let (handles, values) = (int64(handles, "handles")?, int64(values, "values")?);
        self.answer(
            py,
            &Op::SetColumn {
                column,
                handles,
                values,
            },
        )
    }

    /// Forgets a named column of every handle: a row is an error until it is set again.
    fn unset_column(
        &self,
        py: Python<'_>,
        column: Count,
        handles: &Bound<'_, PyAny>,
    ) -> PyResult<Answered> {
        let column = self.column(py, column.0)?;
        let handles = int64(handles, "handles")?;
        self.answer(py, &Op::UnsetColumn { column, handles })
    }

    /// Marks rows to be written whole before they are read again.
    fn mark_stale(&self, py: Python<'_>, handles: &Bound<'_, PyAny>) -> PyResult<Answered> {
        self.answer(py, &Op::MarkStale(int64(handles, "handles")?))
    }

    /// Marks a stream that gave up tokens inside its length: its row is an error until it is replaced.
    fn mark_released_tokens(
        &self,
        py: Python<'_>,
        table: Count,
        handle: Int,
    ) -> PyResult<Answered> {
        self.answer(
            py,
            &Op::MarkReleasedTokens {
                table: table.0,
                handle: handle.0,
            },
        )
    }

    /// Makes the planner the owner of a pool's pages, before the first stream.
    fn own_pages(&self, py: Python<'_>, table: Count) -> PyResult<Answered> {
        self.answer(py, &Op::OwnPages(table.0))
    }

    /// Gives each stream the pages for tokens[i] more tokens; all or nothing.
    fn reserve(
        &self,
        py: Python<'_>,
        table: Count,
        handles: &Bound<'_, PyAny>,
        tokens: &Bound<'_, PyAny>,
    ) -> PyResult<Answered> {
        let (handles, tokens) = (int64(handles, "handles")?, int64(tokens, "tokens")?);
        self.answer(
            py,
            &Op::Reserve {
                table: table.0,
                handles,
                tokens,
            },
        )
    }

    /// Gives every row of a batch the page its next token needs, on every owned pool; all or nothing.
    fn reserve_step(&self, py: Python<'_>, batch: &Batch) -> PyResult<Answered> {
        self.own(py, "batch", batch.node)?;
        self.answer(py, &Op::ReserveStep(batch.batch.clone()))
    }

    /// Makes an empty child stream share the full pages of the parent's first tokens.
    fn fork(
        &self,
        py: Python<'_>,
        table: Count,
        parent: Int,
        child: Int,
        tokens: Int,
    ) -> PyResult<Answered> {
        self.answer(
            py,
            &Op::Fork {
                table: table.0,
                parent: parent.0,
                child: child.0,
                tokens: tokens.0,
            },
        )
    }

    /// Free pages of an owned pool.
    fn free_pages(&self, py: Python<'_>, table: Count) -> PyResult<Answered> {
        self.answer(py, &Op::FreePages(table.0))
    }
}
