//! Launches: a flush taken apart, copied, replayed, and every row that the replay reads compared.

use mstar_resident_core::{CopyRun, Op};

use super::device::Outputs;
use super::diff::Needs;
use super::flush::written;
use super::node::{Node, Staged};
use super::shapes::used;
use super::slots::Held;
use super::truth::Step;

impl Node {
    /// Flushes the unlaunched stage and replays it; every row that the replay reads is checked.
    pub fn launch(&mut self) -> Outputs {
        let (step, copies) = self.flush();
        for run in &copies {
            self.device.copy(run, &self.buffer, run.bytes);
        }
        let used_before: Vec<Vec<Vec<i64>>> = step
            .handles
            .iter()
            .map(|&handle| {
                (0..self.truth.tables.len())
                    .map(|table| self.truth.used_pages(handle, table).to_vec())
                    .collect()
            })
            .collect();
        let out = self.device.replay(step.lease);
        self.check_outputs(&step, &out, &used_before);
        self.check();
        out
    }

    /// Flushes the unlaunched stage; only the first `landed` copies, and half of the next, reach the device.
    pub fn launch_cut(&mut self, landed: usize) {
        let (step, copies) = self.flush();
        for (at, run) in copies.iter().enumerate().take(landed + 1) {
            let bytes = if at < landed {
                run.bytes
            } else {
                run.bytes / 16 * 8
            };
            self.device.copy(run, &self.buffer, bytes);
        }
        self.unknown.extend(&step.slots);
        self.leases_unknown.insert(step.lease);
    }

    fn flush(&mut self) -> (Step, Vec<CopyRun>) {
        let staged = self.staged.take().expect("a stage");
        let seq = staged.info.seq;
        let empty = self.planner.flush_is_empty(seq).unwrap();
        self.buffer.fill(0xA5); // a value that was not written shows
        let free = self.slots.free();
        let displaced = self.slots.displace(&staged.claims);
        let buffer = if empty {
            &mut [][..]
        } else {
            &mut self.buffer[..]
        };
        self.planner.flush(seq, buffer).unwrap();
        self.history.push(Op::Flush(seq));
        let copies = self.planner.copies().to_vec();
        assert_eq!(copies.is_empty(), empty, "a flush is empty if it says so");
        let slots: Vec<usize> = self
            .planner
            .in_flight_slots()
            .iter()
            .map(|slot| slot.get())
            .collect();
        assert_eq!(slots.len(), staged.handles.len());
        for claim in &staged.claims {
            let slot = slots[claim.batch_idx];
            match claim.victim {
                Some((victim, taken)) => assert_eq!(slot, taken, "the slot of {victim}"),
                None => assert!(free.contains(&slot), "slot {slot} was not free"),
            }
        }
        let got = written(&self.device, staged.lease, &copies, &self.buffer);
        self.check_written(staged.lease, &staged.handles, &slots, &got);
        self.count_cells(&staged.handles);
        self.adopt(&staged, &slots, &displaced);
        self.counts.copies += copies.len() as u64;
        self.counts.bytes += copies.iter().map(|run| run.bytes as u64).sum::<u64>();
        let step = Step {
            seq: seq.get(),
            lease: staged.lease,
            counts: vec![vec![true; self.truth.tables.len()]; slots.len()],
            handles: staged.handles,
            slots,
        };
        self.step = Some(step.clone());
        (step, copies)
    }

    fn count_cells(&mut self, step: &[i64]) {
        let (tables, narrow) = (self.truth.tables.len(), self.device.narrow_cells);
        for &handle in step {
            if let Needs::Cells(cells) = self.needs(handle) {
                let pages = cells.keys().filter(|&&column| column >= narrow).count();
                let lengths = cells.keys().filter(|&&column| column < tables).count();
                self.counts.crossings += pages as u64;
                self.counts.refreshed_lengths += lengths as u64;
                self.counts.moved_rows += u64::from(pages < cells.len());
            }
        }
    }

    fn adopt(&mut self, staged: &Staged, slots: &[usize], displaced: &[i64]) {
        let seq = staged.info.seq.get();
        for victim in displaced {
            self.stale.remove(victim);
        }
        self.counts.displaced += displaced.len() as u64;
        self.counts.whole_rows += staged.info.whole_rows as u64;
        for claim in &staged.claims {
            let held = Held {
                slot: slots[claim.batch_idx],
                last_read: seq,
                taken: (seq, claim.batch_idx),
            };
            self.slots.held.insert(claim.handle, held);
        }
        self.slots.read(&staged.handles, seq);
        for (&handle, slot) in staged.handles.iter().zip(slots) {
            assert_eq!(self.slots.held[&handle].slot, *slot, "the slot of {handle}");
            self.stale.remove(&handle);
            self.unknown.remove(slot);
            self.last_launched.insert(handle, seq);
        }
        self.leases_unknown.remove(&staged.lease);
    }

    /// What a replay read and left behind.
    fn check_outputs(&self, step: &Step, out: &Outputs, used_before: &[Vec<Vec<i64>>]) {
        for row in 0..self.device.leases[step.lease].bucket {
            let Some(&handle) = step.handles.get(row) else {
                assert_eq!(out.slots[row], 0, "padding row {row} reads the trash row");
                assert!(out.lengths.iter().all(|lengths| lengths[row] == 1));
                assert!(out.write_loc.iter().all(|write_loc| write_loc[row] == 0));
                assert!(out.columns.iter().all(|values| values[row] == 0));
                continue;
            };
            let slot = step.slots[row];
            assert_eq!(out.slots[row], slot, "slot of batch row {row}");
            for (table, spec) in self.truth.tables.iter().enumerate() {
                let (page_size, span) = (spec.page_size as i64, spec.span as i64);
                let stored = self.truth.stream(handle, table).length;
                assert_eq!(out.stored[table][row], stored, "stored length of {handle}");
                assert_eq!(
                    i64::from(out.lengths[table][row]),
                    stored + span,
                    "attended length of {handle}"
                );
                assert_eq!(
                    self.device.narrow(slot)[table],
                    stored + span,
                    "advanced length of {handle}"
                );
                let pages = &used_before[row][table];
                assert_eq!(pages.len(), used(spec, stored));
                if span == 1 {
                    let page = pages[(stored / page_size) as usize];
                    assert_eq!(
                        out.write_loc[table][row],
                        page * page_size + stored % page_size
                    );
                }
                let cells = self.device.table(table, slot);
                let (row_pages, tail) = cells.split_at(pages.len());
                assert!(
                    row_pages
                        .iter()
                        .map(|&page| i64::from(page))
                        .eq(pages.iter().copied()),
                    "cells of {handle}"
                );
                assert!(
                    tail.iter().all(|&page| page == 0),
                    "a stranger's page behind the row of {handle}"
                );
            }
            for column in 0..self.truth.columns {
                assert_eq!(
                    out.columns[column][row],
                    self.truth.value(handle, column),
                    "column of {handle}"
                );
            }
        }
        let lease = &self.device.leases[step.lease];
        assert!(
            lease.inputs[lease.bucket..].iter().all(|&cell| cell == 0),
            "the replay clears its cells"
        );
        assert!(
            self.device.narrow(0).iter().all(|&cell| cell == 0),
            "the trash row is zero"
        );
        assert!((0..self.truth.tables.len()).all(|table| self.device.extent(table, 0) == 0));
    }
}
