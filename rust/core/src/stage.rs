//! All that a plan decided for one step and has not issued.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::ids::{Handle, PlanSeq, Slot, TableIdx};

/// The requests of a step in order. Immutable: made once, reused while the batch stays the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<i64>", into = "Vec<i64>")]
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

/// Names rows without asking whether their requests are live: a step of one that is not is refused.
impl TryFrom<Vec<i64>> for Batch {
    type Error = Error;

    fn try_from(packed: Vec<i64>) -> Result<Self> {
        if packed.is_empty() {
            return Err(Error::BatchSize {
                rows: 0,
                limit: usize::MAX,
            });
        }
        let mut rows = Vec::with_capacity(packed.len());
        for (second, &handle) in packed.iter().enumerate() {
            if let Some(first) = packed[..second].iter().position(|&row| row == handle) {
                return Err(Error::DuplicateHandle {
                    handle,
                    first,
                    second,
                });
            }
            rows.push(Handle::unpack(handle).ok_or(Error::UnknownHandle { handle })?);
        }
        Ok(Self { rows: rows.into() })
    }
}

impl From<Batch> for Vec<i64> {
    fn from(batch: Batch) -> Self {
        batch.rows.iter().map(|handle| handle.pack()).collect()
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageInfo {
    /// The plan's number: names the stage, then the step.
    pub seq: PlanSeq,
    /// Rows to be written whole.
    pub whole_rows: usize,
    /// Single cells to be sent.
    pub cells: usize,
}
