//! Three threads on one planner (plan, GPU, release), the invariants checked all along, every row after every round.

mod support;

use std::sync::{Arc, Mutex};
use std::thread;

use mstar_resident_core::{
    Answer, Batch, CallError, Error, Journal, Op, PlanSeq, Shared, StageInfo, replay,
};
use support::ram::{Log, Ram, make, shared};
use support::random::Random;
use support::shapes::{Shape, used};

const ROWS: usize = 3;
const LONGEST: i64 = 60;

struct Stage {
    info: StageInfo,
    batch: Batch,
    lease: usize,
}

struct Threads {
    shape: Shape,
    shared: Shared<Ram>,
    live: Mutex<Vec<i64>>,
    staged: Mutex<Option<Stage>>,
}

/// What a call answered; `None` if another thread's call made it wrong, which must never be a fault of the planner.
fn asked<T>(made: Result<T, CallError>) -> Option<T> {
    match made {
        Ok(answer) => Some(answer),
        Err(CallError::Refused(Error::Invariant { .. } | Error::FlushBuffer { .. })) => {
            panic!("{}", made.err().unwrap())
        }
        Err(CallError::Refused(_)) => None,
        Err(error) => panic!("{error}"),
    }
}

/// What a thread does again and again; `None` where another thread's call made it impossible.
type Work = fn(&Threads, &mut Random) -> Option<()>;

impl Threads {
    fn new(journal: Option<Arc<Journal>>) -> Self {
        let shape = Shape::with_context(ROWS);
        let threads = Self {
            shared: shared(&shape, journal),
            shape,
            live: Mutex::new(Vec::new()),
            staged: Mutex::new(None),
        };
        threads.make(&Op::SetStrict(true));
        for bucket in [ROWS, ROWS] {
            threads.make(&Op::AddLease(bucket));
        }
        threads
    }

    fn make(&self, op: &Op) -> Option<Answer> {
        asked(make(&self.shared, op))
    }

    fn number(&self, op: &Op) -> Option<i64> {
        match self.make(op)? {
            Answer::Number(number) => Some(number),
            other => panic!("{other:?} is no number"),
        }
    }

    fn some(&self, random: &mut Random, count: usize) -> Vec<i64> {
        random.some(&self.live.lock().unwrap(), count)
    }

    fn open(&self, random: &mut Random) {
        let handle = self.number(&Op::Open).unwrap();
        self.refill(random, handle);
        self.live.lock().unwrap().push(handle);
    }

    fn refill(&self, random: &mut Random, handle: i64) {
        for table in 0..2 {
            let first = 1 + random.below(900) as i64;
            self.make(&Op::SetStream {
                handle,
                table,
                pages: vec![first, first + 1],
                length: 1 + random.below(7) as i64,
            });
        }
    }

    /// Gives a stream the page that its next token needs.
    fn feed(&self, handle: i64) -> Option<()> {
        let length = self.number(&Op::Length { handle, table: 0 })?;
        let Answer::Numbers(pages) = self.make(&Op::Pages { handle, table: 0 })? else {
            panic!("pages are numbers")
        };
        if length >= LONGEST {
            self.make(&Op::Truncate {
                table: 0,
                handle,
                length: 1,
                pages: 1,
            });
        } else if length == 4 * pages.len() as i64 {
            self.make(&Op::AppendPages {
                table: 0,
                handles: vec![handle],
                counts: vec![1],
                pages: vec![pages.last().map_or(1, |page| page % 1000 + 1)],
            });
        }
        Some(())
    }

    fn stage(&self, batch: &Batch, lease: usize) -> Option<Stage> {
        let (info, bucket) = asked(self.shared.stage(batch, lease))?;
        assert_eq!(bucket, ROWS);
        Some(Stage {
            info,
            batch: batch.clone(),
            lease,
        })
    }

    fn plan_ahead(&self, random: &mut Random) -> Option<()> {
        let handles = self.some(random, ROWS);
        for &handle in &handles {
            self.feed(handle)?;
        }
        let Answer::Batch(batch) = self.make(&Op::Batch(handles))? else {
            panic!("a batch is a batch")
        };
        *self.staged.lock().unwrap() = self.stage(&batch, random.below(2));
        Some(())
    }

    fn run_step(&self, random: &mut Random) -> Option<()> {
        let ahead = self.staged.lock().unwrap().take()?;
        let (batch, lease) = (ahead.batch.clone(), ahead.lease);
        let seq = ahead.info.seq;
        let stands = self.make(&Op::Promote {
            seq,
            batch: batch.clone(),
            lease,
        });
        let stage = if stands == Some(Answer::Flag(true)) {
            ahead
        } else {
            self.stage(&batch, lease)?
        };
        let seq = stage.info.seq;
        asked(self.shared.flush(seq, 0, |()| Ok(())))?;
        asked(self.shared.launch(seq, lease, 0)).expect("nobody else ends the step in flight");
        let ended = if random.once_in(12) {
            make(&self.shared, &Op::Fail(seq)).map(|_| ())
        } else {
            self.shared.commit(seq)
        };
        asked(ended).expect("nobody else ends the step in flight");
        Some(())
    }

    fn change(&self, random: &mut Random) -> Option<()> {
        let handle = self.some(random, 1).pop();
        let (Some(handle), false) = (handle, random.once_in(4)) else {
            self.open(random);
            return Some(());
        };
        match random.below(6) {
            0 | 1 => {
                self.live.lock().unwrap().retain(|&live| live != handle);
                self.make(&Op::Release(handle)).unwrap();
            }
            2 => {
                self.make(&Op::Offload(handle)).unwrap();
                self.refill(random, handle);
            }
            3 => drop(self.make(&Op::MarkStale(vec![handle]))),
            4 => drop(self.make(&Op::HostStep {
                table: 0,
                handles: vec![handle],
                tokens: vec![1],
            })),
            _ => self.refill(random, handle),
        }
        self.make(&Op::Check).unwrap();
        Some(())
    }

    fn round(&self, seed: u64) {
        let works: [(u64, Work); 3] = [
            (1, Self::plan_ahead),
            (2, Self::run_step),
            (3, Self::change),
        ];
        thread::scope(|scope| {
            for (thread, work) in works {
                scope.spawn(move || {
                    let mut random = Random::new(seed * 3 + thread);
                    for _ in 0..12 {
                        work(self, &mut random);
                        thread::yield_now();
                    }
                });
            }
        });
        self.make(&Op::Check).unwrap();
        self.check_rows();
    }

    /// Steps every live request once and compares its row on the device with its streams.
    fn check_rows(&self) {
        let live = self.live.lock().unwrap().clone();
        for rows in live.chunks(ROWS) {
            rows.iter().for_each(|&row| self.feed(row).unwrap());
            let batch = Batch::try_from(rows.to_vec()).unwrap();
            let seq = self.stage(&batch, 0).unwrap().info.seq;
            asked(self.shared.flush(seq, 0, |()| Ok(()))).unwrap();
            asked(self.shared.launch(seq, 0, 0)).unwrap();
            self.shared.commit(seq).unwrap();
            for &handle in rows {
                self.check_row(handle, seq);
            }
        }
        let Some(Answer::Stats(stats)) = self.make(&Op::Stats) else {
            panic!("stats are stats")
        };
        assert_eq!(stats.slots_cooling, 0);
        assert!(stats.slots_held <= live.len() as u64);
        let stands = self.shared.device(|ram, _| ram.guards_stand()).unwrap();
        assert!(stands, "a flush wrote around its buffer");
    }

    fn check_row(&self, handle: i64, seq: PlanSeq) {
        let compare = |ram: &mut Ram, planner: &mstar_resident_core::Planner| {
            assert_eq!(planner.last_step(handle).unwrap(), seq);
            let slot = planner.slot(handle).unwrap().unwrap().get();
            for (table, spec) in self.shape.tables.iter().enumerate() {
                let length = planner.length(handle, table).unwrap();
                assert_eq!(ram.device.narrow(slot)[table], length, "length of {handle}");
                let read = used(spec, length - spec.span as i64);
                let pages = &planner.pages(handle, table).unwrap()[..read];
                let (row, tail) = ram.device.table(table, slot).split_at(read);
                assert_eq!(row, pages, "pages of {handle}");
                assert!(tail.iter().all(|&page| page == 0), "tail of {handle}");
            }
        };
        self.shared.device(compare).unwrap();
    }
}

fn run(rounds: u64) {
    let log = Log::default();
    let journal = Arc::new(Journal::new(Box::new(log.clone())));
    let threads = Threads::new(Some(journal.clone()));
    for _ in 0..6 {
        threads.open(&mut Random::new(1));
    }
    for round in 0..rounds {
        threads.round(round);
    }
    let replayed = replay(log.text().as_bytes()).unwrap();
    assert_eq!(replayed.calls, journal.calls().unwrap());
    let Some(Answer::Stats(stats)) = threads.make(&Op::Stats) else {
        panic!("stats are stats")
    };
    for (what, count) in [
        ("promoted", stats.promoted),
        ("dropped", stats.dropped),
        ("released", stats.released),
        ("displaced", stats.displaced),
    ] {
        assert!(count > rounds / 4, "{what}: {count} in {rounds} rounds");
    }
}

#[test]
fn three_threads_leave_every_row_true_and_their_log_replays() {
    run(200);
}

#[test]
#[ignore = "ten seconds"]
fn three_threads_leave_every_row_true_for_ten_thousand_rounds() {
    run(10_000);
}
