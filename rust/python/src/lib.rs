//! The module `mstar_resident._core`: a thin boundary over the core, one mutex a planner.
//!
//! Arrays are 1-D C-contiguous int64 buffers. No call runs Python code while the mutex is held, so a thread that
//! waits for the mutex with the interpreter lock cannot be waited for by its holder.

mod array;
mod bench;
mod device;
mod errors;
mod journal;
mod planner;
mod requests;
mod values;

use pyo3::prelude::*;

/// Native core of the resident decode planner: streams, slots, diffs and copies.
#[pymodule]
mod _core {
    #[pymodule_export]
    use super::bench::bench_core;
    #[pymodule_export]
    use super::journal::{Journal, replay};
    #[pymodule_export]
    use super::planner::Planner;
    #[pymodule_export]
    use super::values::{Batch, Layout, Stage, Stats};
}
