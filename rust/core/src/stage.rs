//! All that a plan decided for one step and has not issued.

use std::sync::Arc;

use crate::ids::{Handle, PlanSeq, Slot, TableIdx};

/// The requests of a step in order. Immutable: made once, reused while the batch stays the same.
#[derive(Clone, Debug)]
pub struct Batch {
    pub(crate) rows: Arc<[Handle]>,
}

impl Batch {
    /// The handles in batch order.
    #[must_use]
    pub fn handles(&self) -> &[Handle] {
        &self.rows
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.rows, &other.rows) || self.rows == other.rows
    }
}

/// A row to be written whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WholeRow {
    pub handle: Handle,
    pub batch_idx: u32,
    pub slot: Slot,
    /// It takes its slot with this step: a free one, or that of a request which is displaced.
    pub takes: bool,
}

/// Where a single cell goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CellAt {
    Length(TableIdx),
    Value(usize),
    Page(TableIdx, usize),
}

/// One cell that the prologue scatters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub batch_idx: u32,
    pub at: CellAt,
    pub value: i64,
}

/// The one unlaunched stage. Its buffers are reused from plan to plan.
#[derive(Debug, Default)]
pub(crate) struct StageBuffer {
    /// [`PlanSeq::NONE`] when no stage is unlaunched.
    pub seq: PlanSeq,
    pub lease: usize,
    pub batch: Option<Batch>,
    /// The batch is the cohort's, so its slots are too.
    pub same_cohort: bool,
    pub slots: Vec<Slot>,
    pub whole: Vec<WholeRow>,
    pub cells: Vec<Cell>,
    pub moved_rows: u64,
}

impl StageBuffer {
    pub fn with_capacity(rows: usize, cells_per_row: usize) -> Self {
        Self {
            slots: Vec::with_capacity(rows),
            whole: Vec::with_capacity(rows),
            cells: Vec::with_capacity(rows * cells_per_row),
            ..Self::default()
        }
    }

    pub fn is_active(&self) -> bool {
        self.seq != PlanSeq::NONE
    }

    pub fn clear(&mut self) {
        self.seq = PlanSeq::NONE;
        self.batch = None;
        self.same_cohort = false;
        self.slots.clear();
        self.whole.clear();
        self.cells.clear();
        self.moved_rows = 0;
    }
}

/// What a caller learns of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageInfo {
    /// The plan's number: names the stage, then the step.
    pub seq: PlanSeq,
    /// Rows to be written whole.
    pub whole_rows: usize,
    /// Single cells to be sent.
    pub cells: usize,
}
