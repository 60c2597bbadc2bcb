//! What an operation answered, and how a log says it.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::ids::PlanSeq;
use crate::planner::Planner;
use crate::run::Target;
use crate::stage::{Batch, StageInfo};
use crate::stats::Stats;

/// What a call that was not refused answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Nothing but that it was done.
    Done,
    /// Whether it is so.
    Flag(bool),
    /// A handle, a length, a slot, a count or a plan's number.
    Number(i64),
    /// A column's value, if it has one.
    Value(Option<i64>),
    /// Handles, pages or slots.
    Numbers(Vec<i64>),
    /// How many copies a flush asks for: [`Planner::copies`].
    Copies(usize),
    /// A batch.
    Batch(Batch),
    /// A stage.
    Stage(StageInfo),
    /// Counters.
    Stats(Box<Stats>),
}

impl Answer {
    pub(crate) fn seq(seq: PlanSeq) -> Self {
        Self::Number(seq.get() as i64)
    }

    pub(crate) fn count(count: usize) -> Self {
        Self::Number(count as i64)
    }
}

/// An operation's outcome as a log keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Outcome {
    Answered(Answer),
    /// A flush, by its copies: where each goes and what it carries.
    Sent {
        copies: usize,
        digest: u64,
    },
    /// The error's sentence.
    Refused(String),
    Panicked,
}

impl Outcome {
    /// `buffer` is what a flush was written to.
    pub fn of(made: &Result<Answer>, planner: &Planner, buffer: &[u8]) -> Self {
        match made {
            Ok(Answer::Copies(copies)) => Self::Sent {
                copies: *copies,
                digest: digest(planner, buffer),
            },
            Ok(answer) => Self::Answered(answer.clone()),
            Err(error) => Self::Refused(error.to_string()),
        }
    }
}

/// FNV-1a over every copy's target, place and bytes: one number that is the same on every machine of one byte order.
fn digest(planner: &Planner, buffer: &[u8]) -> u64 {
    let mut state = 0xCBF2_9CE4_8422_2325_u64;
    let mut feed = |bytes: &[u8]| {
        for &byte in bytes {
            state = (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        }
    };
    for run in planner.copies() {
        let (kind, number) = match run.target {
            Target::Narrow => (0, 0),
            Target::Table(table) => (1, table),
            Target::Lease(lease) => (2, lease),
        };
        for place in [kind, number, run.to_bytes, run.bytes] {
            feed(&(place as u64).to_le_bytes());
        }
        feed(&buffer[run.from_bytes..run.from_bytes + run.bytes]);
    }
    state
}
