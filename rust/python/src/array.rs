//! Integer arrays from Python: 1-D, C-contiguous, int64.

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;

use crate::errors::{RaisedError, layout_error};

/// Copies an array into `out`-owned memory, so that no other thread can change it while it is read.
pub(crate) fn int64(array: &Bound<'_, PyAny>, field: &str) -> PyResult<Vec<i64>> {
    let py = array.py();
    let wrong = |got: String| -> PyErr {
        layout_error(py, field, "a 1-D C-contiguous int64 array", &got).into_py(py)
    };
    let buffer = PyBuffer::<i64>::get(array).map_err(|error| wrong(error.to_string()))?;
    if buffer.dimensions() != 1 || !buffer.is_c_contiguous() {
        return Err(wrong(format!(
            "{} dimensions, strides {:?}",
            buffer.dimensions(),
            buffer.strides()
        )));
    }
    buffer.to_vec(py)
}

impl RaisedError {
    fn into_py(self, py: Python<'_>) -> PyErr {
        self.raise(py)
    }
}
