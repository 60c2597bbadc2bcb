//! The model node: every call goes to the planner and to the truth, every step is checked cell by cell.

use std::collections::{BTreeMap, BTreeSet};

use mstar_resident_core::{Batch, Error, Handle, Op, PlanSeq, Planner, Result, StageInfo};

use super::device::Device;
use super::diff::Needs;
use super::kind;
use super::ops::{make, marks};
use super::shapes::Shape;
use super::slots::{Claim, Slots};
use super::truth::{Step, Truth};

/// The unlaunched stage, as the truth has it.
#[derive(Clone, Debug)]
pub struct Staged {
    pub info: StageInfo,
    pub lease: usize,
    pub handles: Vec<i64>,
    pub claims: Vec<Claim>,
}

/// Counts of what must have happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub steps: u64,
    pub failed: u64,
    pub displaced: u64,
    pub released: u64,
    pub whole_rows: u64,
    pub moved_rows: u64,
    pub crossings: u64,
    pub refreshed_lengths: u64,
    pub copies: u64,
    pub bytes: u64,
}

#[derive(Debug)]
pub struct Node {
    pub planner: Planner,
    pub device: Device,
    pub truth: Truth,
    pub slots: Slots,
    pub staged: Option<Staged>,
    pub step: Option<Step>,
    /// Requests whose row must be written whole although they hold one.
    pub stale: BTreeSet<i64>,
    /// Slots whose cells nobody knows: a step that wrote them failed.
    pub unknown: BTreeSet<usize>,
    pub leases_unknown: BTreeSet<usize>,
    pub last_launched: BTreeMap<i64, u64>,
    pub counts: Counts,
    pub buffer: Vec<u8>,
    /// Handles that were released.
    pub dead: Vec<i64>,
    pub last_seq: u64,
    /// Every call that may have changed the planner, refused ones too.
    pub history: Vec<Op>,
}

impl Node {
    pub fn new(shape: &Shape) -> Self {
        let mut planner = Planner::new(shape.layout(), shape.max_batch).unwrap();
        planner.set_strict(true);
        let buffer = vec![0; planner.largest_flush_bytes()];
        Self {
            planner,
            device: Device::new(shape),
            truth: Truth::new(shape),
            slots: Slots::new(2 * shape.max_batch),
            staged: None,
            step: None,
            stale: BTreeSet::new(),
            unknown: BTreeSet::new(),
            leases_unknown: BTreeSet::new(),
            last_launched: BTreeMap::new(),
            counts: Counts::default(),
            buffer,
            dead: Vec::new(),
            last_seq: 0,
            history: vec![Op::SetStrict(true)],
        }
    }

    pub fn add_lease(&mut self, bucket: usize) -> usize {
        self.device.add_lease(bucket);
        self.history.push(Op::AddLease(bucket));
        self.planner.add_lease(bucket).unwrap()
    }

    /// Makes a call. It must be refused exactly when the truth says so, and leave no trace then.
    pub fn tell(&mut self, call: &Op) -> Result<i64> {
        let refusals = self.truth.refuses(call, self.step.as_ref());
        let held_before = self.held_extents(call);
        let made = make(call, &mut self.planner);
        self.history.push(call.clone());
        match &made {
            Err(error) => {
                assert!(
                    refusals.contains(&kind(error)),
                    "{call:?}: expected {refusals:?}, got {error}"
                );
            }
            Ok(answer) => {
                assert!(
                    refusals.is_empty(),
                    "{call:?}: expected {refusals:?}, got {answer}"
                );
                self.told(call, *answer, &held_before);
            }
        }
        self.check();
        made
    }

    /// Cells that the marked request's rows hold, before a call.
    fn held_extents(&self, call: &Op) -> Vec<usize> {
        let marked = marks(call)
            .first()
            .and_then(|handle| self.slots.held.get(handle));
        marked.map_or(Vec::new(), |held| {
            let tables = 0..self.truth.tables.len();
            tables
                .map(|table| self.device.extent(table, held.slot))
                .collect()
        })
    }

    fn told(&mut self, call: &Op, answer: i64, held: &[usize]) {
        let marked = marks(call);
        if self
            .staged
            .as_ref()
            .is_some_and(|stage| stage.handles.iter().any(|row| marked.contains(row)))
        {
            self.staged = None;
        }
        match call {
            Op::Release(handle) | Op::Offload(handle) => {
                let last = self.last_launched.get(handle).copied().unwrap_or(0);
                assert_eq!(answer, last as i64, "last launched step that read {handle}");
                let in_flight = self.step.as_ref().map_or(&[][..], |step| &step.slots);
                self.counts.released += u64::from(self.slots.release(*handle, in_flight));
                self.stale.remove(handle);
                if matches!(call, Op::Release(_)) {
                    self.dead.push(*handle);
                }
            }
            Op::SetStream {
                handle,
                table,
                pages,
                ..
            } => {
                let old = &self.truth.stream(*handle, *table).pages;
                let kept = old
                    .iter()
                    .zip(pages)
                    .take_while(|(old, new)| old == new)
                    .count();
                if held.get(*table).is_some_and(|&held| kept < held) {
                    self.stale.insert(*handle);
                }
            }
            Op::Truncate {
                handle,
                table,
                pages,
                ..
            } if held.get(*table).is_some_and(|held| pages < held) => {
                self.stale.insert(*handle);
            }
            Op::MarkStale(handles) => {
                self.stale.extend(
                    handles
                        .iter()
                        .filter(|handle| self.slots.held.contains_key(handle)),
                );
            }
            _ => {}
        }
        self.truth.tell(call, answer, &self.planner, &mut self.step);
    }

    pub fn batch(&mut self, handles: &[i64]) -> Batch {
        self.planner.batch(handles).unwrap()
    }

    /// Plans a step. It must be refused exactly when the truth says so.
    pub fn stage(&mut self, handles: &[i64], lease: usize) -> Result<StageInfo> {
        let batch = self.planner.batch(handles)?;
        self.stage_batch(&batch, lease)
    }

    pub fn stage_batch(&mut self, batch: &Batch, lease: usize) -> Result<StageInfo> {
        let handles: Vec<i64> = batch.handles().iter().map(|handle| handle.pack()).collect();
        let mut refusals = Vec::new();
        if self.step.is_some() {
            refusals.push("NotReady");
        } else if lease >= self.device.leases.len() {
            refusals.push("Index");
        } else if handles.len() > self.device.leases[lease].bucket {
            refusals.push("BatchSize");
        } else {
            refusals = self.truth.refuses_step(&handles);
            self.staged = None;
        }
        let made = self.planner.stage(batch, lease);
        self.history.push(Op::Stage {
            batch: batch.clone(),
            lease,
        });
        match &made {
            Err(error) => {
                assert!(
                    refusals.contains(&kind(error)),
                    "{handles:?}: expected {refusals:?}, got {error}"
                );
            }
            Ok(info) => {
                assert!(
                    refusals.is_empty(),
                    "{handles:?}: expected {refusals:?}, got a stage"
                );
                assert!(info.seq.get() > self.last_seq, "plan numbers only grow");
                self.last_seq = info.seq.get();
                self.check_stage_info(&handles, info);
                self.staged = Some(Staged {
                    info: *info,
                    lease,
                    claims: self.slots.claims(&handles),
                    handles,
                });
            }
        }
        self.check();
        made
    }

    fn check_stage_info(&self, handles: &[i64], info: &StageInfo) {
        let (mut whole, mut cells) = (0, 0);
        for &handle in handles {
            match self.needs(handle) {
                Needs::Nothing => {}
                Needs::Cells(needed) => cells += needed.len(),
                Needs::Whole => whole += 1,
            }
        }
        assert_eq!(
            (info.whole_rows, info.cells),
            (whole, cells),
            "whole rows and cells of {handles:?}"
        );
    }

    pub fn commit(&mut self) {
        let step = self.step.take().expect("a step in flight");
        self.planner.commit(PlanSeq::from_raw(step.seq)).unwrap();
        self.history.push(Op::Commit(PlanSeq::from_raw(step.seq)));
        self.counts.steps += 1;
        self.end(&step, true);
    }

    /// Fails the step in flight and returns the live requests of its rows.
    pub fn fail(&mut self) -> Vec<i64> {
        let step = self.step.take().expect("a step in flight");
        let live = self.planner.fail(PlanSeq::from_raw(step.seq)).unwrap();
        self.history.push(Op::Fail(PlanSeq::from_raw(step.seq)));
        let live: Vec<i64> = live.into_iter().map(Handle::pack).collect();
        let rows = step.handles.iter().copied();
        let expected: Vec<i64> = rows
            .filter(|handle| self.truth.requests.contains_key(handle))
            .collect();
        assert_eq!(live, expected, "live requests of the failed step");
        self.unknown.extend(&step.slots);
        self.leases_unknown.insert(step.lease);
        self.counts.failed += 1;
        self.end(&step, false);
        live
    }

    fn end(&mut self, step: &Step, landed: bool) {
        self.truth.end(step, landed);
        self.slots.cooling.clear();
        assert_eq!(self.planner.committed_seq().get(), step.seq);
        self.check();
    }

    pub fn drop_staged(&mut self) {
        let staged = self.staged.take().expect("a stage");
        assert!(self.planner.drop_staged(staged.info.seq));
        self.history.push(Op::DropStaged(staged.info.seq));
        self.check();
    }

    /// The error of flushing or promoting nothing.
    pub fn refuses_flush(&mut self, seq: PlanSeq) -> Error {
        self.planner.flush(seq, &mut self.buffer).unwrap_err()
    }
}
