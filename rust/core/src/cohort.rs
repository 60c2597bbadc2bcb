//! The rows of the last flushed batch. While the same batch steps again, their lengths advance together: one tick
//! counts for all of them, and it is written out only when the batch breaks up.

use crate::calendar::Calendar;
use crate::ids::{PlanSeq, Slot};
use crate::layout::RowLayout;
use crate::stage::Batch;

#[derive(Debug)]
pub(crate) struct Cohort {
    /// `None` when there is no cohort.
    pub batch: Option<Batch>,
    pub slots: Vec<Slot>,
    /// Committed steps since this batch was adopted.
    pub ticks: u64,
    /// The last flushed step of this batch.
    pub last_seq: PlanSeq,
    /// Unique number of this cohort: requests and leases name it.
    pub version: u64,
    /// One calendar a table; empty for a read-only one. Built when a batch steps a second time.
    pub calendars: Vec<Calendar>,
    pub calendars_built: bool,
}

impl Cohort {
    pub fn new(layout: &RowLayout, rows: usize) -> Self {
        Self {
            batch: None,
            slots: Vec::with_capacity(rows),
            ticks: 0,
            last_seq: PlanSeq::NONE,
            version: 0,
            calendars: layout
                .tables()
                .iter()
                .map(|_| Calendar::with_capacity(rows))
                .collect(),
            calendars_built: false,
        }
    }

    pub fn is(&self, batch: &Batch) -> bool {
        self.batch.as_ref().is_some_and(|own| own.is_same(batch))
    }

    /// Counts one committed step of every row.
    pub fn tick(&mut self) {
        self.ticks += 1;
        if self.calendars_built {
            for calendar in &mut self.calendars {
                calendar.advance(self.ticks);
            }
        }
    }
}
