//! Host truth: each request's streams and narrow columns.

use crate::error::{Error, Result};
use crate::ids::{Handle, PlanSeq, Slot, TableIdx};
use crate::layout::RowLayout;

/// One labelled token sequence in one KV pool: its pages in order and its stored length.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    pub pages: Vec<i32>,
    pub length: i64,
    pub released_tokens: bool,
    /// The step in flight when the length was set outright: that step's token no longer counts.
    pub reset_seq: PlanSeq,
}

/// What the planner keeps of one request besides its streams.
#[derive(Debug)]
pub(crate) struct Request {
    pub generation: u32,
    pub live: bool,
    /// The held slot, or the trash row for none.
    pub slot: Slot,
    /// The row's cells may differ from the streams in a way that lengths and new columns do not mend.
    pub stale: bool,
    /// The cohort that it belongs to, 0 for none.
    pub cohort: u64,
    /// The last launched step that read a row of it.
    pub last_step: PlanSeq,
    /// The last stage that named it.
    pub stage: PlanSeq,
    /// Which named columns have a value.
    pub columns_set: u64,
    /// Marks of one call, to find a handle that came twice.
    pub seen: (u64, u32),
}

/// All requests, their streams and their columns, indexed by handle.
#[derive(Debug)]
pub(crate) struct Requests {
    tables: usize,
    columns: usize,
    requests: Vec<Request>,
    streams: Vec<Stream>,
    values: Vec<i64>,
    vacant: Vec<u32>,
    calls: u64,
}

impl Requests {
    pub fn new(layout: &RowLayout) -> Self {
        Self {
            tables: layout.tables().len(),
            columns: layout.columns().len(),
            requests: Vec::new(),
            streams: Vec::new(),
            values: Vec::new(),
            vacant: Vec::new(),
            calls: 0,
        }
    }

    /// Opens a request with empty streams and no column set.
    pub fn open(&mut self) -> Handle {
        let index = self.vacant.pop().unwrap_or_else(|| {
            let index =
                u32::try_from(self.requests.len()).expect("fewer than 2^32 requests at once");
            self.requests.push(Request::vacant());
            self.streams
                .resize_with(self.requests.len() * self.tables, Stream::default);
            self.values.resize(self.requests.len() * self.columns, 0);
            index
        });
        let request = &mut self.requests[index as usize];
        request.live = true;
        Handle::new(index, request.generation)
    }

    /// Forgets a live request. Its index is reused under the next generation.
    pub fn close(&mut self, handle: Handle) {
        let index = handle.index();
        for table in 0..self.tables {
            let stream = &mut self.streams[index * self.tables + table];
            stream.pages.clear();
            stream.length = 0;
            stream.released_tokens = false;
            stream.reset_seq = PlanSeq::NONE;
        }
        let generation = self.requests[index].generation + 1;
        self.requests[index] = Request {
            generation,
            ..Request::vacant()
        };
        if generation <= Handle::MAX_GENERATION {
            self.vacant.push(index as u32);
        }
    }

    /// Reads a packed handle of a live request.
    pub fn resolve(&self, packed: i64) -> Result<Handle> {
        Handle::unpack(packed)
            .filter(|&handle| self.is_live(handle))
            .ok_or(Error::UnknownHandle { handle: packed })
    }

    /// Reads packed handles, each live and named once.
    pub fn resolve_all(&mut self, packed: &[i64]) -> Result<Vec<Handle>> {
        self.calls += 1;
        let mut handles = Vec::with_capacity(packed.len());
        for (at, &number) in packed.iter().enumerate() {
            let handle = self.resolve(number)?;
            let seen = &mut self.requests[handle.index()].seen;
            if seen.0 == self.calls {
                return Err(Error::DuplicateHandle {
                    handle: number,
                    first: seen.1 as usize,
                    second: at,
                });
            }
            *seen = (self.calls, at as u32);
            handles.push(handle);
        }
        Ok(handles)
    }

    pub fn is_live(&self, handle: Handle) -> bool {
        self.requests
            .get(handle.index())
            .is_some_and(|r| r.live && r.generation == handle.generation())
    }

    pub fn get(&self, handle: Handle) -> &Request {
        &self.requests[handle.index()]
    }

    pub fn get_mut(&mut self, handle: Handle) -> &mut Request {
        &mut self.requests[handle.index()]
    }

    pub fn stream(&self, handle: Handle, table: TableIdx) -> &Stream {
        &self.streams[handle.index() * self.tables + table]
    }

    pub fn stream_mut(&mut self, handle: Handle, table: TableIdx) -> &mut Stream {
        &mut self.streams[handle.index() * self.tables + table]
    }

    pub fn value(&self, handle: Handle, column: usize) -> i64 {
        self.values[handle.index() * self.columns + column]
    }

    pub fn set_value(&mut self, handle: Handle, column: usize, value: i64) {
        self.values[handle.index() * self.columns + column] = value;
        self.requests[handle.index()].columns_set |= 1 << column;
    }

    /// Live requests.
    pub fn live(&self) -> impl Iterator<Item = Handle> + '_ {
        let live = self.requests.iter().enumerate().filter(|(_, r)| r.live);
        live.map(|(index, r)| Handle::new(index as u32, r.generation))
    }
}

impl Request {
    fn vacant() -> Self {
        Self {
            generation: 0,
            live: false,
            slot: Slot::TRASH,
            stale: false,
            cohort: 0,
            last_step: PlanSeq::NONE,
            stage: PlanSeq::NONE,
            columns_set: 0,
            seen: (0, 0),
        }
    }

    pub fn held_slot(&self) -> Option<Slot> {
        (self.slot != Slot::TRASH).then_some(self.slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_whose_generations_are_used_up_is_not_reused() {
        let layout = RowLayout::new(Vec::new(), vec!["index".into()]).unwrap();
        let mut requests = Requests::new(&layout);
        let first = requests.open();
        requests.close(first);
        requests.requests[0].generation = Handle::MAX_GENERATION;
        let last = requests.open();
        assert_eq!(last.pack(), i64::from(i32::MAX) << 32);
        requests.close(last);
        let next = requests.open();
        assert_eq!(next.pack(), 1);
        assert!(!requests.is_live(last) && requests.is_live(next));
        assert_eq!(requests.live().collect::<Vec<_>>(), [next]);
    }
}
