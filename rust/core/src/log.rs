//! The lines of an operation log: JSON, one a line. The first names the version; a planner's stands before its calls.

use serde::{Deserialize, Serialize};

use crate::answer::Outcome;
use crate::error::Result;
use crate::layout::{RowLayout, TableSpec};
use crate::op::Op;
use crate::planner::Planner;

/// The version of the lines.
pub(crate) const VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Line {
    /// What wrote the log.
    Log { version: u32, library: String },
    /// Planners are numbered in order.
    Planner(Geometry),
    /// One call of a planner.
    Call {
        planner: usize,
        op: Op,
        outcome: Outcome,
    },
}

/// What a planner was built from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Geometry {
    pub tables: Vec<TableSpec>,
    pub columns: Vec<String>,
    pub max_batch: usize,
}

impl Line {
    pub fn first() -> Self {
        Self::Log {
            version: VERSION,
            library: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

impl Geometry {
    pub fn of(planner: &Planner) -> Self {
        let layout = planner.layout();
        Self {
            tables: layout.tables().iter().map(|t| t.spec.clone()).collect(),
            columns: layout.columns().to_vec(),
            max_batch: planner.max_batch(),
        }
    }

    pub fn build(&self) -> Result<Planner> {
        let layout = RowLayout::new(self.tables.clone(), self.columns.clone())?;
        Planner::new(layout, self.max_batch)
    }
}
