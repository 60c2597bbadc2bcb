//! The core's plan latency, for the bench that compares it with the same plan through Python.

#[path = "../../../benches/cases.rs"]
mod cases;

use pyo3::prelude::*;

use crate::errors::layout_error;

/// Times the core alone on a named case: returns core_ns_p50 and bytes, both per step.
///
/// Cases: steady, crossing, join_leave, displacing, whole. Raises LayoutError for any other.
#[pyfunction]
pub(crate) fn bench_core(
    py: Python<'_>,
    rows: usize,
    case: &str,
    steps: usize,
) -> PyResult<(f64, f64)> {
    let Some(case) = cases::Case::named(case) else {
        return Err(layout_error(py, "case", &cases::Case::names(), case).raise(py));
    };
    if rows == 0 || steps == 0 {
        return Err(layout_error(
            py,
            "rows and steps",
            "at least 1",
            &format!("{rows} and {steps}"),
        )
        .raise(py));
    }
    py.detach(|| {
        let timing = cases::time(case, rows, steps);
        Ok((timing.ns_p50, timing.bytes))
    })
}
