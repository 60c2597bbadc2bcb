//! Resident decode planning: the host side.
//!
//! A *row* is what a captured decode step reads of one request: its stored length in each KV pool, a few named
//! narrow columns, and one table of page ids per pool. Rows live on the device at fixed addresses. The step finds
//! them by a vector of slots and advances its own lengths; the host keeps a mirror that advances by the same rule and
//! sends only what differs.
//!
//! This crate decides what differs. It knows no Python and no device: a flush is written into memory that the caller
//! lends, as runs of cells to be copied in order.
//!
//! ```
//! use mstar_resident_core::{Planner, RowLayout, TableSpec};
//!
//! let kv = TableSpec { name: "kv".into(), page_size: 4, pool_pages: 100, max_seq_len: 64, span: 1 };
//! let layout = RowLayout::new(vec![kv], vec!["position_offset".into()])?;
//! let mut planner = Planner::new(layout, 8)?;
//! let lease = planner.add_lease(8)?;
//!
//! let request = planner.open(); // after its prefill: 6 tokens on pages 9 and 2
//! planner.set_stream(request, 0, &[9, 2], 6)?;
//! planner.set_column(0, &[request], &[-3])?;
//!
//! let batch = planner.batch(&[request])?;
//! let mut buffer = vec![0_u8; planner.largest_flush_bytes()];
//! for _ in 0..2 {
//!     let stage = planner.stage(&batch, lease)?; // may run ahead of the device
//!     planner.flush(stage.seq, &mut buffer)?; // issue planner.copies(), then replay
//!     planner.commit(stage.seq)?; // lengths + 1, by the rule that the graph followed
//! }
//! assert_eq!(planner.length(request, 0)?, 8);
//! assert!(planner.copies().is_empty()); // the second step sent nothing
//! # Ok::<(), mstar_resident_core::Error>(())
//! ```

#![forbid(unsafe_code)]

mod answer;
mod calendar;
mod cohort;
mod diff;
mod emit;
mod error;
mod ids;
mod invariant;
mod journal;
mod layout;
mod lease;
mod ledger;
mod log;
mod mirror;
mod op;
mod own;
mod plan;
mod planner;
mod pool;
mod replay;
mod run;
mod shared;
mod stage;
mod stats;
mod step;
mod stream;
mod sync;
mod tell;

pub use answer::Answer;
pub use error::{Error, Result};
pub use ids::{Handle, PlanSeq, Slot, TableIdx};
pub use journal::Journal;
pub use layout::{RowLayout, Table, TableSpec};
pub use ledger::SlotLedger;
pub use op::Op;
pub use planner::Planner;
pub use replay::{ReplayError, Replayed, replay};
pub use run::{CopyRun, Target};
pub use shared::{CallError, Device, Shared};
pub use stage::{Batch, StageInfo};
pub use stats::Stats;
