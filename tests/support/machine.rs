//! A node under arbitrary calls, beside a twin that is told only what counted: no refused call, no dropped stage.

use mstar_resident_core::{CopyRun, PlanSeq, Planner, StageInfo};

use super::check::seen;
use super::node::Node;
use super::ops::make;
use super::random::Random;
use super::shapes::{Shape, used, width};
use mstar_resident_core::Op;

/// The leases of every machine, as parts of the widest batch: a pair of buffers, and a narrower bucket.
const BUCKETS: [usize; 3] = [1, 1, 2];

#[derive(Debug)]
pub struct Machine {
    pub node: Node,
    twin: Planner,
    twin_buffer: Vec<u8>,
    /// The stage that the twin makes if it is flushed, and what it was told since.
    twin_stage: Option<(Vec<i64>, usize)>,
    twin_calls: Vec<Op>,
    /// Copies and values of every flush.
    pub sent: Vec<(Vec<CopyRun>, Vec<u8>)>,
    /// Batches to choose from; the last one was stepped last.
    batches: Vec<Vec<i64>>,
}

impl Machine {
    /// `owned` lists the tables whose pages the planner owns.
    pub fn new(shape: &Shape, owned: &[usize]) -> Self {
        let mut node = Node::new(shape);
        let mut twin = Planner::new(shape.layout(), shape.max_batch).unwrap();
        twin.set_strict(true);
        for part in BUCKETS {
            let bucket = shape.max_batch.div_ceil(part);
            node.add_lease(bucket);
            twin.add_lease(bucket).unwrap();
        }
        for &table in owned {
            node.tell(&Op::OwnPages(table)).unwrap();
            twin.own_pages(table).unwrap();
        }
        Self {
            twin_buffer: vec![0; twin.largest_flush_bytes()],
            node,
            twin,
            twin_stage: None,
            twin_calls: Vec::new(),
            sent: Vec::new(),
            batches: Vec::new(),
        }
    }

    /// Makes a call on the node and, if it was not refused, on the twin. A refused one leaves no trace.
    pub fn tell(&mut self, call: &Op) -> Option<i64> {
        let before = self.node.seen();
        let made = self.node.tell(call).ok();
        if made.is_some() {
            self.twin_calls.push(call.clone());
        } else {
            assert_eq!(
                self.node.seen(),
                before,
                "{call:?} was refused and left a trace"
            );
        }
        self.follow();
        made
    }

    /// Lets the twin catch up unless the fate of a stage is open.
    pub fn follow(&mut self) {
        if self.node.staged.is_some() {
            return;
        }
        self.twin_stage = None;
        self.catch_up();
        assert_eq!(
            seen(&self.twin, &self.node.live()),
            self.node.seen(),
            "the twin differs"
        );
    }

    fn catch_up(&mut self) {
        for call in self.twin_calls.drain(..) {
            make(&call, &mut self.twin).unwrap();
        }
    }

    /// Stages a step; a refused one leaves no trace but the older stage's end.
    pub fn stage(&mut self, handles: &[i64], lease: usize) -> Option<StageInfo> {
        let before = self.node.seen();
        let made = self.node.stage(handles, lease).ok();
        assert_eq!(
            self.node.seen(),
            before,
            "a stage changes nothing before its first copy"
        );
        if made.is_some() {
            self.twin_stage = None;
            self.catch_up();
            self.twin_stage = Some((handles.to_vec(), lease));
        } else {
            self.follow();
        }
        made
    }

    /// Launches the unlaunched stage on the node, makes and launches it on the twin, and compares every byte.
    pub fn launch(&mut self, cut: Option<usize>) {
        let staged = self.node.staged.clone().expect("a stage");
        match cut {
            None => {
                self.node.launch();
            }
            Some(landed) => self.node.launch_cut(landed),
        }
        let (handles, lease) = self.twin_stage.take().expect("the twin's stage");
        let batch = self.twin.batch(&handles).unwrap();
        let twin = self.twin.stage(&batch, lease).unwrap();
        assert_eq!(
            (twin.whole_rows, twin.cells),
            (staged.info.whole_rows, staged.info.cells)
        );
        self.catch_up();
        self.twin_buffer.fill(0xA5);
        self.twin.flush(twin.seq, &mut self.twin_buffer).unwrap();
        assert_eq!(
            self.twin.copies(),
            self.node.planner.copies(),
            "copies after stages that left no trace"
        );
        let sent = gather(self.node.planner.copies(), &self.node.buffer);
        assert_eq!(
            gather(self.twin.copies(), &self.twin_buffer),
            sent,
            "bytes after stages that left no trace"
        );
        self.sent.push((self.node.planner.copies().to_vec(), sent));
        self.batches.push(handles);
        if cut.is_some() {
            self.fail();
        }
    }

    pub fn commit(&mut self) {
        let seq = self.twin_in_flight();
        self.node.commit();
        self.twin.commit(seq).unwrap();
        self.follow();
    }

    pub fn fail(&mut self) {
        let seq = self.twin_in_flight();
        self.node.fail();
        self.twin.fail(seq).unwrap();
        self.follow();
    }

    /// The twin's step in flight, named by the refusal of another one.
    fn twin_in_flight(&mut self) -> PlanSeq {
        match self.twin.commit(PlanSeq::NONE).unwrap_err() {
            mstar_resident_core::Error::NotInFlight { in_flight, .. } => {
                PlanSeq::from_raw(in_flight)
            }
            other => panic!("{other}"),
        }
    }

    /// Pages that a stream does not name yet.
    pub fn fresh_pages(
        &self,
        random: &mut Random,
        handle: i64,
        table: usize,
        count: usize,
    ) -> Vec<i64> {
        let held = self
            .node
            .truth
            .requests
            .get(&handle)
            .map(|request| &request.streams[table].pages);
        let all: Vec<i64> = (1..=self.node.truth.tables[table].pool_pages as i64)
            .filter(|page| held.is_none_or(|held| !held.contains(page)))
            .collect();
        random.some(&all, count)
    }

    pub fn owned(&self, table: usize) -> bool {
        self.node.truth.pools[table].is_some()
    }

    /// Gives a stream the pages that `added` more tokens need.
    pub fn make_room(&mut self, random: &mut Random, handle: i64, table: usize, added: i64) {
        let Some(request) = self.node.truth.requests.get(&handle) else {
            return;
        };
        let (stream, page_size) = (
            &request.streams[table],
            self.node.truth.tables[table].page_size,
        );
        let needed = (stream.length + added + 1 + page_size as i64 - 1) / page_size as i64;
        let missing = needed - stream.pages.len() as i64;
        if self.owned(table) {
            self.tell(&Op::Reserve {
                table,
                handles: vec![handle],
                tokens: vec![added],
            });
        } else if missing > 0 {
            let pages = self.fresh_pages(random, handle, table, missing as usize);
            self.tell(&Op::AppendPages {
                table,
                handles: vec![handle],
                counts: vec![pages.len() as i64],
                pages,
            });
        }
    }

    /// Gives a request what its next step needs: room in its tables, pages, columns.
    pub fn feed(&mut self, random: &mut Random, handle: i64) {
        for table in 0..self.node.truth.tables.len() {
            let spec = self.node.truth.tables[table].clone();
            let stream = self.node.truth.stream(handle, table).clone();
            if stream.released_tokens || used(&spec, stream.length) > width(&spec) {
                if self.owned(table) {
                    self.tell(&Op::Offload(handle));
                } else {
                    let pages = self.fresh_pages(random, handle, table, 1);
                    self.tell(&Op::SetStream {
                        handle,
                        table,
                        pages,
                        length: 1,
                    });
                }
            }
            let stream = self.node.truth.stream(handle, table);
            let missing = used(&spec, stream.length).saturating_sub(stream.pages.len());
            if missing > 0 && self.owned(table) {
                self.tell(&Op::Reserve {
                    table,
                    handles: vec![handle],
                    tokens: vec![spec.span as i64],
                });
            } else if missing > 0 {
                let pages = self.fresh_pages(random, handle, table, missing);
                self.tell(&Op::AppendPages {
                    table,
                    handles: vec![handle],
                    counts: vec![missing as i64],
                    pages,
                });
            }
        }
        for column in 0..self.node.truth.columns {
            if self.node.truth.requests[&handle].columns[column].is_none() {
                self.tell(&Op::SetColumn {
                    column,
                    handles: vec![handle],
                    values: vec![random.below(3) as i64],
                });
            }
        }
    }

    /// The batch that stepped last, if all of it is live.
    pub fn last_batch(&self) -> Option<Vec<i64>> {
        let live = &self.node.truth.requests;
        self.batches
            .last()
            .filter(|batch| batch.iter().all(|handle| live.contains_key(handle)))
            .cloned()
    }

    /// Brings whatever is open to an end.
    pub fn settle(&mut self, random: &mut Random) {
        if self.node.step.is_some() {
            if random.once_in(8) {
                self.fail();
            } else {
                self.commit();
            }
        }
    }
}

/// The values of copies, one after the other.
pub fn gather(copies: &[CopyRun], buffer: &[u8]) -> Vec<u8> {
    copies
        .iter()
        .flat_map(|run| &buffer[run.from_bytes..run.from_bytes + run.bytes])
        .copied()
        .collect()
}
