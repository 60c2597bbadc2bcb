//! One arbitrary operation on a machine: every public call, valid ones and others, at every point of a step's life.

use mstar_resident_core::PlanSeq;

use super::machine::Machine;
use super::random::Random;
use mstar_resident_core::Op;

/// What an operation does; a kind that stands twice comes twice as often.
const KINDS: &[Kind] = &[
    Kind::Open,
    Kind::Open,
    Kind::Release,
    Kind::Offload,
    Kind::SetStream,
    Kind::SetStream,
    Kind::Append,
    Kind::HostStep,
    Kind::HostStep,
    Kind::Truncate,
    Kind::Truncate,
    Kind::SetColumn,
    Kind::UnsetColumn,
    Kind::MarkStale,
    Kind::MarkReleased,
    Kind::Reserve,
    Kind::ReserveStep,
    Kind::Fork,
    Kind::Own,
    Kind::Stage,
    Kind::Stage,
    Kind::Stage,
    Kind::StageAgain,
    Kind::StageAgain,
    Kind::Promote,
    Kind::Drop,
    Kind::Launch,
    Kind::Launch,
    Kind::Launch,
    Kind::LaunchCut,
    Kind::Settle,
    Kind::Settle,
    Kind::Settle,
    Kind::Steps,
    Kind::Steps,
    Kind::Steps,
    Kind::Steps,
    Kind::Steps,
    Kind::Steps,
    Kind::Misuse,
];

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Open,
    Release,
    Offload,
    SetStream,
    Append,
    HostStep,
    Truncate,
    SetColumn,
    UnsetColumn,
    MarkStale,
    MarkReleased,
    Reserve,
    ReserveStep,
    Fork,
    Own,
    Stage,
    StageAgain,
    Promote,
    Drop,
    Launch,
    LaunchCut,
    Settle,
    Steps,
    Misuse,
}

/// How many kinds there are.
pub const COUNT: usize = KINDS.len();

impl Machine {
    /// Does operation `kind`, its choices drawn from `random`.
    pub fn operate(&mut self, kind: usize, random: &mut Random) {
        match KINDS[kind] {
            Kind::Open => self.open_request(random),
            Kind::Stage => self.stage_some(random),
            Kind::StageAgain => self.stage_last(random),
            Kind::Promote => self.promote(random),
            Kind::Drop => self.drop_some(random),
            Kind::Launch if self.node.staged.is_some() => self.launch(None),
            Kind::LaunchCut if self.node.staged.is_some() => self.launch(Some(random.below(4))),
            Kind::Settle | Kind::Launch | Kind::LaunchCut => self.settle(random),
            Kind::Steps => self.several_steps(random),
            Kind::Misuse => self.misuse(random),
            Kind::HostStep => self.host_step(random),
            kind => {
                let call = self.call(kind, random);
                self.tell(&call);
            }
        }
    }

    /// Opens a request and gives it streams and columns that step soon.
    pub fn open_request(&mut self, random: &mut Random) {
        if self.node.truth.requests.len() > 20 {
            return;
        }
        let handle = self.tell(&Op::Open).unwrap();
        for table in 0..self.node.truth.tables.len() {
            if !self.owned(table) {
                let count = 1 + random.below(3);
                let pages = self.fresh_pages(random, handle, table, count);
                let length = random.below(count * self.page_size(table) as usize) as i64;
                self.tell(&Op::SetStream {
                    handle,
                    table,
                    pages,
                    length,
                });
            }
        }
    }

    /// A host-planned step: pages first, mostly, then tokens.
    fn host_step(&mut self, random: &mut Random) {
        let call = self.call(Kind::HostStep, random);
        if let Op::HostStep {
            table,
            handles,
            tokens,
        } = &call
            && *table < self.node.truth.tables.len()
            && !random.once_in(5)
        {
            for (&handle, &added) in handles.iter().zip(tokens) {
                self.make_room(random, handle, *table, added.clamp(0, 8));
            }
        }
        self.tell(&call);
    }

    fn stage_some(&mut self, random: &mut Random) {
        let widest = self.node.truth.max_batch;
        let count = if random.once_in(2) {
            widest
        } else {
            1 + random.below(widest)
        };
        let mut handles = random.some(&self.node.live(), count);
        if self.node.step.is_none() && !random.once_in(6) {
            for &handle in &handles {
                self.feed(random, handle);
            }
        }
        if random.once_in(15) {
            handles.push(self.any_handle(random));
        }
        let beyond = usize::from(random.once_in(10));
        let lease = random.below(self.node.device.leases.len() + beyond);
        self.stage(&handles, lease);
    }

    /// The batch that stepped last, in its order, perhaps reordered.
    fn stage_last(&mut self, random: &mut Random) {
        let Some(mut batch) = self.last_batch() else {
            return self.stage_some(random);
        };
        if random.once_in(6) {
            batch.reverse();
        }
        if self.node.step.is_none() && !random.once_in(8) {
            for &handle in &batch {
                self.feed(random, handle);
            }
        }
        let fits = |&lease: &usize| self.node.device.leases[lease].bucket >= batch.len();
        let leases: Vec<usize> = (0..self.node.device.leases.len()).filter(fits).collect();
        let lease = random.pick(&leases);
        self.stage(&batch, lease);
    }

    /// Promotes the stage for the same step, or for one that differs in one thing.
    fn promote(&mut self, random: &mut Random) {
        let Some(staged) = self.node.staged.clone() else {
            return;
        };
        let (mut handles, mut lease, mut seq) =
            (staged.handles.clone(), staged.lease, staged.info.seq);
        match random.below(6) {
            0 => handles.reverse(),
            1 => handles.truncate(1),
            2 => lease += 1,
            3 => seq = PlanSeq::from_raw(seq.get() - 1),
            _ => {}
        }
        let batch = self.node.batch(&handles);
        let equal = handles == staged.handles && lease == staged.lease && seq == staged.info.seq;
        assert_eq!(self.node.planner.promote(seq, &batch, lease), equal);
        self.node.history.push(Op::Promote { seq, batch, lease });
        self.node.check();
    }

    fn drop_some(&mut self, random: &mut Random) {
        if self.node.staged.is_some() && !random.once_in(3) {
            self.node.drop_staged();
        } else {
            let seq = self
                .node
                .staged
                .as_ref()
                .map_or(self.node.last_seq, |staged| staged.info.seq.get() + 1);
            assert!(!self.node.planner.drop_staged(PlanSeq::from_raw(seq)));
        }
        self.follow();
    }

    /// A few whole steps of one batch.
    fn several_steps(&mut self, random: &mut Random) {
        self.settle(random);
        self.stage_some(random);
        for _ in 0..random.below(6) {
            if self.node.staged.is_none() {
                return;
            }
            self.launch(None);
            self.commit();
            self.stage_last(random);
        }
    }

    /// Calls that name a step which is not there.
    fn misuse(&mut self, random: &mut Random) {
        let before = self.node.seen();
        let open = self.node.step.as_ref().map(|step| step.seq);
        let other = PlanSeq::from_raw(self.node.last_seq + 1 + random.below(3) as u64);
        assert!(self.node.planner.commit(other).is_err());
        assert!(self.node.planner.fail(other).is_err());
        assert!(
            self.node
                .refuses_flush(other)
                .to_string()
                .contains("dropped")
        );
        if let Some(seq) = open {
            assert!(
                self.node
                    .refuses_flush(PlanSeq::from_raw(seq))
                    .to_string()
                    .contains("flushed")
            );
        }
        if let Some(staged) = self.node.staged.clone() {
            assert!(self.node.planner.commit(staged.info.seq).is_err());
            if !self.node.planner.flush_is_empty(staged.info.seq).unwrap() {
                let least = self.node.planner.largest_flush_bytes();
                let short = &mut vec![0; least - 1][..];
                assert!(self.node.planner.flush(staged.info.seq, short).is_err());
            }
        }
        assert!(self.node.planner.batch(&[]).is_err());
        let too_many: Vec<i64> = (0..=self.node.truth.max_batch as i64).collect();
        assert!(self.node.planner.batch(&too_many).is_err());
        assert_eq!(self.node.seen(), before, "a misused call left a trace");
        self.node.check();
    }
}
