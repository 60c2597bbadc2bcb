//! Workloads of the plan bench, timed without Python. Used by `cargo bench` and by the Python bench.

use std::time::Instant;

use mstar_resident_core::{Batch, Planner, RowLayout, TableSpec};

const PAGE_SIZE: u64 = 128;

/// One kind of step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// The same batch, no crossing.
    Steady,
    /// The same batch, every row enters a new page in every step (pages of one token).
    Crossing,
    /// One request leaves and one joins in every step.
    JoinLeave,
    /// Four batches take turns on slots for two: every row is displaced and rewritten in every step.
    Displacing,
    /// Every row is stale in every step, with 1,024 used pages.
    Whole,
}

/// Every case with its name.
pub const CASES: [(&str, Case); 5] = [
    ("steady", Case::Steady),
    ("crossing", Case::Crossing),
    ("join_leave", Case::JoinLeave),
    ("displacing", Case::Displacing),
    ("whole", Case::Whole),
];

impl Case {
    /// The case of a name.
    #[allow(dead_code)] // the Python bench names cases
    pub fn named(name: &str) -> Option<Self> {
        CASES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|&(_, case)| case)
    }

    /// The names, as an error message lists them.
    #[allow(dead_code)] // as above
    pub fn names() -> String {
        CASES.map(|(name, _)| name).join(", ")
    }
}

/// What a case costs per step: stage, flush (written into host memory) and commit.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Median nanoseconds.
    pub ns_p50: f64,
    /// Mean bytes that the flush emits.
    pub bytes: f64,
}

struct Bench {
    planner: Planner,
    lease: usize,
    buffer: Vec<u8>,
    batches: Vec<Batch>,
    rows: Vec<i64>,
}

impl Bench {
    fn new(case: Case, rows: usize) -> Self {
        let page_size = if case == Case::Crossing { 1 } else { PAGE_SIZE };
        let kv = TableSpec {
            name: "kv".into(),
            page_size,
            pool_pages: 1 << 20,
            max_seq_len: 2047 * page_size,
            span: 1,
        };
        let layout = RowLayout::new(
            vec![kv],
            vec!["position_offset".into(), "recurrent_index".into()],
        )
        .unwrap();
        let mut planner = Planner::new(layout, rows).unwrap();
        let lease = planner.add_lease(rows).unwrap();
        let buffer = vec![0; planner.largest_flush_bytes()];
        let batches = if case == Case::Displacing { 4 } else { 1 };
        let handles: Vec<i64> = (0..batches * rows)
            .map(|number| open(&mut planner, case, number))
            .collect();
        let batches = handles
            .chunks(rows)
            .map(|chunk| planner.batch(chunk).unwrap())
            .collect();
        Self {
            planner,
            lease,
            buffer,
            batches,
            rows: handles,
        }
    }

    /// What the engine does between steps, outside the timed part.
    fn between(&mut self, case: Case, step: usize) {
        match case {
            Case::Steady | Case::Crossing => {
                let length = self.planner.length(self.rows[0], 0).unwrap();
                let limit = if case == Case::Crossing {
                    2000
                } else {
                    4 * PAGE_SIZE as i64 - 2
                };
                if length >= limit {
                    self.rewind(case);
                }
            }
            Case::JoinLeave => {
                let at = step % self.rows.len();
                self.planner.release(self.rows[at]).unwrap();
                self.rows[at] = open(&mut self.planner, case, step);
                self.batches[0] = self.planner.batch(&self.rows).unwrap();
            }
            // Back after one page of steps: a row keeps its count of used pages however long the bench runs.
            Case::Displacing => {
                let width = self.rows.len() / self.batches.len();
                let first = step % self.batches.len() * width;
                let members = self.rows[first..first + width].to_vec();
                self.put_back(&members, start(case) + PAGE_SIZE as i64 - 2, case);
            }
            Case::Whole => {
                let members = self.rows.clone();
                self.put_back(&members, 1024 * PAGE_SIZE as i64, case);
                self.planner.mark_stale(&self.rows).unwrap();
            }
        }
    }

    /// Puts every stream back to its start; the step behind it is not timed.
    fn rewind(&mut self, case: Case) {
        let members = self.rows.clone();
        self.put_back(&members, start(case), case);
        self.step(0);
    }

    /// Puts the streams of rows that are `limit` long back to their start.
    fn put_back(&mut self, members: &[i64], limit: i64, case: Case) {
        for &handle in members {
            if self.planner.length(handle, 0).unwrap() >= limit {
                let pages = self.planner.pages(handle, 0).unwrap().len();
                self.planner
                    .truncate(0, handle, start(case), pages)
                    .unwrap();
            }
        }
    }

    fn step(&mut self, batch: usize) {
        let stage = self
            .planner
            .stage(&self.batches[batch], self.lease)
            .unwrap();
        self.planner.flush(stage.seq, &mut self.buffer).unwrap();
        self.planner.commit(stage.seq).unwrap();
    }
}

fn start(case: Case) -> i64 {
    match case {
        Case::Crossing => 1,
        Case::Whole => 1023 * PAGE_SIZE as i64,
        _ => 3 * PAGE_SIZE as i64 + 1,
    }
}

fn open(planner: &mut Planner, case: Case, number: usize) -> i64 {
    let handle = planner.open();
    let held: i64 = match case {
        Case::Crossing => 2046,
        Case::Whole => 1030,
        _ => 8,
    };
    let pages: Vec<i64> = (0..held)
        .map(|page| (number as i64 * 31 + page) % 1_000_000 + 1)
        .collect();
    planner.set_stream(handle, 0, &pages, start(case)).unwrap();
    planner.set_column(0, &[handle], &[0]).unwrap();
    planner
        .set_column(1, &[handle], &[number as i64 + 1])
        .unwrap();
    handle
}

/// Times `steps` steps of a case at `rows` rows.
pub fn time(case: Case, rows: usize, steps: usize) -> Timing {
    let mut bench = Bench::new(case, rows);
    for warm_up in 0..8 {
        bench.between(case, warm_up);
        bench.step(warm_up % bench.batches.len());
    }
    let before = bench.planner.stats().bytes;
    let mut samples = Vec::with_capacity(steps);
    for step in 0..steps {
        bench.between(case, step);
        let batch = step % bench.batches.len();
        let begin = Instant::now();
        bench.step(batch);
        samples.push(begin.elapsed().as_nanos() as f64);
    }
    check(case, &bench, rows, steps);
    samples.sort_unstable_by(f64::total_cmp);
    let bytes = (bench.planner.stats().bytes - before) as f64 / steps as f64;
    Timing {
        ns_p50: samples[steps / 2],
        bytes,
    }
}

/// A bench that measured something else than it says is worth nothing.
fn check(case: Case, bench: &Bench, rows: usize, steps: usize) {
    let stats = bench.planner.stats();
    let (rows, steps) = (rows as u64, steps as u64);
    let holds = match case {
        Case::Steady => stats.whole_rows == rows && stats.crossings <= rows,
        Case::Crossing => stats.crossings >= rows * steps,
        Case::JoinLeave => stats.whole_rows == rows + steps + 7 && stats.displaced == 0,
        Case::Displacing => stats.displaced >= rows * steps,
        Case::Whole => stats.whole_rows == rows * (steps + 8),
    };
    assert!(
        holds,
        "{case:?} at {rows} rows did not do what it is named for: {stats:?}"
    );
    bench.planner.check().unwrap();
}
