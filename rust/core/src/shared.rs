//! A planner that several threads call: one lock around it, the device that its copies go to, and its log.
//!
//! A step's own calls (stage, flush, commit) are made directly where no log is kept: nothing is built for one.

use std::sync::Arc;

use thiserror::Error;

use crate::answer::Answer;
use crate::error;
use crate::ids::PlanSeq;
use crate::journal::{Journal, Recorder};
use crate::op::Op;
use crate::planner::Planner;
use crate::run::CopyRun;
use crate::stage::{Batch, StageInfo};
use crate::sync::{Mutex, MutexGuard};

/// Where the copies of a flush go, from a ring of buffers that the flush is written to.
pub trait Device {
    /// What must have happened before the next buffer of a full ring can be written again.
    type Wait;

    /// What the next buffer waits for, if anything.
    ///
    /// # Errors
    /// Says what the device said.
    fn pending(&mut self) -> Result<Option<Self::Wait>, String>;

    /// The next buffer, to be filled.
    fn buffer(&mut self) -> &mut [u8];

    /// Issues copies from the buffer in order, then moves on in the ring.
    ///
    /// # Errors
    /// Says what the device said; some of the copies may have been issued.
    fn copy(&mut self, runs: &[CopyRun], cuda_stream: usize) -> Result<(), String>;

    /// Launches an instantiated graph.
    ///
    /// # Errors
    /// Says what the device said.
    fn launch(&mut self, graph_exec: usize, cuda_stream: usize) -> Result<(), String>;
}

/// Why a shared planner did not do what it was asked.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CallError {
    /// The planner refused; nothing has changed.
    #[error(transparent)]
    Refused(#[from] error::Error),
    /// The device did. A step whose copies or launch failed is retired as failed.
    #[error("{0}")]
    Device(String),
    /// A call before this one panicked, so that nothing is known of the planner.
    #[error("the planner panicked in an earlier call")]
    Panicked,
}

/// A planner behind its one lock, which is never held while a thread waits for the device.
#[derive(Debug)]
pub struct Shared<D> {
    state: Mutex<State<D>>,
}

#[derive(Debug)]
struct State<D> {
    planner: Planner,
    device: D,
    recorder: Option<Recorder>,
}

/// What became of a flush: the copies issued, or what it must wait for first.
enum Flushed<W> {
    Copies(usize),
    RingFull(W),
}

impl<D: Device> Shared<D> {
    /// Puts a planner that nobody has called behind its lock; every call is written to `journal`, if there is one.
    #[must_use]
    pub fn new(planner: Planner, device: D, journal: Option<Arc<Journal>>) -> Self {
        let recorder = journal.map(|journal| Recorder::new(journal, &planner));
        Self {
            state: Mutex::new(State {
                planner,
                device,
                recorder,
            }),
        }
    }

    fn state(&self) -> Result<MutexGuard<'_, State<D>>, CallError> {
        self.state.lock().map_err(|_| CallError::Panicked)
    }

    /// Makes a call that copies nothing.
    ///
    /// # Errors
    /// [`CallError::Refused`] with what the planner said, or [`CallError::Panicked`].
    pub fn make(&self, op: &Op) -> Result<Answer, CallError> {
        Ok(self.state()?.make(op)?)
    }

    /// [`Planner::stage`], and the rows of the lease's bucket.
    ///
    /// # Errors
    /// As [`Shared::make`].
    pub fn stage(&self, batch: &Batch, lease: usize) -> Result<(StageInfo, usize), CallError> {
        let mut state = self.state()?;
        let info = if state.recorder.is_none() {
            state.planner.stage(batch, lease)?
        } else {
            let batch = batch.clone();
            match state.make(&Op::Stage { batch, lease })? {
                Answer::Stage(info) => info,
                other => unreachable!("a stage answered {other:?}"),
            }
        };
        Ok((info, state.planner.bucket(lease)?))
    }

    /// [`Planner::commit`].
    ///
    /// # Errors
    /// As [`Shared::make`].
    pub fn commit(&self, seq: PlanSeq) -> Result<(), CallError> {
        let mut state = self.state()?;
        if state.recorder.is_none() {
            return Ok(state.planner.commit(seq)?);
        }
        state.make(&Op::Commit(seq))?;
        Ok(())
    }

    /// Reads or changes the device.
    ///
    /// # Errors
    /// [`CallError::Panicked`].
    pub fn device<T>(&self, work: impl FnOnce(&mut D, &Planner) -> T) -> Result<T, CallError> {
        let mut state = self.state()?;
        let State {
            planner, device, ..
        } = &mut *state;
        Ok(work(device, planner))
    }

    /// Issues a stage's copies and says how many there were. While the ring is full, `wait` is called without the
    /// lock. A copy that fails retires the step as failed.
    ///
    /// # Errors
    /// [`CallError`]; one that `wait` returned is passed on.
    pub fn flush(
        &self,
        seq: PlanSeq,
        cuda_stream: usize,
        mut wait: impl FnMut(D::Wait) -> Result<(), String>,
    ) -> Result<usize, CallError> {
        loop {
            let flushed = self.state()?.flush(seq, cuda_stream)?;
            match flushed {
                Flushed::Copies(copies) => return Ok(copies),
                Flushed::RingFull(event) => wait(event).map_err(CallError::Device)?,
            }
        }
    }

    /// Launches a graph behind a flush. A launch that fails retires the step as failed.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn launch(
        &self,
        seq: PlanSeq,
        graph_exec: usize,
        cuda_stream: usize,
    ) -> Result<(), CallError> {
        let mut state = self.state()?;
        let launched = state.device.launch(graph_exec, cuda_stream);
        state.fail_unless(seq, launched)
    }
}

impl<D: Device> State<D> {
    fn make(&mut self, op: &Op) -> error::Result<Answer> {
        match &self.recorder {
            None => op.apply(&mut self.planner, &mut []),
            Some(recorder) => recorder.apply(op, &mut self.planner, &mut []),
        }
    }

    fn flush(&mut self, seq: PlanSeq, cuda_stream: usize) -> Result<Flushed<D::Wait>, CallError> {
        // A stage that was dropped is refused by the flush itself, so that its log says so.
        if self.planner.flush_is_empty(seq).unwrap_or(true) {
            flush(self.recorder.as_ref(), seq, &mut self.planner, &mut [])?;
            return Ok(Flushed::Copies(0));
        }
        if let Some(event) = self.device.pending().map_err(CallError::Device)? {
            return Ok(Flushed::RingFull(event));
        }
        let (planner, buffer) = (&mut self.planner, self.device.buffer());
        flush(self.recorder.as_ref(), seq, planner, buffer)?;
        let copied = self.device.copy(self.planner.copies(), cuda_stream);
        self.fail_unless(seq, copied)?;
        Ok(Flushed::Copies(self.planner.copies().len()))
    }

    fn fail_unless(&mut self, seq: PlanSeq, done: Result<(), String>) -> Result<(), CallError> {
        if let Err(error) = done {
            self.make(&Op::Fail(seq))?;
            return Err(CallError::Device(error));
        }
        Ok(())
    }
}

fn flush(
    recorder: Option<&Recorder>,
    seq: PlanSeq,
    planner: &mut Planner,
    buffer: &mut [u8],
) -> error::Result<()> {
    match recorder {
        None => planner.flush(seq, buffer),
        Some(recorder) => recorder.apply(&Op::Flush(seq), planner, buffer).map(|_| ()),
    }
}
