//! Writes a stage into caller memory as joined runs.

use crate::ids::Slot;
use crate::layout::RowLayout;
use crate::planner::Planner;
use crate::run::{RunWriter, Target};
use crate::stage::{Cell, CellAt, StageBuffer};

impl Planner {
    /// Writes the whole rows, then the lease's inputs, and leaves the copies in `self.copies`.
    pub(crate) fn emit(&mut self, stage: &StageBuffer, slots: Option<&[Slot]>, out: &mut [u8]) {
        let mut runs = std::mem::take(&mut self.copies);
        let mut writer = RunWriter::new(out, &mut runs);
        self.emit_narrow(stage, &mut writer);
        for table in 0..self.layout.tables().len() {
            self.emit_table(stage, table, &mut writer);
        }
        writer.align();
        self.emit_inputs(stage, slots, &mut writer);
        self.copies = runs;
    }

    fn emit_narrow(&self, stage: &StageBuffer, writer: &mut RunWriter<'_>) {
        let bytes = 8 * self.layout.narrow_cells();
        let lengths = self.layout.tables().len();
        for row in &stage.whole {
            let out = writer.run(Target::Narrow, row.slot.get() * bytes, bytes);
            for (cell, out) in out.chunks_exact_mut(8).enumerate() {
                let value = match cell.checked_sub(lengths) {
                    None => self.length_of(row.handle, cell),
                    Some(column) => self.requests.value(row.handle, column),
                };
                out.copy_from_slice(&value.to_ne_bytes());
            }
        }
    }

    /// Writes each whole row's used cells, and the sink page over what the slot's previous owner used behind them.
    fn emit_table(&self, stage: &StageBuffer, table: usize, writer: &mut RunWriter<'_>) {
        let spec = &self.layout.tables()[table];
        writer.align();
        for row in &stage.whole {
            let used = spec.used_pages(self.length_of(row.handle, table)) as usize;
            let cells = used.max(self.mirror.extent(row.slot, table));
            if cells == 0 {
                continue;
            }
            let out = writer.run(
                Target::Table(table),
                row.slot.get() * spec.width * 4,
                cells * 4,
            );
            let (pages, tail) = out.split_at_mut(used * 4);
            pages.copy_from_slice(bytemuck::cast_slice(
                &self.requests.stream(row.handle, table).pages[..used],
            ));
            tail.fill(0);
        }
    }

    /// Writes the slot vector if the lease's buffer holds another, and the cells row from its first to its last
    /// row with a cell. Both are one run when both are sent.
    fn emit_inputs(&self, stage: &StageBuffer, slots: Option<&[Slot]>, writer: &mut RunWriter<'_>) {
        let lease = &self.leases[stage.lease];
        let target = Target::Lease(stage.lease);
        let row_bytes = 16 * self.layout.cells_per_row();
        let cells = match (stage.cells.first(), stage.cells.last()) {
            _ if lease.cells_unknown() => Some((0, lease.bucket)),
            (Some(_), Some(last)) if slots.is_some() => Some((0, last.batch_idx as usize + 1)),
            (Some(first), Some(last)) => {
                Some((first.batch_idx as usize, last.batch_idx as usize + 1))
            }
            _ => None,
        };
        if let Some(slots) = slots {
            let out = writer.run(target, 0, 8 * lease.bucket);
            let (rows, padding) = out.split_at_mut(8 * slots.len());
            for (out, slot) in rows.chunks_exact_mut(8).zip(slots) {
                out.copy_from_slice(&(slot.get() as i64).to_ne_bytes());
            }
            padding.fill(0);
        }
        if let Some((first, end)) = cells {
            let out = writer.run(
                target,
                8 * lease.bucket + first * row_bytes,
                (end - first) * row_bytes,
            );
            out.fill(0);
            write_cells(&self.layout, &stage.cells, first, out);
        }
    }
}

/// Writes (column + 1, value) pairs; the cells stand in order of their batch row.
fn write_cells(layout: &RowLayout, cells: &[Cell], first: usize, out: &mut [u8]) {
    let row_bytes = 16 * layout.cells_per_row();
    let mut next = 0;
    let mut row = u32::MAX;
    for cell in cells {
        if cell.batch_idx != row {
            row = cell.batch_idx;
            next = (row as usize - first) * row_bytes;
        }
        let column = match cell.at {
            CellAt::Length(table) => table,
            CellAt::Value(column) => layout.tables().len() + column,
            CellAt::Page(table, column) => layout.tables()[table].first_column + column,
        };
        out[next..next + 8].copy_from_slice(&(column as i64 + 1).to_ne_bytes());
        out[next + 8..next + 16].copy_from_slice(&cell.value.to_ne_bytes());
        next += 16;
    }
}
