//! The core's errors as the classes of `mstar_resident.errors`, with their fields.

use mstar_resident_core::{CallError, Error, ReplayError};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The sentence, the class and the fields of one exception.
pub(crate) struct RaisedError {
    class: &'static str,
    message: String,
    fields: Vec<(&'static str, Field)>,
}

enum Field {
    Int(i128),
    Text(String),
}

macro_rules! fields {
    ($($name:ident),*) => { vec![$((stringify!($name), Field::from($name.clone()))),*] };
}

impl From<String> for Field {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Field {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

macro_rules! int_fields {
    ($($int:ty),*) => { $(impl From<$int> for Field {
        fn from(number: $int) -> Self {
            Self::Int(number as i128)
        }
    })* };
}
int_fields!(i64, u64, usize);

impl RaisedError {
    fn of(error: &Error) -> Self {
        let (class, fields) = match error {
            Error::Layout {
                field,
                expected,
                got,
            } => ("LayoutError", fields![field, expected, got]),
            Error::ArrayLength {
                field,
                expected,
                got,
            } => ("LayoutError", fields![field, expected, got]),
            Error::Count { field, index, got } => ("LayoutError", fields![field, index, got]),
            Error::Index { field, limit, got } => ("LayoutError", fields![field, limit, got]),
            Error::Ownership { table, expected } => ("LayoutError", fields![table, expected]),
            Error::UnknownHandle { handle } => ("UnknownHandleError", fields![handle]),
            Error::DuplicateHandle {
                handle,
                first,
                second,
            } => ("DuplicateHandleError", fields![handle, first, second]),
            Error::BatchSize { rows, limit } => ("BatchTooLargeError", fields![rows, limit]),
            Error::NotReady { seq } => ("NotReadyError", fields![seq]),
            Error::StageDropped { seq } => ("StageDroppedError", fields![seq]),
            Error::NotInFlight { seq, in_flight } => ("StageDroppedError", fields![seq, in_flight]),
            Error::RowOverflow {
                handle,
                table,
                needed,
                width,
            } => ("RowOverflowError", fields![handle, table, needed, width]),
            Error::MissingPage {
                handle,
                table,
                needed,
                held,
            } => ("MissingPageError", fields![handle, table, needed, held]),
            Error::UnsetColumn { handle, column } => ("UnsetColumnError", fields![handle, column]),
            Error::ReleasedTokens { handle, table } => {
                ("ReleasedTokensError", fields![handle, table])
            }
            Error::Page {
                handle,
                table,
                page,
                pool_pages,
            } => ("PageError", fields![handle, table, page, pool_pages]),
            Error::SharedPage {
                handle,
                table,
                page,
            } => ("PageError", fields![handle, table, page]),
            Error::Pages {
                handle,
                table,
                pages,
                held,
            } => ("LengthError", fields![handle, table, pages, held]),
            Error::Length {
                handle,
                table,
                length,
                limit,
            } => ("LengthError", fields![handle, table, length, limit]),
            Error::OutOfPages {
                table,
                needed,
                free,
            } => ("OutOfPagesError", fields![table, needed, free]),
            Error::FlushBuffer { expected, got } => ("InvariantError", fields![expected, got]),
            Error::Invariant { rule, detail } => ("InvariantError", fields![rule, detail]),
            _ => ("ResidentError", Vec::new()),
        };
        Self {
            class,
            message: error.to_string(),
            fields,
        }
    }

    pub(crate) fn raise(self, py: Python<'_>) -> PyErr {
        let build = || -> PyResult<Bound<'_, PyAny>> {
            let class = py.import("mstar_resident.errors")?.getattr(self.class)?;
            let fields = PyDict::new(py);
            for (name, field) in self.fields {
                match field {
                    Field::Int(number) => fields.set_item(name, number)?,
                    Field::Text(text) => fields.set_item(name, text)?,
                }
            }
            class.call((self.message,), Some(&fields))
        };
        match build() {
            Ok(exception) => PyErr::from_value(exception),
            Err(error) => error,
        }
    }
}

/// A refused argument that never reached the core.
pub(crate) fn layout_error(_py: Python<'_>, field: &str, expected: &str, got: &str) -> RaisedError {
    let (field, expected, got) = (field.to_owned(), expected.to_owned(), got.to_owned());
    RaisedError::of(&Error::Layout {
        field,
        expected,
        got,
    })
}

/// Raises the core's error as its Python class.
pub(crate) fn raised<T>(py: Python<'_>, result: Result<T, Error>) -> PyResult<T> {
    result.map_err(|error| RaisedError::of(&error).raise(py))
}

/// Raises what a shared planner answered.
pub(crate) fn called<T>(py: Python<'_>, result: Result<T, CallError>) -> PyResult<T> {
    result.map_err(|error| match error {
        CallError::Refused(error) => RaisedError::of(&error).raise(py),
        other => PyRuntimeError::new_err(other.to_string()),
    })
}

/// What ended a replay.
pub(crate) fn replay_error(error: &ReplayError) -> RaisedError {
    let (class, fields) = match error {
        ReplayError::Malformed {
            line,
            expected,
            got,
        } => ("LogError", fields![line, expected, got]),
        ReplayError::Differs {
            operation,
            call,
            expected,
            got,
        } => ("ReplayError", fields![operation, call, expected, got]),
    };
    RaisedError {
        class,
        message: error.to_string(),
        fields,
    }
}
