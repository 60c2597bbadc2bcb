//! What one mutex guards: the core's planner and the device that its copies go to.

use mstar_resident_core as core;

use crate::device::{Device, RingEvent};

pub(crate) struct State {
    pub(crate) core: core::Planner,
    pub(crate) device: Device,
}

/// What became of a flush.
pub(crate) enum Flushed {
    /// So many copies were issued.
    Copies(usize),
    /// Nothing yet: the ring is full until this event has happened.
    RingFull(RingEvent),
}

/// Why a step's copies or its graph were not issued.
pub(crate) enum StepError {
    /// The planner refused.
    Refused(core::Error),
    /// The device did.
    Device(String),
}

impl From<core::Error> for StepError {
    fn from(error: core::Error) -> Self {
        Self::Refused(error)
    }
}

impl From<String> for StepError {
    fn from(error: String) -> Self {
        Self::Device(error)
    }
}

impl State {
    pub(crate) fn new(core: core::Planner) -> Self {
        Self {
            core,
            device: Device::default(),
        }
    }

    /// Issues a stage's copies on a CUDA stream, unless the ring is full. A copy that fails retires the step as failed.
    pub(crate) fn flush(
        &mut self,
        seq: core::PlanSeq,
        cuda_stream: usize,
    ) -> Result<Flushed, StepError> {
        if self.core.flush_is_empty(seq)? {
            self.core.flush(seq, &mut [])?;
            return Ok(Flushed::Copies(0));
        }
        if !self.device.is_bound() {
            return Err("the store and the ring are not bound".to_owned().into());
        }
        if let Some(event) = self.device.pending()? {
            self.device.ring_waits += 1;
            return Ok(Flushed::RingFull(event));
        }
        self.core.flush(seq, self.device.buffer())?;
        let copied = self.device.copy(self.core.copies(), cuda_stream);
        self.fail_unless(seq, copied)?;
        Ok(Flushed::Copies(self.core.copies().len()))
    }

    /// Launches a graph behind a flush. A launch that fails retires the step as failed.
    pub(crate) fn launch(
        &mut self,
        seq: core::PlanSeq,
        graph_exec: usize,
        cuda_stream: usize,
    ) -> Result<(), StepError> {
        let launched = self.device.launch(graph_exec, cuda_stream);
        self.fail_unless(seq, launched)
    }

    fn fail_unless(
        &mut self,
        seq: core::PlanSeq,
        done: Result<(), String>,
    ) -> Result<(), StepError> {
        if let Err(error) = done {
            self.core.fail(seq)?;
            return Err(error.into());
        }
        Ok(())
    }
}
