//! What one row needs before a step reads it: nothing, a few cells, or the whole row.

use crate::error::{Error, Result};
use crate::ids::{Handle, Slot, TableIdx};
use crate::planner::Planner;
use crate::stage::{Cell, CellAt};

/// What a held row needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowDiff {
    Nothing,
    /// Its next page, and no more.
    Crosses,
    /// Its lengths, columns and new pages.
    Moved,
    Whole,
}

impl Planner {
    /// Refuses a row that no table can describe: it holds for every row of a step, new or held.
    pub(crate) fn check_row(&self, handle: Handle) -> Result<()> {
        for table in 0..self.layout.tables().len() {
            self.used_pages(handle, table)?;
        }
        let unset = !self.requests.get(handle).columns_set;
        if let Some(column) =
            (0..self.layout.columns().len()).find(|column| unset & (1 << column) != 0)
        {
            let column = self.layout.columns()[column].clone();
            return Err(Error::UnsetColumn {
                handle: handle.pack(),
                column,
            });
        }
        Ok(())
    }

    /// Pages that the next step of a stream reads; an error if its table or the stream cannot name them.
    pub(crate) fn used_pages(&self, handle: Handle, table: TableIdx) -> Result<usize> {
        let spec = &self.layout.tables()[table];
        let stream = self.requests.stream(handle, table);
        if stream.released_tokens {
            return Err(self.released_tokens(handle, table));
        }
        let needed = spec.used_pages(self.length_of(handle, table));
        if needed > spec.width as u64 {
            let (table, width) = (self.table_name(table), spec.width as u64);
            return Err(Error::RowOverflow {
                handle: handle.pack(),
                table,
                needed,
                width,
            });
        }
        if needed > stream.pages.len() as u64 {
            let (table, held) = (self.table_name(table), stream.pages.len() as u64);
            return Err(Error::MissingPage {
                handle: handle.pack(),
                table,
                needed,
                held,
            });
        }
        Ok(needed as usize)
    }

    pub(crate) fn released_tokens(&self, handle: Handle, table: TableIdx) -> Error {
        Error::ReleasedTokens {
            handle: handle.pack(),
            table: self.table_name(table),
        }
    }

    /// Compares a held row with its streams. Cells are pushed only for [`RowDiff::Crosses`] and [`RowDiff::Moved`].
    pub(crate) fn diff_row(
        &self,
        batch_idx: u32,
        handle: Handle,
        slot: Slot,
        cells: &mut Vec<Cell>,
    ) -> RowDiff {
        if self.requests.get(handle).stale || self.mirror.is_unknown(slot) {
            return RowDiff::Whole;
        }
        let first = cells.len();
        let whole = !self.push_cells(
            batch_idx,
            handle,
            slot,
            first + self.layout.cells_per_row(),
            cells,
        );
        if whole {
            cells.truncate(first);
            RowDiff::Whole
        } else if cells.len() == first {
            RowDiff::Nothing
        } else if cells[first..]
            .iter()
            .all(|cell| matches!(cell.at, CellAt::Page(..)))
        {
            RowDiff::Crosses
        } else {
            RowDiff::Moved
        }
    }

    /// Pushes every cell that differs; false if they are more than a batch row of the cells row holds, or if
    /// cells behind the used ones would have to be cleared.
    fn push_cells(
        &self,
        batch_idx: u32,
        handle: Handle,
        slot: Slot,
        limit: usize,
        cells: &mut Vec<Cell>,
    ) -> bool {
        let mut push = |at: CellAt, value: i64| {
            let fits = cells.len() < limit;
            if fits {
                cells.push(Cell {
                    batch_idx,
                    at,
                    value,
                });
            }
            fits
        };
        for (table, spec) in self.layout.tables().iter().enumerate() {
            let length = self.length_of(handle, table);
            if self.mirror.length(slot, table) != length && !push(CellAt::Length(table), length) {
                return false;
            }
            let used = spec.used_pages(length) as usize;
            let extent = self.mirror.extent(slot, table);
            if used < extent {
                return false;
            }
            let pages = &self.requests.stream(handle, table).pages;
            for (column, &page) in pages.iter().enumerate().take(used).skip(extent) {
                if !push(CellAt::Page(table, column), i64::from(page)) {
                    return false;
                }
            }
        }
        for column in 0..self.layout.columns().len() {
            let value = self.requests.value(handle, column);
            if self.mirror.value(slot, column) != value && !push(CellAt::Value(column), value) {
                return false;
            }
        }
        true
    }
}
