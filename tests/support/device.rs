//! A model device: it applies copies, and replays a step as the captured prologue does.

use mstar_resident_core::{CopyRun, TableSpec, Target};

use super::shapes::{Shape, width};

/// The store, the leases' input buffers, and what a replay reads from them.
#[derive(Debug)]
pub struct Device {
    pub tables: Vec<TableSpec>,
    pub columns: usize,
    pub narrow_cells: usize,
    pub cells_per_row: usize,
    narrow: Vec<i64>,
    pages: Vec<Vec<i32>>,
    pub leases: Vec<Lease>,
}

/// An input buffer: the slot vector, then (column + 1, value) pairs.
#[derive(Debug)]
pub struct Lease {
    pub bucket: usize,
    pub inputs: Vec<i64>,
}

/// What one replay gathered.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outputs {
    pub slots: Vec<usize>,
    /// Per table, per batch row.
    pub stored: Vec<Vec<i64>>,
    pub lengths: Vec<Vec<i32>>,
    pub write_loc: Vec<Vec<i64>>,
    /// Per column, per batch row.
    pub columns: Vec<Vec<i64>>,
}

impl Device {
    pub fn new(shape: &Shape) -> Self {
        let rows = 2 * shape.max_batch + 1;
        let narrow_cells = shape.tables.len() + shape.columns;
        let mut cells_per_row = 2;
        while cells_per_row < 2 * shape.tables.len() {
            cells_per_row *= 2;
        }
        Self {
            tables: shape.tables.clone(),
            columns: shape.columns,
            narrow_cells,
            cells_per_row,
            narrow: vec![0; rows * narrow_cells],
            pages: shape
                .tables
                .iter()
                .map(|spec| vec![0; rows * width(spec)])
                .collect(),
            leases: Vec::new(),
        }
    }

    pub fn add_lease(&mut self, bucket: usize) {
        let inputs = vec![0; bucket + bucket * 2 * self.cells_per_row];
        self.leases.push(Lease { bucket, inputs });
    }

    /// Bytes of a target.
    pub fn target_bytes(&self, target: Target) -> usize {
        match target {
            Target::Narrow => 8 * self.narrow.len(),
            Target::Table(table) => 4 * self.pages[table].len(),
            Target::Lease(lease) => 8 * self.leases[lease].inputs.len(),
        }
    }

    /// Copies the first `bytes` of a run.
    pub fn copy(&mut self, run: &CopyRun, from: &[u8], bytes: usize) {
        let target: &mut [u8] = match run.target {
            Target::Narrow => bytemuck::cast_slice_mut(&mut self.narrow),
            Target::Table(table) => bytemuck::cast_slice_mut(&mut self.pages[table]),
            Target::Lease(lease) => bytemuck::cast_slice_mut(&mut self.leases[lease].inputs),
        };
        target[run.to_bytes..run.to_bytes + bytes]
            .copy_from_slice(&from[run.from_bytes..run.from_bytes + bytes]);
    }

    pub fn narrow(&self, slot: usize) -> &[i64] {
        &self.narrow[slot * self.narrow_cells..(slot + 1) * self.narrow_cells]
    }

    pub fn table(&self, table: usize, slot: usize) -> &[i32] {
        let width = width(&self.tables[table]);
        &self.pages[table][slot * width..(slot + 1) * width]
    }

    /// Cells of a row's table up to the last that is not the sink page.
    pub fn extent(&self, table: usize, slot: usize) -> usize {
        let cells = self.table(table, slot);
        cells
            .iter()
            .rposition(|&page| page != 0)
            .map_or(0, |last| last + 1)
    }

    fn scatter(&mut self, slot: usize, column: usize, value: i64) {
        if column < self.narrow_cells {
            self.narrow[slot * self.narrow_cells + column] = value;
            return;
        }
        let mut first = self.narrow_cells;
        for (table, spec) in self.tables.iter().enumerate() {
            let width = width(spec);
            if column < first + width {
                self.pages[table][slot * width + column - first] = i32::try_from(value).unwrap();
                return;
            }
            first += width;
        }
        panic!("column {column} is behind the row");
    }

    /// Scatters cells and clears them, gathers, advances.
    pub fn replay(&mut self, lease: usize) -> Outputs {
        let bucket = self.leases[lease].bucket;
        let tables = self.tables.len();
        let mut out = Outputs {
            slots: Vec::new(),
            stored: vec![vec![0; bucket]; tables],
            lengths: vec![vec![1; bucket]; tables],
            write_loc: vec![vec![0; bucket]; tables],
            columns: vec![vec![0; bucket]; self.columns],
        };
        for row in 0..bucket {
            let slot = usize::try_from(self.leases[lease].inputs[row]).unwrap();
            out.slots.push(slot);
            let first = bucket + row * 2 * self.cells_per_row;
            for cell in (first..first + 2 * self.cells_per_row).step_by(2) {
                let inputs = &mut self.leases[lease].inputs;
                let (column, value) = (inputs[cell], inputs[cell + 1]);
                (inputs[cell], inputs[cell + 1]) = (0, 0);
                if slot != 0 && column != 0 {
                    self.scatter(slot, usize::try_from(column - 1).unwrap(), value);
                }
            }
            if slot == 0 {
                continue;
            }
            for table in 0..tables {
                let (page_size, span) = (
                    self.tables[table].page_size as i64,
                    self.tables[table].span as i64,
                );
                let stored = self.narrow(slot)[table];
                out.stored[table][row] = stored;
                out.lengths[table][row] = i32::try_from(stored + span).unwrap();
                let column = (stored / page_size) as usize;
                let page = self.table(table, slot).get(column).copied().unwrap_or(0);
                out.write_loc[table][row] = i64::from(page) * page_size + stored % page_size;
                self.narrow[slot * self.narrow_cells + table] = stored + span;
            }
            for column in 0..self.columns {
                out.columns[column][row] = self.narrow(slot)[tables + column];
            }
        }
        out
    }
}
