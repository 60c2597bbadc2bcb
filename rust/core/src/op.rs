//! Operations as data: every call of a planner with its arguments, so that a history can be kept and made again.

use serde::{Deserialize, Serialize};

use crate::answer::Answer;
use crate::error::Result;
use crate::ids::{Handle, PlanSeq, Slot, TableIdx};
use crate::planner::Planner;
use crate::stage::Batch;

/// One call of a [`Planner`], named as its method. Handles are packed numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[allow(missing_docs)] // the arguments are those of the methods
pub enum Op {
    /// [`Planner::set_strict`].
    SetStrict(bool),
    /// [`Planner::add_lease`].
    AddLease(usize),
    /// [`Planner::open`].
    Open,
    /// [`Planner::release`].
    Release(i64),
    /// [`Planner::offload`].
    Offload(i64),
    /// [`Planner::set_stream`].
    SetStream {
        handle: i64,
        table: TableIdx,
        pages: Vec<i64>,
        length: i64,
    },
    /// [`Planner::append_pages`].
    AppendPages {
        table: TableIdx,
        handles: Vec<i64>,
        counts: Vec<i64>,
        pages: Vec<i64>,
    },
    /// [`Planner::host_step`].
    HostStep {
        table: TableIdx,
        handles: Vec<i64>,
        tokens: Vec<i64>,
    },
    /// [`Planner::truncate`].
    Truncate {
        table: TableIdx,
        handle: i64,
        length: i64,
        pages: usize,
    },
    /// [`Planner::set_column`].
    SetColumn {
        column: usize,
        handles: Vec<i64>,
        values: Vec<i64>,
    },
    /// [`Planner::unset_column`].
    UnsetColumn { column: usize, handles: Vec<i64> },
    /// [`Planner::mark_stale`].
    MarkStale(Vec<i64>),
    /// [`Planner::mark_released_tokens`].
    MarkReleasedTokens { table: TableIdx, handle: i64 },
    /// [`Planner::own_pages`].
    OwnPages(TableIdx),
    /// [`Planner::reserve`].
    Reserve {
        table: TableIdx,
        handles: Vec<i64>,
        tokens: Vec<i64>,
    },
    /// [`Planner::reserve_step`].
    ReserveStep(Batch),
    /// [`Planner::fork`].
    Fork {
        table: TableIdx,
        parent: i64,
        child: i64,
        tokens: i64,
    },
    /// [`Planner::batch`].
    Batch(Vec<i64>),
    /// [`Planner::stage`].
    Stage { batch: Batch, lease: usize },
    /// [`Planner::promote`].
    Promote {
        seq: PlanSeq,
        batch: Batch,
        lease: usize,
    },
    /// [`Planner::drop_staged`].
    DropStaged(PlanSeq),
    /// [`Planner::flush_is_empty`].
    FlushIsEmpty(PlanSeq),
    /// [`Planner::flush`].
    Flush(PlanSeq),
    /// [`Planner::commit`].
    Commit(PlanSeq),
    /// [`Planner::fail`].
    Fail(PlanSeq),
    /// [`Planner::bucket`].
    Bucket(usize),
    /// [`Planner::in_flight_slots`].
    InFlightSlots,
    /// [`Planner::last_step`].
    LastStep(i64),
    /// [`Planner::committed_seq`].
    CommittedSeq,
    /// [`Planner::length`].
    Length { handle: i64, table: TableIdx },
    /// [`Planner::pages`].
    Pages { handle: i64, table: TableIdx },
    /// [`Planner::column`].
    Column { handle: i64, column: usize },
    /// [`Planner::slot`].
    Slot(i64),
    /// [`Planner::free_pages`].
    FreePages(TableIdx),
    /// [`Planner::check`].
    Check,
    /// [`Planner::stats`].
    Stats,
}

impl Op {
    /// Makes the call. Only a flush writes to `buffer`, and only one that copies something needs any of it.
    ///
    /// # Errors
    /// What the method is refused with.
    pub fn apply(&self, planner: &mut Planner, buffer: &mut [u8]) -> Result<Answer> {
        match self {
            Self::SetStrict(strict) => planner.set_strict(*strict),
            Self::AddLease(bucket) => return planner.add_lease(*bucket).map(Answer::count),
            Self::Open => return Ok(Answer::Number(planner.open())),
            Self::Release(handle) => return planner.release(*handle).map(Answer::seq),
            Self::Offload(handle) => return planner.offload(*handle).map(Answer::seq),
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
            Self::ReserveStep(batch) => planner.reserve_step(batch)?,
            Self::Fork {
                table,
                parent,
                child,
                tokens,
            } => planner.fork(*table, *parent, *child, *tokens)?,
            Self::Commit(seq) => planner.commit(*seq)?,
            Self::Check => planner.check()?,
            Self::Batch(handles) => return planner.batch(handles).map(Answer::Batch),
            Self::Stage { batch, lease } => return planner.stage(batch, *lease).map(Answer::Stage),
            Self::Promote { seq, batch, lease } => {
                return Ok(Answer::Flag(planner.promote(*seq, batch, *lease)));
            }
            Self::DropStaged(seq) => return Ok(Answer::Flag(planner.drop_staged(*seq))),
            Self::FlushIsEmpty(seq) => return planner.flush_is_empty(*seq).map(Answer::Flag),
            Self::Flush(seq) => {
                planner.flush(*seq, buffer)?;
                return Ok(Answer::Copies(planner.copies().len()));
            }
            Self::Fail(seq) => {
                let live = planner.fail(*seq)?.into_iter().map(Handle::pack);
                return Ok(Answer::Numbers(live.collect()));
            }
            query => return query.ask(planner),
        }
        Ok(Answer::Done)
    }

    fn ask(&self, planner: &Planner) -> Result<Answer> {
        Ok(match self {
            Self::Bucket(lease) => Answer::count(planner.bucket(*lease)?),
            Self::LastStep(handle) => Answer::seq(planner.last_step(*handle)?),
            Self::Length { handle, table } => Answer::Number(planner.length(*handle, *table)?),
            Self::Pages { handle, table } => {
                let pages = planner.pages(*handle, *table)?;
                Answer::Numbers(pages.iter().map(|&page| i64::from(page)).collect())
            }
            Self::Column { handle, column } => Answer::Value(planner.column(*handle, *column)?),
            Self::Slot(handle) => Answer::count(planner.slot(*handle)?.map_or(0, Slot::get)),
            Self::FreePages(table) => Answer::Number(planner.free_pages(*table)? as i64),
            Self::InFlightSlots => {
                let slots = planner.in_flight_slots().iter();
                Answer::Numbers(slots.map(|slot| slot.get() as i64).collect())
            }
            Self::Stats => Answer::Stats(Box::new(planner.stats())),
            _ => Answer::seq(planner.committed_seq()),
        })
    }
}
