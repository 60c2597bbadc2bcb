//! Stage, promote, drop: decide what a step sends. Nothing here touches the device.

use crate::diff::RowDiff;
use crate::error::{Error, Result};
use crate::ids::PlanSeq;
use crate::planner::Planner;
use crate::stage::{Batch, Cell, CellAt, StageBuffer, StageInfo, WholeRow};

impl Planner {
    /// Plans one step of `batch` on `lease` and makes it the one unlaunched stage; an older one is dropped.
    ///
    /// A batch that stepped last costs one comparison of its handles, plus its crossings of this step. Any other
    /// batch costs O(rows).
    ///
    /// # Errors
    /// [`Error::NotReady`] while a launched step has not committed; [`Error::BatchSize`], [`Error::UnknownHandle`],
    /// [`Error::RowOverflow`], [`Error::MissingPage`], [`Error::UnsetColumn`] or [`Error::ReleasedTokens`] for rows
    /// that cannot step. No stage is left, and the next plan sends what this one would have sent.
    pub fn stage(&mut self, batch: &Batch, lease: usize) -> Result<StageInfo> {
        if let Some(step) = &self.in_flight {
            return Err(Error::NotReady {
                seq: step.seq.get(),
            });
        }
        let bucket = self.lease_at(lease)?.bucket;
        if batch.rows.len() > bucket {
            return Err(Error::BatchSize {
                rows: batch.rows.len(),
                limit: bucket,
            });
        }
        self.drop_stage();
        let same_cohort = self.cohort.is(batch);
        if !same_cohort {
            self.break_cohort();
        }
        let mut stage = std::mem::take(&mut self.stage);
        self.last_seq = self.last_seq.next();
        stage.seq = self.last_seq;
        stage.lease = lease;
        stage.same_cohort = same_cohort;
        let planned = if same_cohort {
            self.plan_crossings(&mut stage)
        } else {
            self.plan_rows(batch, &mut stage)
        };
        if planned.is_ok() {
            stage.batch = Some(batch.clone());
            self.stats.staged += 1;
        } else {
            stage.clear();
        }
        self.stage = stage;
        planned.map(|()| self.stage_info())
    }

    fn stage_info(&self) -> StageInfo {
        StageInfo {
            seq: self.stage.seq,
            whole_rows: self.stage.whole.len(),
            cells: self.stage.cells.len(),
        }
    }

    /// Plans the cohort's next step: only the rows that cross a page differ.
    fn plan_crossings(&mut self, stage: &mut StageBuffer) -> Result<()> {
        self.build_calendars();
        let cohort = &self.cohort;
        let Some(batch) = &cohort.batch else {
            return Ok(());
        };
        for (table, calendar) in cohort.calendars.iter().enumerate() {
            for batch_idx in calendar.due(cohort.ticks) {
                let handle = batch.rows[batch_idx as usize];
                let used = self.used_pages(handle, table)?;
                let page = self.requests.stream(handle, table).pages[used - 1];
                let at = CellAt::Page(table, used - 1);
                stage.cells.push(Cell {
                    batch_idx,
                    at,
                    value: i64::from(page),
                });
            }
        }
        // As a batch that did not step last is planned: by row, then by table.
        stage
            .cells
            .sort_unstable_by_key(|cell| (cell.batch_idx, cell.at));
        Ok(())
    }

    pub(crate) fn build_calendars(&mut self) {
        let Some(batch) = self
            .cohort
            .batch
            .clone()
            .filter(|_| !self.cohort.calendars_built)
        else {
            return;
        };
        for (table, spec) in self
            .layout
            .tables()
            .iter()
            .enumerate()
            .filter(|(_, spec)| spec.span == 1)
        {
            let mut calendar = std::mem::take(&mut self.cohort.calendars[table]);
            let lengths = batch
                .rows
                .iter()
                .map(|&handle| self.length_of(handle, table));
            calendar.build(spec.page_size, self.cohort.ticks, lengths);
            self.cohort.calendars[table] = calendar;
        }
        self.cohort.calendars_built = true;
    }

    /// Plans a batch that did not step last: every row is compared with its streams.
    fn plan_rows(&mut self, batch: &Batch, stage: &mut StageBuffer) -> Result<()> {
        for (batch_idx, &handle) in (0_u32..).zip(batch.rows.iter()) {
            if !self.requests.is_live(handle) {
                return Err(Error::UnknownHandle {
                    handle: handle.pack(),
                });
            }
            self.check_row(handle)?;
            let request = self.requests.get_mut(handle);
            request.stage = stage.seq;
            let slot = request.slot;
            stage.slots.push(slot);
            if request.held_slot().is_none() {
                stage.whole.push(WholeRow {
                    handle,
                    batch_idx,
                    slot,
                    takes: true,
                });
                continue;
            }
            match self.diff_row(batch_idx, handle, slot, &mut stage.cells) {
                RowDiff::Nothing | RowDiff::Crosses => {}
                RowDiff::Moved => stage.moved_rows += 1,
                RowDiff::Whole => stage.whole.push(WholeRow {
                    handle,
                    batch_idx,
                    slot,
                    takes: false,
                }),
            }
        }
        self.claim_slots(stage)?;
        stage.whole.sort_unstable_by_key(|row| row.slot);
        Ok(())
    }

    /// Finds a slot for every row without one: free slots first, then those of the least recently read rows.
    fn claim_slots(&mut self, stage: &mut StageBuffer) -> Result<()> {
        let wanted = stage.whole.iter().filter(|row| row.takes).count();
        if wanted == 0 {
            return Ok(());
        }
        self.claims.clear();
        self.ledger.peek_free(wanted, &mut self.claims);
        let free = self.claims.len();
        if free < wanted {
            let (requests, ledger, seq) = (&self.requests, &self.ledger, stage.seq);
            let in_step = |slot| {
                ledger
                    .holder(slot)
                    .is_some_and(|holder| requests.get(holder).stage == seq)
            };
            ledger.peek_victims(wanted - free, in_step, &mut self.victims, &mut self.claims)?;
        }
        let takers = stage.whole.iter_mut().filter(|row| row.takes);
        for (row, &slot) in takers.zip(&self.claims) {
            row.slot = slot;
            stage.slots[row.batch_idx as usize] = slot;
        }
        Ok(())
    }

    /// Whether the stage `seq` still stands for the step that the engine is about to run. It does if it was not
    /// dropped and the rows, their order and the lease are the same: a mark on any of its rows drops it.
    pub fn promote(&mut self, seq: PlanSeq, batch: &Batch, lease: usize) -> bool {
        let stands = self.stage.is_active()
            && self.stage.seq == seq
            && self.stage.lease == lease
            && self
                .stage
                .batch
                .as_ref()
                .is_some_and(|own| own.is_same(batch));
        self.stats.promoted += u64::from(stands);
        stands
    }

    /// Drops the stage `seq` if it is the unlaunched one. It leaves no trace.
    pub fn drop_staged(&mut self, seq: PlanSeq) -> bool {
        let stands = self.stage.is_active() && self.stage.seq == seq;
        if stands {
            self.drop_stage();
        }
        stands
    }

    pub(crate) fn drop_stage(&mut self) {
        if self.stage.is_active() {
            self.stage.clear();
            self.stats.dropped += 1;
        }
    }
}
