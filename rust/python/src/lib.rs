//! The module `mstar_resident._core`.
use pyo3::prelude::*;

/// Native core of the resident decode planner.
#[pymodule]
fn _core(_module: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
