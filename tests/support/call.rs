//! What an engine can tell a planner, as data, so that a twin can be told the same.

use mstar_resident_core::{Planner, Result};

/// One call.
#[derive(Clone, Debug)]
pub enum Call {
    Open,
    Release(i64),
    Offload(i64),
    SetStream {
        handle: i64,
        table: usize,
        pages: Vec<i64>,
        length: i64,
    },
    AppendPages {
        table: usize,
        handles: Vec<i64>,
        counts: Vec<i64>,
        pages: Vec<i64>,
    },
    HostStep {
        table: usize,
        handles: Vec<i64>,
        tokens: Vec<i64>,
    },
    Truncate {
        table: usize,
        handle: i64,
        length: i64,
        pages: usize,
    },
    SetColumn {
        column: usize,
        handles: Vec<i64>,
        values: Vec<i64>,
    },
    UnsetColumn {
        column: usize,
        handles: Vec<i64>,
    },
    MarkStale(Vec<i64>),
    MarkReleasedTokens {
        table: usize,
        handle: i64,
    },
    OwnPages(usize),
    Reserve {
        table: usize,
        handles: Vec<i64>,
        tokens: Vec<i64>,
    },
    ReserveStep(Vec<i64>),
    Fork {
        table: usize,
        parent: i64,
        child: i64,
        tokens: i64,
    },
}

impl Call {
    /// Makes the call; what it answers, as a number.
    pub fn make(&self, planner: &mut Planner) -> Result<i64> {
        match self {
            Self::Open => return Ok(planner.open()),
            Self::Release(handle) => return planner.release(*handle).map(|seq| seq.get() as i64),
            Self::Offload(handle) => return planner.offload(*handle).map(|seq| seq.get() as i64),
            Self::SetStream {
                handle,
                table,
                pages,
                length,
            } => planner.set_stream(*handle, *table, pages, *length)?,
            Self::AppendPages {
                table,
                handles,
                counts,
                pages,
            } => planner.append_pages(*table, handles, counts, pages)?,
            Self::HostStep {
                table,
                handles,
                tokens,
            } => planner.host_step(*table, handles, tokens)?,
            Self::Truncate {
                table,
                handle,
                length,
                pages,
            } => planner.truncate(*table, *handle, *length, *pages)?,
            Self::SetColumn {
                column,
                handles,
                values,
            } => planner.set_column(*column, handles, values)?,
            Self::UnsetColumn { column, handles } => planner.unset_column(*column, handles)?,
            Self::MarkStale(handles) => planner.mark_stale(handles)?,
            Self::MarkReleasedTokens { table, handle } => {
                planner.mark_released_tokens(*table, *handle)?;
            }
            Self::OwnPages(table) => planner.own_pages(*table)?,
            Self::Reserve {
                table,
                handles,
                tokens,
            } => planner.reserve(*table, handles, tokens)?,
            Self::ReserveStep(handles) => {
                let batch = planner.batch(handles)?;
                planner.reserve_step(&batch)?;
            }
            Self::Fork {
                table,
                parent,
                child,
                tokens,
            } => planner.fork(*table, *parent, *child, *tokens)?,
        }
        Ok(0)
    }

    /// Requests whose rows the call changes: a stage that names one of them is dropped.
    pub fn marks(&self) -> Vec<i64> {
        match self {
            Self::Release(handle)
            | Self::Offload(handle)
            | Self::SetStream { handle, .. }
            | Self::Truncate { handle, .. }
            | Self::MarkReleasedTokens { handle, .. }
            | Self::Fork { child: handle, .. } => vec![*handle],
            Self::HostStep { handles, .. }
            | Self::SetColumn { handles, .. }
            | Self::UnsetColumn { handles, .. }
            | Self::MarkStale(handles) => handles.clone(),
            Self::Open
            | Self::AppendPages { .. }
            | Self::OwnPages(_)
            | Self::Reserve { .. }
            | Self::ReserveStep(_) => Vec::new(),
        }
    }
}
