//! A shared planner over the model device: a ring in plain memory, and a log of every call.

use std::io::Write;
use std::sync::{Arc, Mutex};

use mstar_resident_core::{Answer, CallError, CopyRun, Journal, Op, Planner, Shared};

use super::device::Device;
use super::shapes::Shape;

/// Cells around the buffers that no copy may touch.
const GUARD: usize = 64;
const GUARD_BYTE: u8 = 0x5A;

/// The model device behind a ring of one buffer between guard cells.
#[derive(Debug)]
pub struct Ram {
    pub device: Device,
    buffer: Vec<u8>,
}

impl Ram {
    pub fn new(shape: &Shape, bytes: usize) -> Self {
        Self {
            device: Device::new(shape),
            buffer: vec![GUARD_BYTE; bytes + 2 * GUARD],
        }
    }

    /// Whether nothing was written around the buffer.
    pub fn guards_stand(&self) -> bool {
        let (before, rest) = self.buffer.split_at(GUARD);
        let behind = &rest[rest.len() - GUARD..];
        before.iter().chain(behind).all(|&byte| byte == GUARD_BYTE)
    }
}

impl mstar_resident_core::Device for Ram {
    type Wait = ();

    fn pending(&mut self) -> Result<Option<()>, String> {
        Ok(None)
    }

    fn buffer(&mut self) -> &mut [u8] {
        let end = self.buffer.len() - GUARD;
        &mut self.buffer[GUARD..end]
    }

    fn copy(&mut self, runs: &[CopyRun], _cuda_stream: usize) -> Result<(), String> {
        let end = self.buffer.len() - GUARD;
        for run in runs {
            if run.to_bytes + run.bytes > self.device.target_bytes(run.target) {
                return Err(format!("{run:?} is out of bounds"));
            }
            self.device.copy(run, &self.buffer[GUARD..end], run.bytes);
        }
        Ok(())
    }

    fn launch(&mut self, lease: usize, _cuda_stream: usize) -> Result<(), String> {
        self.device.replay(lease);
        Ok(())
    }
}

/// A log in memory.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A shared planner whose calls are written to `journal`.
pub fn shared(shape: &Shape, journal: Option<Arc<Journal>>) -> Shared<Ram> {
    let planner = Planner::new(shape.layout(), shape.max_batch).unwrap();
    let ram = Ram::new(shape, planner.largest_flush_bytes());
    Shared::new(planner, ram, journal)
}

/// Makes any call, a flush with its copies.
pub fn make(shared: &Shared<Ram>, op: &Op) -> Result<Answer, CallError> {
    match op {
        Op::Flush(seq) => shared.flush(*seq, 0, |()| Ok(())).map(Answer::Copies),
        Op::AddLease(bucket) => {
            shared.device(|ram, _| ram.device.add_lease(*bucket))?;
            shared.make(op)
        }
        _ => shared.make(op),
    }
}

/// The log of a history.
pub fn record(shape: &Shape, history: &[Op]) -> String {
    let log = Log::default();
    let journal = Arc::new(Journal::new(Box::new(log.clone())));
    let shared = shared(shape, Some(journal.clone()));
    for op in history {
        let _ = make(&shared, op); // a refusal is a line too
    }
    assert_eq!(journal.calls().unwrap(), history.len() as u64);
    log.text()
}
