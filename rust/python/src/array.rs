//! Integers from Python: arrays that are 1-D, C-contiguous and int64, and single ones of any size.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyOverflowError;
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

/// A handle, length or number of tokens. One beyond int64 is the nearest that fits, which no call accepts.
#[derive(Clone, Copy)]
pub(crate) struct Int(pub(crate) i64);

/// A number of pages or of a lease. One that does not fit is the largest, which no call accepts.
#[derive(Clone, Copy)]
pub(crate) struct Count(pub(crate) usize);

impl<'py> FromPyObject<'_, 'py> for Int {
    type Error = PyErr;

    fn extract(number: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match number.extract() {
            Ok(number) => Ok(Self(number)),
            Err(error) if error.is_instance_of::<PyOverflowError>(number.py()) => {
                Ok(Self(if number.lt(0)? { i64::MIN } else { i64::MAX }))
            }
            Err(error) => Err(error),
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for Count {
    type Error = PyErr;

    fn extract(number: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match number.extract() {
            Ok(number) => Ok(Self(number)),
            Err(error) if error.is_instance_of::<PyOverflowError>(number.py()) => {
                Ok(Self(usize::MAX))
            }
            Err(error) => Err(error),
        }
    }
}
