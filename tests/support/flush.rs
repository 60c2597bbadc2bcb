//! The copies of a flush, taken apart cell by cell.

use std::collections::BTreeMap;

use mstar_resident_core::{CopyRun, Target};

use super::device::Device;
use super::diff::Needs;
use super::node::Node;

/// Every cell that a flush writes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Written {
    pub narrow: BTreeMap<(usize, usize), i64>,
    pub pages: BTreeMap<(usize, usize, usize), i32>,
    pub inputs: BTreeMap<usize, i64>,
}

/// Takes copies apart. They must be in bounds, disjoint and maximal, at both ends.
pub fn written(device: &Device, lease: usize, copies: &[CopyRun], buffer: &[u8]) -> Written {
    let mut out = Written::default();
    let mut sources: Vec<(usize, usize)> = Vec::new();
    for (at, run) in copies.iter().enumerate() {
        assert!(run.bytes > 0, "{run:?} is empty");
        assert!(
            run.to_bytes + run.bytes <= device.target_bytes(run.target),
            "{run:?} is out of bounds"
        );
        for other in copies
            .iter()
            .skip(at + 1)
            .filter(|other| other.target == run.target)
        {
            let touches = run.to_bytes <= other.to_bytes + other.bytes
                && other.to_bytes <= run.to_bytes + run.bytes;
            assert!(
                !touches,
                "{run:?} and {other:?} overlap or could be one run"
            );
        }
        sources.push((run.from_bytes, run.from_bytes + run.bytes));
        let bytes = &buffer[run.from_bytes..run.from_bytes + run.bytes];
        let width = match run.target {
            Target::Table(_) => 4,
            Target::Narrow | Target::Lease(_) => 8,
        };
        assert!(
            run.to_bytes % width == 0 && run.from_bytes % width == 0,
            "{run:?} is not aligned"
        );
        let first = run.to_bytes / width;
        for (cell, bytes) in (first..).zip(bytes.chunks_exact(width)) {
            match run.target {
                Target::Narrow => {
                    let at = (cell / device.narrow_cells, cell % device.narrow_cells);
                    out.narrow
                        .insert(at, i64::from_ne_bytes(bytes.try_into().unwrap()));
                }
                Target::Table(table) => {
                    let width = device.table(table, 0).len();
                    let at = (table, cell / width, cell % width);
                    out.pages
                        .insert(at, i32::from_ne_bytes(bytes.try_into().unwrap()));
                }
                Target::Lease(written) => {
                    assert_eq!(written, lease, "another lease's buffer was written");
                    out.inputs
                        .insert(cell, i64::from_ne_bytes(bytes.try_into().unwrap()));
                }
            }
        }
    }
    sources.sort_unstable();
    for pair in sources.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "two runs share their values");
    }
    out
}

impl Node {
    /// Checks that a flush writes exactly what the step's rows need, and nothing else.
    pub fn check_written(&self, lease: usize, step: &[i64], slots: &[usize], got: &Written) {
        let mut expected = Written::default();
        let mut cells: BTreeMap<usize, BTreeMap<usize, i64>> = BTreeMap::new();
        for (row, (&handle, &slot)) in step.iter().zip(slots).enumerate() {
            match self.needs(handle) {
                Needs::Nothing => {}
                Needs::Cells(needed) => {
                    cells.insert(row, needed);
                }
                Needs::Whole => self.expect_whole(handle, slot, &mut expected),
            }
        }
        assert_eq!(got.narrow, expected.narrow, "narrow cells of whole rows");
        assert_eq!(got.pages, expected.pages, "table cells of whole rows");
        self.check_inputs(lease, slots, &cells, &got.inputs);
    }

    fn expect_whole(&self, handle: i64, slot: usize, expected: &mut Written) {
        let tables = self.truth.tables.len();
        for table in 0..tables {
            let length = self.truth.stream(handle, table).length;
            expected.narrow.insert((slot, table), length);
            let pages = self.truth.used_pages(handle, table);
            for column in 0..self.whole_cells(handle, table, slot) {
                let page = pages.get(column).map_or(0, |&page| page as i32);
                expected.pages.insert((table, slot, column), page);
            }
        }
        for column in 0..self.truth.columns {
            let value = self.truth.value(handle, column);
            expected.narrow.insert((slot, tables + column), value);
        }
    }

    fn check_inputs(
        &self,
        lease: usize,
        slots: &[usize],
        cells: &BTreeMap<usize, BTreeMap<usize, i64>>,
        got: &BTreeMap<usize, i64>,
    ) {
        let unknown = self.leases_unknown.contains(&lease);
        let buffer = &self.device.leases[lease];
        let mut wanted: Vec<i64> = slots.iter().map(|&slot| slot as i64).collect();
        wanted.resize(buffer.bucket, 0);
        let sends_slots = unknown || buffer.inputs[..buffer.bucket] != wanted;
        let first_row = if sends_slots {
            Some(0)
        } else {
            cells.keys().next().copied()
        };
        let rows = if unknown {
            0..buffer.bucket
        } else {
            match (first_row, cells.keys().last()) {
                (Some(first), Some(&last)) => first..last + 1,
                _ => 0..0,
            }
        };
        let row_cells = 2 * self.device.cells_per_row;
        let mut expected: Vec<usize> = Vec::new();
        if sends_slots {
            expected.extend(0..buffer.bucket);
        }
        expected
            .extend(buffer.bucket + rows.start * row_cells..buffer.bucket + rows.end * row_cells);
        let sent: Vec<usize> = got.keys().copied().collect();
        assert_eq!(sent, expected, "cells of the lease's buffer that were sent");
        if sends_slots {
            let sent: Vec<i64> = (0..buffer.bucket).map(|row| got[&row]).collect();
            assert_eq!(sent, wanted, "slot vector");
        }
        for row in rows {
            let first = buffer.bucket + row * row_cells;
            let mut sent = BTreeMap::new();
            for cell in (first..first + row_cells).step_by(2) {
                let (column, value) = (got[&cell], got[&(cell + 1)]);
                if column == 0 {
                    assert_eq!(value, 0, "a cell without a column");
                } else {
                    let twice = sent.insert(column as usize - 1, value);
                    assert_eq!(twice, None, "column {column} is sent twice");
                }
            }
            assert_eq!(
                sent,
                cells.get(&row).cloned().unwrap_or_default(),
                "cells of batch row {row}"
            );
        }
    }
}
