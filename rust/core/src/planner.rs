//! The planner: one per node. Its calls are grouped by who makes them: `tell` (host truth), `plan` (stage, promote,
//! drop), `step` (flush, commit, fail), `own` (pages owned by the planner).

use crate::cohort::Cohort;
use crate::error::{Error, Result};
use crate::ids::{Handle, PlanSeq, Slot, TableIdx};
use crate::layout::RowLayout;
use crate::lease::Lease;
use crate::ledger::{SlotLedger, Victim};
use crate::mirror::Mirror;
use crate::pool::PagePool;
use crate::run::CopyRun;
use crate::stage::{Batch, StageBuffer};
use crate::stats::Stats;
use crate::stream::Requests;

/// A step between its first copy and its commit.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub seq: PlanSeq,
    pub lease: usize,
    /// The rows as recorded at the flush, once the cohort that held them broke up; `None` while it stands.
    pub batch: Option<Batch>,
    pub slots: Vec<Slot>,
}

/// Keeps the host mirrors of one node's rows and decides what each step sends.
#[derive(Debug)]
pub struct Planner {
    pub(crate) layout: RowLayout,
    pub(crate) max_batch: usize,
    pub(crate) requests: Requests,
    pub(crate) ledger: SlotLedger,
    pub(crate) mirror: Mirror,
    pub(crate) cohort: Cohort,
    pub(crate) stage: StageBuffer,
    pub(crate) in_flight: Option<InFlight>,
    /// Kept between steps so that a broken-up step allocates nothing.
    pub(crate) spare_slots: Vec<Slot>,
    pub(crate) leases: Vec<Lease>,
    pub(crate) pools: Vec<Option<PagePool>>,
    pub(crate) copies: Vec<CopyRun>,
    pub(crate) victims: Vec<Victim>,
    pub(crate) claims: Vec<Slot>,
    pub(crate) reserving: Vec<(TableIdx, Handle)>,
    pub(crate) last_seq: PlanSeq,
    pub(crate) committed_seq: PlanSeq,
    pub(crate) strict: bool,
    pub(crate) stats: Stats,
}

impl Planner {
    /// Builds a planner for batches of at most `max_batch` rows over `2 * max_batch + 1` store rows.
    ///
    /// # Errors
    /// [`Error::Layout`] if `max_batch` is 0 or above 65,536.
    pub fn new(layout: RowLayout, max_batch: usize) -> Result<Self> {
        if max_batch == 0 || max_batch > 1 << 16 {
            let (field, expected) = ("max_batch".to_owned(), "1 to 65536 rows".to_owned());
            return Err(Error::Layout {
                field,
                expected,
                got: max_batch.to_string(),
            });
        }
        let slots = 2 * max_batch;
        Ok(Self {
            requests: Requests::new(&layout),
            ledger: SlotLedger::new(slots),
            mirror: Mirror::new(&layout, slots + 1),
            cohort: Cohort::new(&layout, max_batch),
            stage: StageBuffer::with_capacity(max_batch, layout.cells_per_row()),
            in_flight: None,
            spare_slots: Vec::with_capacity(max_batch),
            leases: Vec::new(),
            pools: layout.tables().iter().map(|_| None).collect(),
            copies: Vec::with_capacity(2 + max_batch * (1 + layout.tables().len())),
            victims: Vec::with_capacity(slots),
            claims: Vec::with_capacity(max_batch),
            reserving: Vec::with_capacity(max_batch * layout.tables().len()),
            last_seq: PlanSeq::NONE,
            committed_seq: PlanSeq::NONE,
            strict: false,
            stats: Stats::default(),
            layout,
            max_batch,
        })
    }

    /// Also checks, on every call that can break them, what costs O(rows) or O(pages) to check.
    pub fn set_strict(&mut self, strict: bool) {
        self.strict = strict;
    }

    /// The layout of a row.
    #[must_use]
    pub fn layout(&self) -> &RowLayout {
        &self.layout
    }

    /// Rows of the widest batch.
    #[must_use]
    pub fn max_batch(&self) -> usize {
        self.max_batch
    }

    /// Bytes of the largest flush; the size of each buffer of the stager's ring.
    #[must_use]
    pub fn largest_flush_bytes(&self) -> usize {
        self.layout.largest_flush_bytes(self.max_batch)
    }

    /// Registers the input buffer, all zero, of one (walk, bucket, `buffer_idx`).
    ///
    /// # Errors
    /// [`Error::BatchSize`] for a bucket of 0 rows or wider than the planner.
    pub fn add_lease(&mut self, bucket: usize) -> Result<usize> {
        if bucket == 0 || bucket > self.max_batch {
            return Err(Error::BatchSize {
                rows: bucket,
                limit: self.max_batch,
            });
        }
        self.leases.push(Lease::new(bucket));
        Ok(self.leases.len() - 1)
    }

    /// Rows of a lease's bucket.
    ///
    /// # Errors
    /// [`Error::Index`] for a lease that was not added.
    pub fn bucket(&self, lease: usize) -> Result<usize> {
        self.lease_at(lease).map(|l| l.bucket)
    }

    pub(crate) fn lease_at(&self, lease: usize) -> Result<&Lease> {
        self.leases.get(lease).ok_or(Error::Index {
            field: "lease",
            limit: self.leases.len(),
            got: lease,
        })
    }

    /// Names the rows of a step, in order.
    ///
    /// # Errors
    /// [`Error::BatchSize`], [`Error::UnknownHandle`] or [`Error::DuplicateHandle`].
    pub fn batch(&mut self, handles: &[i64]) -> Result<Batch> {
        if handles.is_empty() || handles.len() > self.max_batch {
            return Err(Error::BatchSize {
                rows: handles.len(),
                limit: self.max_batch,
            });
        }
        Ok(Batch {
            rows: self.requests.resolve_all(handles)?.into(),
        })
    }

    /// The last committed step.
    #[must_use]
    pub fn committed_seq(&self) -> PlanSeq {
        self.committed_seq
    }

    /// The last step that can touch a request's row or pages: the unlaunched stage that names it, else the last
    /// launched step that read it. Pages may be reused on the node's `cuda_stream` once that step has committed.
    ///
    /// # Errors
    /// [`Error::UnknownHandle`].
    pub fn last_step(&self, handle: i64) -> Result<PlanSeq> {
        let handle = self.requests.resolve(handle)?;
        Ok(if self.in_stage(handle) {
            self.stage.seq
        } else {
            self.last_launched(handle)
        })
    }

    pub(crate) fn last_launched(&self, handle: Handle) -> PlanSeq {
        let request = self.requests.get(handle);
        if self.in_cohort(handle) {
            self.cohort.last_seq
        } else {
            request.last_step
        }
    }

    /// A stream's length as of the last commit.
    ///
    /// # Errors
    /// [`Error::UnknownHandle`] or [`Error::Index`].
    pub fn length(&self, handle: i64, table: TableIdx) -> Result<i64> {
        self.layout.table_at(table)?;
        let handle = self.requests.resolve(handle)?;
        Ok(self.length_of(handle, table))
    }

    pub(crate) fn length_of(&self, handle: Handle, table: TableIdx) -> i64 {
        let written = self.requests.stream(handle, table).length;
        if !self.in_cohort(handle) {
            return written;
        }
        written + self.layout.tables()[table].span * self.cohort.ticks as i64
    }

    /// A stream's length once the step in flight has committed.
    pub(crate) fn coming_length(&self, handle: Handle, table: TableIdx) -> i64 {
        let coming = self.in_flight.as_ref().is_some_and(|step| {
            self.last_launched(handle) == step.seq
                && self.requests.stream(handle, table).reset_seq != step.seq
        });
        let span = self.layout.tables()[table].span;
        self.length_of(handle, table) + if coming { span } else { 0 }
    }

    /// A stream's pages.
    ///
    /// # Errors
    /// [`Error::UnknownHandle`] or [`Error::Index`].
    pub fn pages(&self, handle: i64, table: TableIdx) -> Result<&[i32]> {
        self.layout.table_at(table)?;
        let handle = self.requests.resolve(handle)?;
        Ok(&self.requests.stream(handle, table).pages)
    }

    /// A named column's value, if it was set.
    ///
    /// # Errors
    /// [`Error::UnknownHandle`] or [`Error::Index`].
    pub fn column(&self, handle: i64, column: usize) -> Result<Option<i64>> {
        let limit = self.layout.columns().len();
        if column >= limit {
            return Err(Error::Index {
                field: "column",
                limit,
                got: column,
            });
        }
        let handle = self.requests.resolve(handle)?;
        let is_set = self.requests.get(handle).columns_set & (1 << column) != 0;
        Ok(is_set.then(|| self.requests.value(handle, column)))
    }

    /// The slot a request holds, if any. A cache place: no decision outside this planner may read it.
    ///
    /// # Errors
    /// [`Error::UnknownHandle`].
    pub fn slot(&self, handle: i64) -> Result<Option<Slot>> {
        let handle = self.requests.resolve(handle)?;
        Ok(self.requests.get(handle).held_slot())
    }

    /// Counters, and how the slots stand.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            slots_free: self.ledger.free() as u64,
            slots_cooling: self.ledger.cooling() as u64,
            slots_held: self.ledger.held() as u64,
            committed_seq: self.committed_seq.get(),
            ..self.stats
        }
    }

    pub(crate) fn in_cohort(&self, handle: Handle) -> bool {
        self.cohort.batch.is_some() && self.requests.get(handle).cohort == self.cohort.version
    }

    pub(crate) fn in_stage(&self, handle: Handle) -> bool {
        self.stage.is_active()
            && ((self.stage.same_cohort && self.in_cohort(handle))
                || self.requests.get(handle).stage == self.stage.seq)
    }

    /// Writes the cohort's ticks out into its streams and mirrors and ends it. A step in flight keeps its rows as it
    /// recorded them. O(rows).
    pub(crate) fn break_cohort(&mut self) {
        let Some(batch) = self.cohort.batch.take() else {
            return;
        };
        let ticks = self.cohort.ticks as i64;
        for (&handle, &slot) in batch.rows.iter().zip(&self.cohort.slots) {
            let request = self.requests.get_mut(handle);
            request.cohort = 0;
            request.last_step = self.cohort.last_seq;
            self.ledger.read(slot, self.cohort.last_seq);
            for (table, spec) in self.layout.tables().iter().enumerate() {
                self.requests.stream_mut(handle, table).length += ticks * spec.span;
                self.mirror.advance(slot, table, ticks * spec.span);
            }
        }
        if let Some(step) = self.in_flight.as_mut().filter(|step| step.batch.is_none()) {
            step.batch = Some(batch);
            std::mem::swap(&mut step.slots, &mut self.cohort.slots);
        }
    }

    pub(crate) fn table_name(&self, table: TableIdx) -> String {
        self.layout.tables()[table].spec.name.clone()
    }
}
