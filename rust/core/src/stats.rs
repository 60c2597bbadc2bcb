//! Counters. The core counts, it does not log.

use serde::{Deserialize, Serialize};

/// What a planner has done since it was built, and how its slots stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Stats {
    /// Committed resident steps.
    pub steps: u64,
    /// Stages made.
    pub staged: u64,
    /// Stages used as they were made ahead.
    pub promoted: u64,
    /// Stages dropped before their first copy.
    pub dropped: u64,
    /// Steps that failed between their first copy and their commit.
    pub failed: u64,
    /// Rows written whole.
    pub whole_rows: u64,
    /// Rows mended by their lengths, columns and new pages alone.
    pub moved_rows: u64,
    /// Table cells sent because a stream entered a new page.
    pub crossings: u64,
    /// Length cells sent because the mirror differed from the stream.
    pub refreshed_lengths: u64,
    /// Rows whose slot another request took.
    pub displaced: u64,
    /// Slots given up by a release or an offload.
    pub released: u64,
    /// Host-to-device copies issued.
    pub copies: u64,
    /// Bytes those copies carried.
    pub bytes: u64,
    /// Slots that may be taken.
    pub slots_free: u64,
    /// Slots released while a launched step that reads them has not committed.
    pub slots_cooling: u64,
    /// Slots that live handles own.
    pub slots_held: u64,
    /// The last committed step.
    pub committed_seq: u64,
}
