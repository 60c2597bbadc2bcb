//! The truth as a dictionary: what every request's streams and columns are, told by the same calls as the planner.

use std::collections::{BTreeMap, BTreeSet};

use mstar_resident_core::TableSpec;

use super::ops::rows;
use super::shapes::{Shape, used, width};
use mstar_resident_core::Op;

/// One stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    pub pages: Vec<i64>,
    pub length: i64,
    pub released_tokens: bool,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub streams: Vec<Stream>,
    pub columns: Vec<Option<i64>>,
}

/// A launched step that has not ended.
#[derive(Clone, Debug)]
pub struct Step {
    pub seq: u64,
    pub lease: usize,
    pub handles: Vec<i64>,
    pub slots: Vec<usize>,
    /// Per batch row and table: whether its token still counts.
    pub counts: Vec<Vec<bool>>,
}

impl Step {
    pub(super) fn forget(&mut self, handle: i64, table: Option<usize>) {
        let rows = self.handles.iter().zip(&mut self.counts);
        for (_, counts) in rows.filter(|(row, _)| **row == handle) {
            match table {
                Some(table) => counts[table] = false,
                None => counts.fill(false),
            }
        }
    }
}

/// Pages that the planner owns.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    pub free: BTreeSet<i64>,
    pub cooling: BTreeSet<i64>,
}

/// Every request, and the pools whose pages the planner owns.
#[derive(Debug)]
pub struct Truth {
    pub tables: Vec<TableSpec>,
    pub max_batch: usize,
    pub columns: usize,
    pub requests: BTreeMap<i64, Request>,
    pub pools: Vec<Option<Pool>>,
}

impl Truth {
    pub fn new(shape: &Shape) -> Self {
        Self {
            tables: shape.tables.clone(),
            max_batch: shape.max_batch,
            columns: shape.columns,
            requests: BTreeMap::new(),
            pools: vec![None; shape.tables.len()],
        }
    }

    pub fn stream(&self, handle: i64, table: usize) -> &Stream {
        &self.requests[&handle].streams[table]
    }

    pub(super) fn stream_mut(&mut self, handle: i64, table: usize) -> &mut Stream {
        &mut self.requests.get_mut(&handle).unwrap().streams[table]
    }

    pub fn value(&self, handle: i64, column: usize) -> i64 {
        self.requests[&handle].columns[column].unwrap()
    }

    /// Cells that a row's table must hold in the next step.
    pub fn used_pages(&self, handle: i64, table: usize) -> &[i64] {
        let stream = self.stream(handle, table);
        &stream.pages[..used(&self.tables[table], stream.length)]
    }

    /// A stream's length once the step in flight has committed.
    pub(super) fn coming_length(&self, handle: i64, table: usize, step: Option<&Step>) -> i64 {
        let coming = step.is_some_and(|step| {
            let row = step.handles.iter().position(|&row| row == handle);
            row.is_some_and(|row| step.counts[row][table])
        });
        self.stream(handle, table).length
            + if coming {
                self.tables[table].span as i64
            } else {
                0
            }
    }

    /// Every error that a plan of `step` may be refused with.
    pub fn refuses_step(&self, step: &[i64]) -> Vec<&'static str> {
        let mut kinds = Vec::new();
        for handle in step {
            let Some(request) = self.requests.get(handle) else {
                kinds.push("UnknownHandle");
                continue;
            };
            for (stream, spec) in request.streams.iter().zip(&self.tables) {
                let used = used(spec, stream.length);
                if stream.released_tokens {
                    kinds.push("ReleasedTokens");
                } else if used > width(spec) {
                    kinds.push("RowOverflow");
                } else if used > stream.pages.len() {
                    kinds.push("MissingPage");
                }
            }
            if request.columns.contains(&None) {
                kinds.push("UnsetColumn");
            }
        }
        kinds
    }

    fn refuses_handles(&self, handles: &[i64], kinds: &mut Vec<&'static str>) {
        let distinct: BTreeSet<&i64> = handles.iter().collect();
        if distinct.len() != handles.len() {
            kinds.push("DuplicateHandle");
        }
        if handles
            .iter()
            .any(|handle| !self.requests.contains_key(handle))
        {
            kinds.push("UnknownHandle");
        }
    }

    fn refuses_pages(
        &self,
        table: usize,
        held: &[i64],
        pages: &[i64],
        kinds: &mut Vec<&'static str>,
    ) {
        let all: BTreeSet<&i64> = held.iter().chain(pages).collect();
        let pool_pages = self.tables[table].pool_pages as i64;
        if all.len() != held.len() + pages.len()
            || pages.iter().any(|&page| page < 1 || page > pool_pages)
        {
            kinds.push("Page");
        }
    }

    /// How many streams name a page.
    fn named(&self, table: usize, page: i64) -> usize {
        let streams = self
            .requests
            .values()
            .map(|request| &request.streams[table]);
        streams
            .filter(|stream| stream.pages.contains(&page))
            .count()
    }

    /// Every error that a call may be refused with; none if it must succeed.
    pub fn refuses(&self, call: &Op, step: Option<&Step>) -> Vec<&'static str> {
        let mut kinds = Vec::new();
        let (handles, table, column) = match call {
            Op::Release(handle) | Op::Offload(handle) => (vec![*handle], None, None),
            Op::SetStream { handle, table, .. }
            | Op::Truncate { handle, table, .. }
            | Op::MarkReleasedTokens { handle, table } => (vec![*handle], Some(*table), None),
            Op::AppendPages { table, handles, .. }
            | Op::HostStep { table, handles, .. }
            | Op::Reserve { table, handles, .. } => (handles.clone(), Some(*table), None),
            Op::SetColumn {
                column, handles, ..
            }
            | Op::UnsetColumn { column, handles } => (handles.clone(), None, Some(*column)),
            Op::MarkStale(handles) | Op::Batch(handles) => (handles.clone(), None, None),
            Op::ReserveStep(batch) => (rows(batch), None, None),
            Op::OwnPages(table) => (Vec::new(), Some(*table), None),
            Op::Fork {
                table,
                parent,
                child,
                ..
            } => {
                let one = if parent == child {
                    vec![*child]
                } else {
                    vec![*parent, *child]
                };
                (one, Some(*table), None)
            }
            _ => (Vec::new(), None, None),
        };
        self.refuses_handles(&handles, &mut kinds);
        if matches!(call, Op::Batch(_)) && !(1..=self.max_batch).contains(&handles.len()) {
            kinds.push("BatchSize");
        }
        if matches!(call, Op::ReserveStep(_)) && step.is_some() {
            kinds.push("NotReady");
        }
        if table.is_some_and(|table| table >= self.tables.len())
            || column.is_some_and(|column| column >= self.columns)
        {
            kinds.push("Index");
        }
        if let Some(pool) = table.and_then(|table| self.pools.get(table)) {
            let owner_is_wrong = match call {
                Op::SetStream { .. } | Op::AppendPages { .. } | Op::OwnPages(_) => pool.is_some(),
                Op::Reserve { .. } | Op::Fork { .. } => pool.is_none(),
                _ => false,
            };
            if owner_is_wrong {
                kinds.push("Ownership");
            }
        }
        if kinds.is_empty() {
            self.refuses_values(call, step, &mut kinds);
        }
        kinds
    }

    fn refuses_values(&self, call: &Op, step: Option<&Step>, kinds: &mut Vec<&'static str>) {
        let capacity =
            |table: usize, pages: usize| pages as i64 * self.tables[table].page_size as i64;
        match call {
            Op::SetStream {
                table,
                pages,
                length,
                ..
            } => {
                self.refuses_pages(*table, &[], pages, kinds);
                if *length < 0 || *length > capacity(*table, pages.len()) {
                    kinds.push("Length");
                }
            }
            Op::AppendPages {
                table,
                handles,
                counts,
                pages,
            } => {
                let total: i128 = counts.iter().map(|&count| i128::from(count)).sum();
                if counts.len() != handles.len() {
                    kinds.push("ArrayLength");
                    return;
                }
                if counts.iter().any(|&count| count < 0) {
                    kinds.push("Count");
                    return;
                }
                if total != pages.len() as i128 {
                    kinds.push("ArrayLength");
                    return;
                }
                let mut first = 0;
                for (&handle, &count) in handles.iter().zip(counts) {
                    let behind = first + count as usize;
                    let held = &self.stream(handle, *table).pages;
                    self.refuses_pages(*table, held, &pages[first..behind], kinds);
                    first = behind;
                }
            }
            Op::HostStep {
                table,
                handles,
                tokens,
            } => {
                if tokens.len() != handles.len() {
                    kinds.push("ArrayLength");
                    return;
                }
                for (&handle, &added) in handles.iter().zip(tokens) {
                    let limit = capacity(*table, self.stream(handle, *table).pages.len());
                    if added < 0 || added > limit - self.coming_length(handle, *table, step) {
                        kinds.push("Length");
                    }
                }
            }
            Op::Truncate {
                table,
                handle,
                length,
                pages,
            } => {
                let stream = self.stream(*handle, *table);
                let fits = *pages <= stream.pages.len() && *length <= capacity(*table, *pages);
                if !fits || *length < 0 || *length > stream.length {
                    kinds.push("Length");
                } else if self.pools[*table].is_some() {
                    let first = (*length / self.tables[*table].page_size as i64) as usize;
                    let kept = stream.pages.get(first..*pages).unwrap_or_default();
                    if kept.iter().any(|page| self.named(*table, *page) > 1) {
                        kinds.push("SharedPage");
                    }
                }
            }
            Op::SetColumn {
                handles, values, ..
            } if values.len() != handles.len() => {
                kinds.push("ArrayLength");
            }
            Op::OwnPages(table) => {
                let named = |request: &Request| !request.streams[*table].pages.is_empty();
                if self.requests.values().any(named) {
                    kinds.push("Ownership");
                }
                if step.is_some() {
                    kinds.push("NotReady");
                }
            }
            Op::Reserve {
                table,
                handles,
                tokens,
            } => {
                if tokens.len() != handles.len() {
                    kinds.push("ArrayLength");
                    return;
                }
                self.refuses_reservation(*table, handles, tokens, step, kinds);
            }
            Op::ReserveStep(batch) => {
                let handles = &rows(batch);
                for table in (0..self.tables.len()).filter(|&table| self.pools[table].is_some()) {
                    let spans = vec![self.tables[table].span as i64; handles.len()];
                    self.refuses_reservation(table, handles, &spans, step, kinds);
                }
            }
            Op::Fork {
                table,
                parent,
                child,
                tokens,
            } => {
                let page_size = self.tables[*table].page_size as i64;
                let parent = self.stream(*parent, *table);
                let whole = *tokens >= 0 && tokens % page_size == 0 && *tokens <= parent.length;
                if !whole || !self.stream(*child, *table).pages.is_empty() {
                    kinds.push("Length");
                }
                if parent.released_tokens {
                    kinds.push("ReleasedTokens");
                }
            }
            _ => {}
        }
    }

    fn refuses_reservation(
        &self,
        table: usize,
        handles: &[i64],
        tokens: &[i64],
        step: Option<&Step>,
        kinds: &mut Vec<&'static str>,
    ) {
        let spec = &self.tables[table];
        let page_size = spec.page_size as i64;
        let mut missing = 0;
        for (&handle, &added) in handles.iter().zip(tokens) {
            let length = self.coming_length(handle, table, step);
            let needed = (length.saturating_add(added)).div_euclid(page_size)
                + i64::from(length.saturating_add(added).rem_euclid(page_size) != 0);
            if added < 0 {
                kinds.push("Length");
            } else if needed > width(spec) as i64 {
                kinds.push("RowOverflow");
            } else {
                missing += (needed - self.stream(handle, table).pages.len() as i64).max(0);
            }
        }
        if self.pools[table]
            .as_ref()
            .is_some_and(|pool| missing > pool.free.len() as i64)
        {
            kinds.push("OutOfPages");
        }
    }
}
