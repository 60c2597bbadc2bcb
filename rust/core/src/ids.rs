//! Index newtypes. No plain `usize` crosses a module border with a meaning of its own.

use serde::{Deserialize, Serialize};

/// A request's identity inside the planner: a recycled index with another generation is another request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Handle {
    index: u32,
    generation: u32,
}

impl Handle {
    /// Highest generation: packed handles stay positive in an `i64`.
    pub const MAX_GENERATION: u32 = i32::MAX as u32;

    pub(crate) fn new(index: u32, generation: u32) -> Self {
        debug_assert!(generation <= Self::MAX_GENERATION);
        Self { index, generation }
    }

    /// Packs the handle as `generation << 32 | index`.
    #[must_use]
    pub fn pack(self) -> i64 {
        (i64::from(self.generation) << 32) | i64::from(self.index)
    }

    /// Reads a packed handle back; `None` for a number that no handle packs to.
    #[must_use]
    pub fn unpack(packed: i64) -> Option<Self> {
        let packed = u64::try_from(packed).ok()?;
        let index = (packed & u64::from(u32::MAX)) as u32;
        let generation = (packed >> 32) as u32;
        Some(Self { index, generation })
    }

    pub(crate) fn index(self) -> usize {
        self.index as usize
    }

    pub(crate) fn generation(self) -> u32 {
        self.generation
    }
}

/// Index of a store row. Row 0 is the trash row and is never held.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot(u32);

impl Slot {
    /// The trash row: padding batch indices read it.
    pub const TRASH: Self = Self(0);

    pub(crate) fn new(number: usize) -> Self {
        Self(u32::try_from(number).expect("the layout bounds the slots below 2^32"))
    }

    /// The row number in the store.
    #[must_use]
    pub fn get(self) -> usize {
        self.0 as usize
    }
}

/// Monotonic number of a plan of one planner; 0 is "no plan".
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct PlanSeq(u64);

impl PlanSeq {
    /// No plan.
    pub const NONE: Self = Self(0);

    /// The number as an integer.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }

    /// A plan number from an integer, for callers that keep it outside.
    #[must_use]
    pub fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1) // 2^64 plans outlive the process
    }
}

/// Index of a KV table in the layout.
pub type TableIdx = usize;
