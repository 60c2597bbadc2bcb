//! The operation log as Python sees it.

use std::fs::File;
use std::io::BufReader;
use std::sync::Arc;

use mstar_resident_core as core;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

use crate::errors::replay_error;

/// Writes the calls of the planners that are built with it to a file, which replay makes again.
///
/// Raises OSError if the file cannot be written.
#[pyclass(frozen, module = "mstar_resident._core")]
pub(crate) struct Journal {
    pub(crate) journal: Arc<core::Journal>,
}

#[pymethods]
impl Journal {
    #[new]
    fn new(path: &str) -> PyResult<Self> {
        let journal = core::Journal::new(Box::new(File::create(path)?));
        Ok(Self {
            journal: Arc::new(journal),
        })
    }

    /// Calls written so far; raises OSError if the file could not hold them all.
    fn calls(&self) -> PyResult<u64> {
        self.journal
            .calls()
            .map_err(|error| PyOSError::new_err(error.to_string()))
    }
}

/// Makes the calls of a log again on planners of its own; returns how many planners and calls there were.
///
/// Raises ReplayError at the first call that answers or sends something else, LogError for a file that is no log.
#[pyfunction]
pub(crate) fn replay(py: Python<'_>, path: &str) -> PyResult<(usize, u64)> {
    let log = BufReader::new(File::open(path)?);
    let replayed = py.detach(|| core::replay(log));
    let replayed = replayed.map_err(|error| replay_error(&error).raise(py))?;
    Ok((replayed.planners, replayed.calls))
}
