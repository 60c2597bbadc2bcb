//! What each lease's input buffer holds on the device, so that only a difference is sent.

use crate::ids::Slot;

/// The slot vector and cells row of one (walk, bucket, `buffer_idx`).
#[derive(Debug)]
pub(crate) struct Lease {
    pub bucket: usize,
    slots: Vec<Slot>,
    /// The cohort whose slots the buffer holds; 0 when only the slots themselves can tell.
    cohort: u64,
    /// The buffer's slots are not known: a copy into it may have failed.
    slots_unknown: bool,
    /// Cells were sent that no replay is known to have cleared.
    cells_unknown: bool,
}

impl Lease {
    /// A lease whose buffer is all zero.
    pub fn new(bucket: usize) -> Self {
        Self {
            bucket,
            slots: vec![Slot::TRASH; bucket],
            cohort: 0,
            slots_unknown: false,
            cells_unknown: false,
        }
    }

    /// Whether the buffer already holds `slots`, padded with the trash row.
    pub fn holds(&self, cohort: u64, slots: &[Slot]) -> bool {
        if self.slots_unknown {
            return false;
        }
        if cohort != 0 && self.cohort == cohort {
            return true;
        }
        let (rows, padding) = self.slots.split_at(slots.len());
        rows == slots && padding.iter().all(|&slot| slot == Slot::TRASH)
    }

    pub fn cells_unknown(&self) -> bool {
        self.cells_unknown
    }

    /// Records a flush: the buffer holds these slots, and cells if any were sent.
    pub fn flushed(&mut self, cohort: u64, slots: &[Slot], cells: bool) {
        if self.cohort != cohort || self.slots_unknown {
            self.slots[..slots.len()].copy_from_slice(slots);
            self.slots[slots.len()..].fill(Slot::TRASH);
            self.cohort = cohort;
            self.slots_unknown = false;
        }
        self.cells_unknown = cells;
    }

    /// Records a replay, which clears the cells it applied.
    pub fn replayed(&mut self) {
        self.cells_unknown = false;
    }

    /// Records that the buffer may hold anything.
    pub fn forget(&mut self) {
        self.slots_unknown = true;
        self.cells_unknown = true;
    }
}
