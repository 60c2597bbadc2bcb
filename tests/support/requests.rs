//! Short names for what the tests tell most.

use super::device::Outputs;
use super::node::Node;
use mstar_resident_core::Op;

impl Node {
    /// Opens a request; its columns are not set.
    pub fn open(&mut self) -> i64 {
        self.tell(&Op::Open).unwrap()
    }

    /// Opens a request after its prefill: pages and a length per table, a value per column.
    pub fn request(&mut self, streams: &[(&[i64], i64)], columns: &[i64]) -> i64 {
        let handle = self.open();
        for (table, (pages, length)) in streams.iter().enumerate() {
            self.set_stream(handle, table, pages, *length);
        }
        for (column, value) in columns.iter().enumerate() {
            self.set_column(column, handle, *value);
        }
        handle
    }

    /// A request of one table that holds `pages` pages, numbered on from `first`.
    pub fn simple(&mut self, first: i64, pages: i64, length: i64) -> i64 {
        let pages: Vec<i64> = (first..first + pages).collect();
        self.request(&[(&pages, length)], &[])
    }

    /// Requests of one table with room for many steps, on pages of their own.
    pub fn simples(&mut self, count: usize) -> Vec<i64> {
        let first = 1 + 4 * self.truth.requests.len() as i64;
        (0..count as i64)
            .map(|number| self.simple(first + 4 * number, 4, 1))
            .collect()
    }

    pub fn release(&mut self, handle: i64) -> u64 {
        self.tell(&Op::Release(handle)).unwrap() as u64
    }

    pub fn offload(&mut self, handle: i64) -> u64 {
        self.tell(&Op::Offload(handle)).unwrap() as u64
    }

    pub fn set_stream(&mut self, handle: i64, table: usize, pages: &[i64], length: i64) {
        let pages = pages.to_vec();
        let call = Op::SetStream {
            handle,
            table,
            pages,
            length,
        };
        self.tell(&call).unwrap();
    }

    pub fn append_page(&mut self, handle: i64, table: usize, page: i64) {
        let call = Op::AppendPages {
            table,
            handles: vec![handle],
            counts: vec![1],
            pages: vec![page],
        };
        self.tell(&call).unwrap();
    }

    pub fn host_step(&mut self, handle: i64, table: usize, tokens: i64) {
        let call = Op::HostStep {
            table,
            handles: vec![handle],
            tokens: vec![tokens],
        };
        self.tell(&call).unwrap();
    }

    pub fn truncate(&mut self, handle: i64, table: usize, length: i64, pages: usize) {
        let call = Op::Truncate {
            table,
            handle,
            length,
            pages,
        };
        self.tell(&call).unwrap();
    }

    pub fn set_column(&mut self, column: usize, handle: i64, value: i64) {
        let call = Op::SetColumn {
            column,
            handles: vec![handle],
            values: vec![value],
        };
        self.tell(&call).unwrap();
    }

    pub fn mark_stale(&mut self, handle: i64) {
        self.tell(&Op::MarkStale(vec![handle])).unwrap();
    }

    pub fn reserve(&mut self, handle: i64, table: usize, tokens: i64) {
        let call = Op::Reserve {
            table,
            handles: vec![handle],
            tokens: vec![tokens],
        };
        self.tell(&call).unwrap();
    }

    /// Stages a step on lease 0.
    pub fn plan(&mut self, handles: &[i64]) -> u64 {
        self.stage(handles, 0).unwrap().seq.get()
    }

    /// Stages and launches a step on lease 0, and leaves it in flight.
    pub fn launch_step(&mut self, handles: &[i64]) -> Outputs {
        self.plan(handles);
        self.launch()
    }

    /// One whole step on lease 0.
    pub fn step(&mut self, handles: &[i64]) -> Outputs {
        let out = self.launch_step(handles);
        self.commit();
        out
    }

    /// The slot a request holds; 0 for none.
    pub fn slot(&self, handle: i64) -> usize {
        self.slots.held.get(&handle).map_or(0, |held| held.slot)
    }

    pub fn length(&self, handle: i64, table: usize) -> i64 {
        self.planner.length(handle, table).unwrap()
    }

    /// The page cells of a request's row.
    pub fn cells(&self, handle: i64, table: usize) -> Vec<i32> {
        self.device.table(table, self.slot(handle)).to_vec()
    }
}
