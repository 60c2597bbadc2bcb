//! Makes the calls of an operation log again and compares what they answer and what they send.

use std::io::BufRead;
use std::panic::{AssertUnwindSafe, catch_unwind};

use thiserror::Error;

use crate::answer::Outcome;
use crate::log::{Geometry, Line, VERSION};
use crate::op::Op;
use crate::planner::Planner;

/// A flush buffer beyond this is no planner's that ever ran.
const MOST_BYTES: usize = 1 << 32;

/// What a replay made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// Planners.
    pub planners: usize,
    /// Calls of all of them.
    pub calls: u64,
}

/// Why a log was not replayed to its end.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs)] // each field is named in its sentence
pub enum ReplayError {
    /// It is not a log that this version reads.
    #[error("line {line}: expected {expected}, got {got}")]
    Malformed {
        line: usize,
        expected: String,
        got: String,
    },
    /// A call answered or sent something else. Operations are numbered from 1.
    #[error("operation {operation}, {call}: expected {expected}, got {got}")]
    Differs {
        operation: u64,
        call: String,
        expected: String,
        got: String,
    },
}

struct Lane {
    planner: Planner,
    buffer: Vec<u8>,
}

/// Replays a log on planners of its own.
///
/// # Errors
/// [`ReplayError`] at the first line that is malformed or whose call differs.
pub fn replay(log: impl BufRead) -> Result<Replayed, ReplayError> {
    let mut lanes: Vec<Lane> = Vec::new();
    let mut calls = 0;
    let mut line = 0;
    for text in log.lines() {
        line += 1;
        let wrong = |expected: &str, got: String| ReplayError::Malformed {
            line,
            expected: expected.to_owned(),
            got,
        };
        let text = text.map_err(|error| wrong("a line of text", error.to_string()))?;
        if line == 1 {
            check_version(&text).map_err(|got| wrong(&format!("version {VERSION}"), got))?;
            continue;
        }
        let parsed = serde_json::from_str(&text);
        match parsed.map_err(|error| wrong("a planner or a call", error.to_string()))? {
            Line::Log { .. } => return Err(wrong("one header", "another".to_owned())),
            Line::Planner(geometry) => {
                let lane = build(&geometry).map_err(|got| wrong("a planner", got))?;
                lanes.push(lane);
            }
            Line::Call {
                planner,
                op,
                outcome,
            } => {
                let known = lanes.len();
                let lane = lanes.get_mut(planner).ok_or_else(|| {
                    wrong(&format!("a planner below {known}"), planner.to_string())
                })?;
                calls += 1;
                let got = lane.make(&op);
                if got != outcome {
                    return Err(ReplayError::Differs {
                        operation: calls,
                        call: said(&op),
                        expected: said(&outcome),
                        got: said(&got),
                    });
                }
            }
        }
    }
    if line == 0 {
        let (expected, got) = ("a header".to_owned(), "an empty file".to_owned());
        return Err(ReplayError::Malformed {
            line: 1,
            expected,
            got,
        });
    }
    Ok(Replayed {
        planners: lanes.len(),
        calls,
    })
}

impl Lane {
    fn make(&mut self, op: &Op) -> Outcome {
        let (planner, buffer) = (&mut self.planner, &mut self.buffer);
        let made = catch_unwind(AssertUnwindSafe(|| op.apply(planner, buffer)));
        match made {
            Ok(made) => Outcome::of(&made, &self.planner, &self.buffer),
            Err(_) => Outcome::Panicked,
        }
    }
}

fn check_version(text: &str) -> Result<(), String> {
    match serde_json::from_str(text) {
        Ok(Line::Log { version, .. }) if version == VERSION => Ok(()),
        Ok(Line::Log { version, library }) => {
            Err(format!("version {version}, written by {library}"))
        }
        _ => Err("no header of an operation log".to_owned()),
    }
}

fn build(geometry: &Geometry) -> Result<Lane, String> {
    let planner = geometry.build().map_err(|error| error.to_string())?;
    let bytes = planner.largest_flush_bytes();
    if bytes > MOST_BYTES {
        return Err(format!("one whose flush takes {bytes} bytes"));
    }
    Ok(Lane {
        planner,
        buffer: vec![0; bytes],
    })
}

fn said(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| error.to_string())
}
