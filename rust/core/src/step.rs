//! Flush, commit, fail: one step from its first copy to its end.

use crate::error::{Error, Result};
use crate::ids::{Handle, PlanSeq, Slot};
use crate::planner::{InFlight, Planner};
use crate::run::CopyRun;
use crate::stage::{Batch, CellAt, StageBuffer};

impl Planner {
    /// Whether flushing the stage `seq` would copy nothing.
    ///
    /// # Errors
    /// [`Error::StageDropped`].
    pub fn flush_is_empty(&self, seq: PlanSeq) -> Result<bool> {
        self.check_stage(seq)?;
        let stage = &self.stage;
        let lease = &self.leases[stage.lease];
        Ok(stage.whole.is_empty()
            && stage.cells.is_empty()
            && !lease.cells_unknown()
            && self.lease_holds(stage))
    }

    /// Starts the step: writes what it sends into `out` and makes its claims and displacements final. The caller
    /// issues [`Planner::copies`] in order on the node's `cuda_stream`, replays, then commits; a raise in between
    /// is told by [`Planner::fail`].
    ///
    /// `out` is 8-byte aligned memory of [`Planner::largest_flush_bytes`] bytes; it may be empty if
    /// [`Planner::flush_is_empty`].
    ///
    /// # Errors
    /// [`Error::StageDropped`] or [`Error::FlushBuffer`]; nothing has changed then.
    pub fn flush(&mut self, seq: PlanSeq, out: &mut [u8]) -> Result<()> {
        if !self.flush_is_empty(seq)? {
            let expected = self.largest_flush_bytes();
            if out.len() < expected {
                return Err(Error::FlushBuffer {
                    expected,
                    got: out.len(),
                });
            }
        }
        let mut stage = std::mem::take(&mut self.stage);
        let slots_differ = !self.lease_holds(&stage);
        let cohort_slots = std::mem::take(&mut self.cohort.slots);
        let slots = if stage.same_cohort {
            &cohort_slots
        } else {
            &stage.slots
        };
        self.emit(&stage, slots_differ.then_some(slots), out);
        self.cohort.slots = cohort_slots;
        self.apply(&mut stage);
        let spare_slots = std::mem::take(&mut self.spare_slots);
        self.in_flight = Some(InFlight {
            seq,
            lease: stage.lease,
            batch: None,
            slots: spare_slots,
        });
        self.stats.copies += self.copies.len() as u64;
        self.stats.bytes += self.copies.iter().map(|run| run.bytes as u64).sum::<u64>();
        stage.clear();
        self.stage = stage;
        if self.strict {
            self.check_truth()
        } else {
            Ok(())
        }
    }

    /// The copies of the last flush, to be issued in order.
    #[must_use]
    pub fn copies(&self) -> &[CopyRun] {
        &self.copies
    }

    /// The slots of the rows of the step in flight, in batch order.
    #[must_use]
    pub fn in_flight_slots(&self) -> &[Slot] {
        match &self.in_flight {
            Some(step) if step.batch.is_some() => &step.slots,
            Some(_) => &self.cohort.slots,
            None => &[],
        }
    }

    /// Makes the mirror what the device will hold once the stage's copies have landed.
    fn apply(&mut self, stage: &mut StageBuffer) {
        for row in &stage.whole {
            if row.takes {
                if let Some(victim) = self.ledger.holder(row.slot) {
                    let victim = self.requests.get_mut(victim);
                    victim.slot = Slot::TRASH;
                    victim.stale = false;
                    self.stats.displaced += 1;
                }
                self.ledger
                    .take(row.slot, row.handle, stage.seq, row.batch_idx);
            }
            self.write_whole(row.handle, row.slot);
        }
        self.stats.whole_rows += stage.whole.len() as u64;
        self.stats.moved_rows += stage.moved_rows;
        if !stage.same_cohort {
            self.adopt(stage);
        }
        for cell in &stage.cells {
            let slot = self.cohort.slots[cell.batch_idx as usize];
            match cell.at {
                CellAt::Length(table) => {
                    self.mirror.set_length(slot, table, cell.value);
                    self.stats.refreshed_lengths += 1;
                }
                CellAt::Value(column) => self.mirror.set_value(slot, column, cell.value),
                CellAt::Page(table, column) => {
                    self.mirror.set_extent(slot, table, column + 1);
                    self.stats.crossings += 1;
                }
            }
        }
        self.cohort.last_seq = stage.seq;
        let lease = &mut self.leases[stage.lease];
        lease.flushed(
            self.cohort.version,
            &self.cohort.slots,
            !stage.cells.is_empty(),
        );
    }

    fn write_whole(&mut self, handle: Handle, slot: Slot) {
        for (table, spec) in self.layout.tables().iter().enumerate() {
            let length = self.requests.stream(handle, table).length;
            self.mirror.set_length(slot, table, length);
            self.mirror
                .set_extent(slot, table, spec.used_pages(length) as usize);
        }
        for column in 0..self.layout.columns().len() {
            self.mirror
                .set_value(slot, column, self.requests.value(handle, column));
        }
        self.mirror.set_unknown(slot, false);
        let request = self.requests.get_mut(handle);
        request.slot = slot;
        request.stale = false;
    }

    /// Makes the stage's batch the cohort: from here on its rows advance together.
    fn adopt(&mut self, stage: &mut StageBuffer) {
        let cohort = &mut self.cohort;
        cohort.version += 1;
        cohort.ticks = 0;
        cohort.calendars_built = false;
        cohort.batch.clone_from(&stage.batch);
        std::mem::swap(&mut cohort.slots, &mut stage.slots);
        for &handle in stage.batch.iter().flat_map(|batch| batch.rows.iter()) {
            self.requests.get_mut(handle).cohort = cohort.version;
        }
    }

    fn lease_holds(&self, stage: &StageBuffer) -> bool {
        let lease = &self.leases[stage.lease];
        if stage.same_cohort {
            lease.holds(self.cohort.version, &self.cohort.slots)
        } else {
            lease.holds(0, &stage.slots)
        }
    }

    fn check_stage(&self, seq: PlanSeq) -> Result<()> {
        if self.stage.is_active() && self.stage.seq == seq {
            return Ok(());
        }
        Err(Error::StageDropped { seq: seq.get() })
    }

    /// Ends the step in flight: streams and mirror advance by the span that the graph advanced, on the rows that the
    /// step recorded. Slots and pages released meanwhile become free.
    ///
    /// # Errors
    /// [`Error::NotInFlight`].
    pub fn commit(&mut self, seq: PlanSeq) -> Result<()> {
        let step = self.take_in_flight(seq)?;
        if let Some(batch) = &step.batch {
            self.advance_recorded(batch.handles(), &step.slots, seq);
        } else {
            self.cohort.tick();
        }
        self.leases[step.lease].replayed();
        self.stats.steps += 1;
        self.retire(step);
        Ok(())
    }

    /// Advances the rows of a step whose cohort broke up while it was in flight. A row that was released or
    /// offloaded since, or whose stream was replaced, advances on the device only.
    fn advance_recorded(&mut self, handles: &[Handle], slots: &[Slot], seq: PlanSeq) {
        for (&handle, &slot) in handles.iter().zip(slots) {
            let reads = self.requests.is_live(handle) && self.requests.get(handle).slot == slot;
            for (table, spec) in self.layout.tables().iter().enumerate() {
                self.mirror.advance(slot, table, spec.span);
                if reads && self.requests.stream(handle, table).reset_seq != seq {
                    self.requests.stream_mut(handle, table).length += spec.span;
                }
            }
        }
    }

    /// Ends the step in flight after a raise between its first copy and its commit. It retires as a commit would;
    /// no stream advances, its rows are stale, and its displacements stand. Returns the live handles of its rows:
    /// an in-place recurrent update cannot be undone by a rewrite, so the engine fails or prefills them again.
    ///
    /// # Errors
    /// [`Error::NotInFlight`].
    pub fn fail(&mut self, seq: PlanSeq) -> Result<Vec<Handle>> {
        if self.in_flight.as_ref().is_some_and(|step| step.seq == seq) {
            self.break_cohort();
        }
        let step = self.take_in_flight(seq)?;
        for &slot in &step.slots {
            self.mirror.set_unknown(slot, true);
            for (table, spec) in self.layout.tables().iter().enumerate() {
                // A tail that was to be cleared may still stand.
                self.mirror.set_extent(slot, table, spec.width);
            }
        }
        self.leases[step.lease].forget();
        self.stats.failed += 1;
        let rows = step.batch.iter().flat_map(Batch::handles);
        let live = rows
            .copied()
            .filter(|&handle| self.requests.is_live(handle))
            .collect();
        self.retire(step);
        Ok(live)
    }

    fn take_in_flight(&mut self, seq: PlanSeq) -> Result<InFlight> {
        match self.in_flight.take_if(|step| step.seq == seq) {
            Some(step) => Ok(step),
            None => {
                let in_flight = self.in_flight.as_ref().map_or(0, |step| step.seq.get());
                Err(Error::NotInFlight {
                    seq: seq.get(),
                    in_flight,
                })
            }
        }
    }

    fn retire(&mut self, step: InFlight) {
        self.committed_seq = step.seq;
        self.ledger.retire(step.seq);
        for pool in self.pools.iter_mut().flatten() {
            pool.retire(step.seq);
        }
        self.spare_slots = step.slots;
        self.spare_slots.clear();
    }
}
