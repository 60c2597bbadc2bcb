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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::layout::{RowLayout, TableSpec};
    use crate::replay::replay;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_call_that_panics_is_the_last_line_of_its_log() {
        let spec = TableSpec {
            name: "kv".into(),
            page_size: 4,
            pool_pages: 9,
            max_seq_len: 16,
            span: 1,
        };
        let mut planner = Planner::new(RowLayout::new(vec![spec], Vec::new()).unwrap(), 1).unwrap();
        let log = Log::default();
        let recorder = Recorder::new(Arc::new(Journal::new(Box::new(log.clone()))), &planner);
        recorder.apply(&Op::Open, &mut planner, &mut []).unwrap();
        planner.requests = crate::stream::Requests::new(planner.layout());
        let (index, slot) = (planner.requests.open(), crate::ids::Slot::new(9));
        planner.requests.get_mut(index).slot = slot; // a slot that the ledger does not have
        let mut broken = || recorder.apply(&Op::Release(0), &mut planner, &mut []);
        assert!(catch_unwind(AssertUnwindSafe(&mut broken)).is_err());
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let last = "\"op\":{\"release\":0},\"outcome\":\"panicked\"}}\n";
        assert!(text.ends_with(last), "{text}");
        let error = replay(text.as_bytes()).unwrap_err();
        assert!(
            error.to_string().contains("expected \"panicked\", got "),
            "{error}"
        );
    }
}
