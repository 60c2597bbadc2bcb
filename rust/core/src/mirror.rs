//! What the store holds, as the host knows it: advanced by the device's rule, never read back.

use crate::ids::{Slot, TableIdx};
use crate::layout::RowLayout;

/// Per slot: stored lengths, named columns, and how many cells of each table may differ from the sink page.
///
/// Page ids are not copied here: the held cells of a row that is not stale are the first pages of its stream.
#[derive(Debug)]
pub(crate) struct Mirror {
    tables: usize,
    columns: usize,
    lengths: Vec<i64>,
    values: Vec<i64>,
    extents: Vec<u32>,
    /// The device may hold anything in this row's used cells: a launch failed while it was being written.
    unknown: Vec<bool>,
}

impl Mirror {
    pub fn new(layout: &RowLayout, rows: usize) -> Self {
        let (tables, columns) = (layout.tables().len(), layout.columns().len());
        Self {
            tables,
            columns,
            lengths: vec![0; rows * tables],
            values: vec![0; rows * columns],
            extents: vec![0; rows * tables],
            unknown: vec![false; rows],
        }
    }

    pub fn length(&self, slot: Slot, table: TableIdx) -> i64 {
        self.lengths[slot.get() * self.tables + table]
    }

    pub fn set_length(&mut self, slot: Slot, table: TableIdx, length: i64) {
        self.lengths[slot.get() * self.tables + table] = length;
    }

    /// Adds what the captured step's advance added on the device.
    pub fn advance(&mut self, slot: Slot, table: TableIdx, tokens: i64) {
        self.lengths[slot.get() * self.tables + table] += tokens;
    }

    /// Cells of the table that may name a page: everything behind them is the sink page.
    pub fn extent(&self, slot: Slot, table: TableIdx) -> usize {
        self.extents[slot.get() * self.tables + table] as usize
    }

    pub fn set_extent(&mut self, slot: Slot, table: TableIdx, cells: usize) {
        self.extents[slot.get() * self.tables + table] = cells as u32; // a table is at most 2^31 - 1 wide
    }

    pub fn value(&self, slot: Slot, column: usize) -> i64 {
        self.values[slot.get() * self.columns + column]
    }

    pub fn set_value(&mut self, slot: Slot, column: usize, value: i64) {
        self.values[slot.get() * self.columns + column] = value;
    }

    pub fn is_unknown(&self, slot: Slot) -> bool {
        self.unknown[slot.get()]
    }

    pub fn set_unknown(&mut self, slot: Slot, unknown: bool) {
        self.unknown[slot.get()] = unknown;
    }
}
