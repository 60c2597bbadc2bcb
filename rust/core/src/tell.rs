//! Host truth: what the engine tells about its requests. A mark on a row of the unlaunched stage drops that stage;
//! a mark on a row of the cohort breaks the cohort up.

use crate::error::{Error, Result};
use crate::ids::{Handle, PlanSeq, Slot, TableIdx};
use crate::planner::Planner;

impl Planner {
    /// Opens a request: empty streams, no column set, no slot.
    pub fn open(&mut self) -> i64 {
        self.requests.open().pack()
    }

    /// Forgets a request. Its slot cools until the last launched step that read it commits; one that no launched
    /// step read is free at once. Returns that step, or 0: pages of the request may be reused after its commit.
    ///
    /// # Errors
    /// [`Error::UnknownHandle`].
    pub fn release(&mut self, handle: i64) -> Result<PlanSeq> {
        let handle = self.requests.resolve(handle)?;
        let last_step = self.give_up_row(handle);
        self.requests.close(handle);
        Ok(last_step)
    }

    /// Gives up a request's slot and pages but keeps the request: its streams are empty until it is reloaded, its
    /// columns stay. Returns the last launched step that read its row, or 0.
    ///
    /// # Errors
    /// [`Error::UnknownHandle`].
    pub fn offload(&mut self, handle: i64) -> Result<PlanSeq> {
        let handle = self.requests.resolve(handle)?;
        let last_step = self.give_up_row(handle);
        for table in 0..self.layout.tables().len() {
            let stream = self.requests.stream_mut(handle, table);
            stream.pages.clear();
            stream.length = 0;
            stream.released_tokens = false;
        }
        Ok(last_step)
    }

    fn give_up_row(&mut self, handle: Handle) -> PlanSeq {
        self.touch(handle);
        let in_flight = self.in_flight.as_ref().map(|step| step.seq);
        for table in 0..self.layout.tables().len() {
            self.reset_in_flight(handle, table);
            self.give_back_pages(handle, table, 0);
        }
        let request = self.requests.get_mut(handle);
        let last_step = request.last_step;
        request.stale = false;
        if let Some(slot) = request.held_slot() {
            request.slot = Slot::TRASH;
            self.ledger.release(slot, in_flight);
            self.stats.released += 1;
        }
        last_step
    }

    /// Replaces a stream: after a prefill, a reload, a reset, a fork or a remote write. `length` is absolute; a token
    /// of a step in flight does not add to it. A stream that keeps the pages its row holds is mended by lengths and
    /// new columns, any other one is written whole.
    ///
    /// # Errors
    /// [`Error::UnknownHandle`], [`Error::Index`], [`Error::Page`], [`Error::Length`], or [`Error::Ownership`] for a
    /// table whose pages the planner owns.
    pub fn set_stream(
        &mut self,
        handle: i64,
        table: TableIdx,
        pages: &[i64],
        length: i64,
    ) -> Result<()> {
        self.owned_by_engine(table)?;
        let handle = self.requests.resolve(handle)?;
        self.check_pages(handle, table, &[], pages)?;
        self.check_length(handle, table, length, pages.len())?;
        self.touch(handle);
        self.reset_in_flight(handle, table);
        let held = self.held_extent(handle, table);
        let stream = self.requests.stream_mut(handle, table);
        let kept = stream
            .pages
            .iter()
            .zip(pages)
            .take_while(|&(&old, &new)| i64::from(old) == new)
            .count();
        stream.pages.truncate(kept);
        stream
            .pages
            .extend(pages[kept..].iter().map(|&page| page as i32)); // checked above
        stream.length = length;
        stream.released_tokens = false;
        self.requests.get_mut(handle).stale |= kept < held;
        Ok(())
    }

    /// Appends pages to streams: `counts[i]` of the next `pages` to the stream of `handles[i]`. Rows are not marked:
    /// a column is sent when a stream enters its page.
    ///
    /// # Errors
    /// [`Error::ArrayLength`], [`Error::Count`], [`Error::UnknownHandle`], [`Error::DuplicateHandle`],
    /// [`Error::Page`] or [`Error::Ownership`]; no stream has changed then.
    pub fn append_pages(
        &mut self,
        table: TableIdx,
        handles: &[i64],
        counts: &[i64],
        pages: &[i64],
    ) -> Result<()> {
        self.owned_by_engine(table)?;
        let handles = self.requests.resolve_all(handles)?;
        same_length("counts", handles.len(), counts.len())?;
        if let Some(index) = counts.iter().position(|&count| count < 0) {
            let got = counts[index];
            let field = "counts";
            return Err(Error::Count { field, index, got });
        }
        let total = counts.iter().fold(0_usize, |sum, &count| {
            sum.saturating_add(count as usize) // checked above
        });
        same_length("pages", total, pages.len())?;
        let mut rest = pages;
        for (&handle, &count) in handles.iter().zip(counts) {
            let (own, behind) = rest.split_at(count as usize);
            self.check_pages(
                handle,
                table,
                &self.requests.stream(handle, table).pages,
                own,
            )?;
            rest = behind;
        }
        rest = pages;
        for (&handle, &count) in handles.iter().zip(counts) {
            let (own, behind) = rest.split_at(count as usize);
            self.requests
                .stream_mut(handle, table)
                .pages
                .extend(own.iter().map(|&page| page as i32));
            rest = behind;
        }
        Ok(())
    }

    /// Adds `tokens[i]` tokens that a host-planned step appended to the stream of `handles[i]`. The next resident
    /// step that reads such a row mends it first.
    ///
    /// # Errors
    /// [`Error::ArrayLength`], [`Error::UnknownHandle`], [`Error::DuplicateHandle`], or [`Error::Length`] for a stream
    /// whose pages do not hold the tokens behind that of a step in flight; no stream has changed then.
    pub fn host_step(&mut self, table: TableIdx, handles: &[i64], tokens: &[i64]) -> Result<()> {
        self.layout.table_at(table)?;
        let handles = self.requests.resolve_all(handles)?;
        same_length("tokens", handles.len(), tokens.len())?;
        for (&handle, &added) in handles.iter().zip(tokens) {
            let pages = self.requests.stream(handle, table).pages.len();
            let length = self.coming_length(handle, table).saturating_add(added);
            self.check_length(handle, table, if added < 0 { added } else { length }, pages)?;
        }
        for (&handle, &added) in handles.iter().zip(tokens) {
            self.touch(handle);
            self.requests.stream_mut(handle, table).length += added;
        }
        Ok(())
    }

    /// Rewinds a stream to `length` tokens on its first `pages` pages: a token discarded after a stop, rejected
    /// drafts, or pages that a refused admit gives back. `length` is absolute; a token of a step in flight does not
    /// add to it.
    ///
    /// # Errors
    /// [`Error::UnknownHandle`], [`Error::Index`], [`Error::Pages`] for more pages than the stream has,
    /// [`Error::Length`] for more tokens, or more than the pages hold, or [`Error::SharedPage`] for an owned page behind
    /// `length` that another stream shares: the next token would be written into it.
    pub fn truncate(
        &mut self,
        table: TableIdx,
        handle: i64,
        length: i64,
        pages: usize,
    ) -> Result<()> {
        self.layout.table_at(table)?;
        let handle = self.requests.resolve(handle)?;
        let (limit, held_pages) = (
            self.length_of(handle, table),
            self.requests.stream(handle, table).pages.len(),
        );
        if pages > held_pages {
            return Err(Error::Pages {
                handle: handle.pack(),
                table: self.table_name(table),
                pages: pages as u64,
                held: held_pages as u64,
            });
        }
        if length > limit {
            return Err(self.length_error(handle, table, length, limit));
        }
        self.check_length(handle, table, length, pages)?;
        if let Some(page) = self.shared_page(handle, table, length, pages) {
            return Err(Error::SharedPage {
                handle: handle.pack(),
                table: self.table_name(table),
                page: page.into(),
            });
        }
        self.touch(handle);
        self.reset_in_flight(handle, table);
        self.give_back_pages(handle, table, pages);
        let held = self.held_extent(handle, table);
        let stream = self.requests.stream_mut(handle, table);
        stream.pages.truncate(pages);
        stream.length = length;
        self.requests.get_mut(handle).stale |= pages < held;
        Ok(())
    }

    /// Sets a named column on every handle.
    ///
    /// # Errors
    /// [`Error::ArrayLength`], [`Error::Index`], [`Error::UnknownHandle`] or [`Error::DuplicateHandle`].
    pub fn set_column(&mut self, column: usize, handles: &[i64], values: &[i64]) -> Result<()> {
        let limit = self.layout.columns().len();
        if column >= limit {
            return Err(Error::Index {
                field: "column",
                limit,
                got: column,
            });
        }
        let handles = self.requests.resolve_all(handles)?;
        same_length("values", handles.len(), values.len())?;
        for (&handle, &value) in handles.iter().zip(values) {
            self.touch(handle);
            self.requests.set_value(handle, column, value);
        }
        Ok(())
    }

    /// Forgets a named column's value: a row is an error until it is set again.
    ///
    /// # Errors
    /// [`Error::Index`], [`Error::UnknownHandle`] or [`Error::DuplicateHandle`].
    pub fn unset_column(&mut self, column: usize, handles: &[i64]) -> Result<()> {
        let limit = self.layout.columns().len();
        if column >= limit {
            return Err(Error::Index {
                field: "column",
                limit,
                got: column,
            });
        }
        for handle in self.requests.resolve_all(handles)? {
            self.touch(handle);
            self.requests.get_mut(handle).columns_set &= !(1 << column);
        }
        Ok(())
    }

    /// Marks rows stale: something the planner was not told of changed their cells. They are written whole before
    /// they are read again.
    ///
    /// # Errors
    /// [`Error::UnknownHandle`] or [`Error::DuplicateHandle`].
    pub fn mark_stale(&mut self, handles: &[i64]) -> Result<()> {
        for handle in self.requests.resolve_all(handles)? {
            self.touch(handle);
            let request = self.requests.get_mut(handle);
            request.stale = request.held_slot().is_some();
        }
        Ok(())
    }

    /// Marks a stream that gave up tokens inside its length: no row can describe it until it is replaced.
    ///
    /// # Errors
    /// [`Error::UnknownHandle`] or [`Error::Index`].
    pub fn mark_released_tokens(&mut self, table: TableIdx, handle: i64) -> Result<()> {
        self.layout.table_at(table)?;
        let handle = self.requests.resolve(handle)?;
        self.touch(handle);
        self.requests.stream_mut(handle, table).released_tokens = true;
        Ok(())
    }

    /// Drops a stage that names the row and writes its cohort's ticks out.
    pub(crate) fn touch(&mut self, handle: Handle) {
        if self.in_stage(handle) {
            self.drop_stage();
        }
        if self.in_cohort(handle) {
            self.break_cohort();
        }
    }

    /// Makes a step in flight that reads the row add nothing to this stream; its other streams still advance. The
    /// row's cohort is broken up already.
    fn reset_in_flight(&mut self, handle: Handle, table: TableIdx) {
        if let Some(step) = &self.in_flight {
            let seq = step.seq;
            if self.requests.get(handle).last_step == seq {
                self.requests.stream_mut(handle, table).reset_seq = seq;
            }
        }
    }

    /// Cells of the table that the request's row holds; 0 without a row.
    fn held_extent(&self, handle: Handle, table: TableIdx) -> usize {
        self.requests
            .get(handle)
            .held_slot()
            .map_or(0, |slot| self.mirror.extent(slot, table))
    }

    fn check_pages(
        &self,
        handle: Handle,
        table: TableIdx,
        held: &[i32],
        pages: &[i64],
    ) -> Result<()> {
        let pool_pages = self.layout.table_at(table)?.spec.pool_pages;
        let valid = |&page: &i64| page >= 1 && page.unsigned_abs() <= pool_pages;
        let mut wrong = pages.iter().find(|page| !valid(page)).copied();
        if wrong.is_none() && self.strict {
            let mut sorted: Vec<i64> = held
                .iter()
                .map(|&page| i64::from(page))
                .chain(pages.iter().copied())
                .collect();
            sorted.sort_unstable();
            wrong = sorted
                .windows(2)
                .find(|pair| pair[0] == pair[1])
                .map(|pair| pair[0]);
        }
        match wrong {
            None => Ok(()),
            Some(page) => Err(Error::Page {
                handle: handle.pack(),
                table: self.table_name(table),
                page,
                pool_pages,
            }),
        }
    }

    fn check_length(
        &self,
        handle: Handle,
        table: TableIdx,
        length: i64,
        pages: usize,
    ) -> Result<()> {
        let limit = pages as i64 * self.layout.tables()[table].page_size;
        if (0..=limit).contains(&length) {
            return Ok(());
        }
        Err(self.length_error(handle, table, length, limit))
    }

    fn length_error(&self, handle: Handle, table: TableIdx, length: i64, limit: i64) -> Error {
        Error::Length {
            handle: handle.pack(),
            table: self.table_name(table),
            length,
            limit,
        }
    }
}

fn same_length(field: &'static str, expected: usize, got: usize) -> Result<()> {
    if expected == got {
        Ok(())
    } else {
        Err(Error::ArrayLength {
            field,
            expected,
            got,
        })
    }
}
