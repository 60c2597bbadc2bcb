//! Pages owned by the planner: the engine asks, and the planner keeps the streams true by itself.

use crate::error::{Error, Result};
use crate::ids::{Handle, TableIdx};
use crate::planner::Planner;
use crate::pool::PagePool;
use crate::stage::Batch;

impl Planner {
    /// Makes the planner the owner of a pool's pages. The engine then calls [`Planner::reserve`] and
    /// [`Planner::fork`] instead of naming pages itself.
    ///
    /// # Errors
    /// [`Error::Index`], [`Error::Ownership`] if the planner owns them already or a live stream names some, or
    /// [`Error::NotReady`] while a launched step, which may still touch some, has not committed.
    pub fn own_pages(&mut self, table: TableIdx) -> Result<()> {
        self.owned_by_engine(table)?;
        if let Some(step) = &self.in_flight {
            return Err(Error::NotReady {
                seq: step.seq.get(),
            });
        }
        let pool_pages = self.layout.table_at(table)?.spec.pool_pages;
        if self
            .requests
            .live()
            .any(|handle| !self.requests.stream(handle, table).pages.is_empty())
        {
            return Err(Error::Ownership {
                table: self.table_name(table),
                expected: "engine",
            });
        }
        self.pools[table] = Some(PagePool::new(pool_pages));
        Ok(())
    }

    /// Free pages of an owned pool.
    ///
    /// # Errors
    /// [`Error::Index`] or [`Error::Ownership`].
    pub fn free_pages(&self, table: TableIdx) -> Result<u64> {
        self.pool(table).map(PagePool::free)
    }

    /// Gives the streams pages for `tokens[i]` more tokens each, behind a token of a step in flight: all of them or,
    /// if the pool is short, none.
    ///
    /// # Errors
    /// [`Error::OutOfPages`], [`Error::RowOverflow`], [`Error::ArrayLength`], [`Error::UnknownHandle`],
    /// [`Error::DuplicateHandle`], [`Error::Length`], [`Error::Index`] or [`Error::Ownership`]; nothing was taken.
    pub fn reserve(&mut self, table: TableIdx, handles: &[i64], tokens: &[i64]) -> Result<()> {
        let free = self.pool(table)?.free();
        let handles = self.requests.resolve_all(handles)?;
        if handles.len() != tokens.len() {
            return Err(Error::ArrayLength {
                field: "tokens",
                expected: handles.len(),
                got: tokens.len(),
            });
        }
        let mut needed = 0_u64;
        for (&handle, &added) in handles.iter().zip(tokens) {
            needed += self.missing_pages(handle, table, added)?;
        }
        if needed > free {
            return Err(Error::OutOfPages {
                table: self.table_name(table),
                needed,
                free,
            });
        }
        for (&handle, &added) in handles.iter().zip(tokens) {
            let missing = self.missing_pages(handle, table, added)?;
            self.take_pages(handle, table, missing);
        }
        Ok(())
    }

    /// Gives every row of a batch the page its next token needs, on every owned pool: all of them or none. A batch
    /// that stepped last costs its crossings, any other one O(rows).
    ///
    /// # Errors
    /// [`Error::OutOfPages`], [`Error::RowOverflow`] or [`Error::UnknownHandle`], or [`Error::NotReady`] while a
    /// launched step has not committed; nothing was taken.
    pub fn reserve_step(&mut self, batch: &Batch) -> Result<()> {
        if let Some(step) = &self.in_flight {
            return Err(Error::NotReady {
                seq: step.seq.get(),
            });
        }
        if let Some(handle) = batch
            .rows
            .iter()
            .find(|&&handle| !self.cohort.is(batch) && !self.requests.is_live(handle))
        {
            return Err(Error::UnknownHandle {
                handle: handle.pack(),
            });
        }
        let mut rows = std::mem::take(&mut self.reserving);
        rows.clear();
        let counted = self.count_pages(batch, &mut rows);
        for &(table, handle) in rows.iter().filter(|_| counted.is_ok()) {
            let missing = self.missing_pages(handle, table, self.layout.tables()[table].span)?;
            self.take_pages(handle, table, missing);
        }
        self.reserving = rows;
        counted
    }

    /// Lists the streams that a step may need a page for, and sees that every pool has enough.
    fn count_pages(&mut self, batch: &Batch, rows: &mut Vec<(TableIdx, Handle)>) -> Result<()> {
        let steps_again = self.cohort.is(batch);
        if steps_again {
            self.build_calendars();
        }
        for table in 0..self.layout.tables().len() {
            let Some(pool) = &self.pools[table] else {
                continue;
            };
            let first = rows.len();
            if steps_again {
                let due = self.cohort.calendars[table].due(self.cohort.ticks);
                rows.extend(due.map(|row| (table, batch.rows[row as usize])));
            } else {
                rows.extend(batch.rows.iter().map(|&handle| (table, handle)));
            }
            let (free, span) = (pool.free(), self.layout.tables()[table].span);
            let mut needed = 0;
            for &(_, handle) in &rows[first..] {
                needed += self.missing_pages(handle, table, span)?;
            }
            if needed > free {
                return Err(Error::OutOfPages {
                    table: self.table_name(table),
                    needed,
                    free,
                });
            }
        }
        Ok(())
    }

    /// Makes `child`, whose stream is empty, share the full pages of the first `tokens` tokens of `parent`.
    ///
    /// # Errors
    /// [`Error::Length`] if `tokens` is not a whole number of pages of the parent or the child is not empty;
    /// [`Error::ReleasedTokens`] if the parent gave up tokens; [`Error::UnknownHandle`], [`Error::Index`] or
    /// [`Error::Ownership`].
    pub fn fork(&mut self, table: TableIdx, parent: i64, child: i64, tokens: i64) -> Result<()> {
        self.pool(table)?;
        let (parent, child) = (
            self.requests.resolve(parent)?,
            self.requests.resolve(child)?,
        );
        let page_size = self.layout.tables()[table].page_size;
        let limit = self.length_of(parent, table) / page_size * page_size;
        let whole_pages = (0..=limit).contains(&tokens) && tokens % page_size == 0;
        if !whole_pages || !self.requests.stream(child, table).pages.is_empty() {
            return Err(Error::Length {
                handle: child.pack(),
                table: self.table_name(table),
                length: tokens,
                limit,
            });
        }
        if self.requests.stream(parent, table).released_tokens {
            return Err(self.released_tokens(parent, table));
        }
        self.touch(child);
        for column in 0..(tokens / page_size) as usize {
            let page = self.requests.stream(parent, table).pages[column];
            self.requests.stream_mut(child, table).pages.push(page);
            if let Some(pool) = &mut self.pools[table] {
                pool.share(page);
            }
        }
        let stream = self.requests.stream_mut(child, table);
        stream.length = tokens;
        stream.released_tokens = false;
        Ok(())
    }

    /// Takes a stream's pages behind the first `kept` off it; owned ones go back to their pool.
    pub(crate) fn give_back_pages(&mut self, handle: Handle, table: TableIdx, kept: usize) {
        let Some(pool) = &mut self.pools[table] else {
            return;
        };
        let in_flight = self.in_flight.as_ref().map(|step| step.seq);
        let stream = self.requests.stream_mut(handle, table);
        for page in stream.pages.drain(kept..) {
            pool.give_back(page, in_flight);
        }
    }

    /// The first of a stream's first `pages` owned pages, from where `length` ends, that another stream names too.
    pub(crate) fn shared_page(
        &self,
        handle: Handle,
        table: TableIdx,
        length: i64,
        pages: usize,
    ) -> Option<i32> {
        let pool = self.pools[table].as_ref()?;
        let first = usize::try_from(length / self.layout.tables()[table].page_size).ok()?;
        let kept = self
            .requests
            .stream(handle, table)
            .pages
            .get(first..pages)?;
        kept.iter().copied().find(|&page| pool.is_shared(page))
    }

    pub(crate) fn owned_by_engine(&self, table: TableIdx) -> Result<()> {
        self.layout.table_at(table)?;
        if self.pools[table].is_some() {
            return Err(Error::Ownership {
                table: self.table_name(table),
                expected: "engine",
            });
        }
        Ok(())
    }

    fn pool(&self, table: TableIdx) -> Result<&PagePool> {
        self.layout.table_at(table)?;
        let owned = self.pools[table].as_ref();
        owned.ok_or_else(|| Error::Ownership {
            table: self.table_name(table),
            expected: "planner",
        })
    }

    fn missing_pages(&self, handle: Handle, table: TableIdx, tokens: i64) -> Result<u64> {
        let spec = &self.layout.tables()[table];
        let length = self.coming_length(handle, table).saturating_add(tokens);
        if tokens < 0 {
            let limit = spec.width as i64 * spec.page_size;
            return Err(Error::Length {
                handle: handle.pack(),
                table: self.table_name(table),
                length: tokens,
                limit,
            });
        }
        let needed = length
            .unsigned_abs()
            .div_ceil(spec.page_size.unsigned_abs());
        if needed > spec.width as u64 {
            let (table, width) = (self.table_name(table), spec.width as u64);
            return Err(Error::RowOverflow {
                handle: handle.pack(),
                table,
                needed,
                width,
            });
        }
        Ok(needed.saturating_sub(self.requests.stream(handle, table).pages.len() as u64))
    }

    fn take_pages(&mut self, handle: Handle, table: TableIdx, count: u64) {
        let Some(pool) = &mut self.pools[table] else {
            return;
        };
        let stream = self.requests.stream_mut(handle, table);
        stream.pages.extend((0..count).map(|_| pool.take()));
    }
}
