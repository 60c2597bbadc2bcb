//! What a stage must send, by comparing every cell.

use std::collections::BTreeMap;

use super::node::Node;
use super::shapes::{used, width};

/// What one row needs before it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Needs {
    Nothing,
    /// Column to value.
    Cells(BTreeMap<usize, i64>),
    Whole,
}

impl Node {
    /// What a row needs, given the slot that it holds, if any.
    pub fn needs(&self, handle: i64) -> Needs {
        let Some(held) = self.slots.held.get(&handle) else {
            return Needs::Whole;
        };
        if self.stale.contains(&handle) || self.unknown.contains(&held.slot) {
            return Needs::Whole;
        }
        let mut cells = BTreeMap::new();
        let mut first = self.device.narrow_cells;
        for (table, spec) in self.truth.tables.iter().enumerate() {
            let length = self.truth.stream(handle, table).length;
            if self.device.narrow(held.slot)[table] != length {
                cells.insert(table, length);
            }
            let pages = self.truth.used_pages(handle, table);
            let extent = self.device.extent(table, held.slot);
            if pages.len() < extent {
                return Needs::Whole;
            }
            for (column, (&page, &cell)) in pages
                .iter()
                .zip(self.device.table(table, held.slot))
                .enumerate()
            {
                if column < extent {
                    assert_eq!(
                        i64::from(cell),
                        page,
                        "request {handle}: its row differs and is not stale"
                    );
                } else {
                    cells.insert(first + column, page);
                }
            }
            first += width(spec);
        }
        let tables = self.truth.tables.len();
        for column in 0..self.truth.columns {
            let value = self.truth.value(handle, column);
            if self.device.narrow(held.slot)[tables + column] != value {
                cells.insert(tables + column, value);
            }
        }
        if cells.len() > self.device.cells_per_row {
            Needs::Whole
        } else if cells.is_empty() {
            Needs::Nothing
        } else {
            Needs::Cells(cells)
        }
    }

    /// Cells of a table that a whole row must write: its used ones, and what may stand behind them.
    pub fn whole_cells(&self, handle: i64, table: usize, slot: usize) -> usize {
        let spec = &self.truth.tables[table];
        let extent = if self.unknown.contains(&slot) {
            width(spec)
        } else {
            self.device.extent(table, slot)
        };
        extent.max(used(spec, self.truth.stream(handle, table).length))
    }
}
