//! Writes an operation log.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use crate::answer::{Answer, Outcome};
use crate::error::Result;
use crate::log::{Geometry, Line};
use crate::op::Op;
use crate::planner::Planner;
use crate::sync::Mutex;

/// One log, of any number of planners. A line is written out before the call that it tells of returns.
pub struct Journal {
    state: Mutex<State>,
}

struct State {
    out: Box<dyn Write + Send>,
    planners: usize,
    calls: u64,
    /// The first write that failed; nothing is written behind it.
    failed: Option<io::Error>,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Journal").finish_non_exhaustive()
    }
}

impl Journal {
    /// Begins a log.
    #[must_use]
    pub fn new(out: Box<dyn Write + Send>) -> Self {
        let mut state = State {
            out,
            planners: 0,
            calls: 0,
            failed: None,
        };
        state.write(&Line::first());
        Self {
            state: Mutex::new(state),
        }
    }

    /// Calls written so far.
    ///
    /// # Errors
    /// The first write that failed: the log ends there.
    pub fn calls(&self) -> io::Result<u64> {
        self.with(|state| match &state.failed {
            None => Ok(state.calls),
            Some(error) => Err(io::Error::new(error.kind(), error.to_string())),
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().expect("a write does not panic");
        work(&mut state)
    }
}

impl State {
    fn write(&mut self, line: &Line) {
        if self.failed.is_some() {
            return;
        }
        let written = serde_json::to_string(line)
            .map_err(io::Error::from)
            .and_then(|text| self.out.write_all(format!("{text}\n").as_bytes()))
            .and_then(|()| self.out.flush());
        self.failed = written.err();
    }
}

/// A planner's part of a log, from its first call on.
#[derive(Debug)]
pub(crate) struct Recorder {
    journal: Arc<Journal>,
    planner: usize,
}

impl Recorder {
    pub fn new(journal: Arc<Journal>, planner: &Planner) -> Self {
        let number = journal.with(|state| {
            state.write(&Line::Planner(Geometry::of(planner)));
            state.planners += 1;
            state.planners - 1
        });
        Self {
            journal,
            planner: number,
        }
    }

    /// Makes a call and writes it down, one that panics too.
    pub fn apply(&self, op: &Op, planner: &mut Planner, buffer: &mut [u8]) -> Result<Answer> {
        let made = catch_unwind(AssertUnwindSafe(|| op.apply(planner, buffer)));
        let outcome = match &made {
            Ok(made) => Outcome::of(made, planner, buffer),
            Err(_) => Outcome::Panicked,
        };
        self.journal.with(|state| {
            state.write(&Line::Call {
                planner: self.planner,
                op: op.clone(),
                outcome,
            });
            state.calls += 1;
        });
        made.unwrap_or_else(|panic| resume_unwind(panic))
    }
}
