//! Every order in which threads can take the planner's lock: `scripts/loom`. The planner, its ledger and its lock are
//! the real ones; the lock is the model's, so that each way of waiting for it is tried.

#![cfg(loom)]

mod support;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use loom::model::Builder;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use mstar_resident_core::{
    Answer, Batch, CallError, CopyRun, Device, Error, Journal, Op, PlanSeq, Planner, Shared, replay,
};
use support::ram::{Log, Ram, make};
use support::shapes::Shape;

/// Tries every order of the threads' locks; there must be at least so many, or nothing was tried.
fn every_order(least: usize, model: impl Fn() + Send + Sync + 'static) {
    let tried = Arc::new(AtomicUsize::new(0));
    let count = tried.clone();
    let mut builder = Builder::new();
    builder.preemption_bound = None;
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let tried = tried.load(Ordering::Relaxed);
    assert!(tried >= least, "{tried} orders were tried");
}

/// A planner of two rows whose requests 0 and 1 stepped once.
fn stepped(shape: &Shape, journal: Option<Arc<Journal>>) -> Arc<Shared<Ram>> {
    let shared = Arc::new(support::ram::shared(shape, journal));
    for op in [Op::SetStrict(true), Op::AddLease(2), Op::Open, Op::Open] {
        make(&shared, &op).unwrap();
    }
    for handle in [0, 1] {
        set(&shared, handle, 3);
    }
    let batch = batch(&[0, 1]);
    let seq = shared.stage(&batch, 0).unwrap().0.seq;
    shared.flush(seq, 0, |()| Ok(())).unwrap();
    shared.launch(seq, 0, 0).unwrap();
    shared.commit(seq).unwrap();
    shared
}

fn set(shared: &Shared<Ram>, handle: i64, length: i64) {
    let pages = vec![10 * handle + 1, 10 * handle + 2, 10 * handle + 3];
    let (table, handle) = (0, handle);
    let op = Op::SetStream {
        handle,
        table,
        pages,
        length,
    };
    shared.make(&op).unwrap();
}

fn batch(handles: &[i64]) -> Batch {
    Batch::try_from(handles.to_vec()).unwrap()
}

/// What became of a step that other threads may have made impossible; a fault of the planner is none of it.
fn ran(shared: &Shared<Ram>, handles: &[i64]) -> Option<PlanSeq> {
    let batch = batch(handles);
    let staged = refusable(shared.stage(&batch, 0))?.0.seq;
    let promote = Op::Promote {
        seq: staged,
        batch,
        lease: 0,
    };
    if shared.make(&promote).unwrap() != Answer::Flag(true) {
        return None;
    }
    refusable(shared.flush(staged, 0, |()| Ok(())))?;
    shared.launch(staged, 0, 0).unwrap();
    shared.commit(staged).unwrap();
    Some(staged)
}

fn refusable<T>(made: Result<T, CallError>) -> Option<T> {
    match made {
        Ok(made) => Some(made),
        Err(CallError::Refused(Error::Invariant { rule, detail })) => panic!("{rule}: {detail}"),
        Err(CallError::Refused(_)) => None,
        Err(error) => panic!("{error}"),
    }
}

/// The row of a live request on the device and in the planner's books.
fn check_row(shared: &Shared<Ram>, handle: i64) {
    let compare = |ram: &mut Ram, planner: &Planner| {
        planner.check().unwrap();
        let slot = planner.slot(handle).unwrap().unwrap().get();
        let length = planner.length(handle, 0).unwrap();
        assert_eq!(ram.device.narrow(slot)[0], length);
        let used = (length as usize).div_ceil(4);
        let pages = planner.pages(handle, 0).unwrap();
        assert_eq!(&ram.device.table(0, slot)[..used], &pages[..used]);
    };
    shared.device(compare).unwrap();
}

#[test]
fn a_plan_a_step_and_a_release_leave_a_planner_that_checks_in_every_order() {
    every_order(2_000, || {
        let shape = Shape::plain(2);
        let shared = stepped(&shape, None);
        let (plan, gpu) = (shared.clone(), shared.clone());
        let plan = thread::spawn(move || {
            let staged = refusable(plan.stage(&batch(&[1, 0]), 0));
            if let Some((info, _)) = staged {
                plan.make(&Op::DropStaged(info.seq)).unwrap();
            }
        });
        let gpu = thread::spawn(move || ran(&gpu, &[0, 1]));
        let last = shared.make(&Op::Release(1)).unwrap();
        shared.make(&Op::Check).unwrap();
        plan.join().unwrap();
        let step = gpu.join().unwrap();
        assert!(
            last == Answer::Number(1) || step.is_some(),
            "{last:?} of {step:?}"
        );
        let Answer::Stats(stats) = shared.make(&Op::Stats).unwrap() else {
            panic!("stats are stats")
        };
        assert_eq!(
            (stats.slots_held, stats.slots_cooling, stats.slots_free),
            (1, 0, 3)
        );
        assert!(ran(&shared, &[0]).is_some());
        check_row(&shared, 0);
    });
}

#[test]
fn a_stream_replaced_beside_a_step_is_what_the_next_step_reads_in_every_order() {
    every_order(1_000, || {
        let shape = Shape::plain(2);
        let shared = stepped(&shape, None);
        let (gpu, other) = (shared.clone(), shared.clone());
        let gpu = thread::spawn(move || ran(&gpu, &[0, 1]));
        let offload = thread::spawn(move || {
            other.make(&Op::Offload(1)).unwrap();
            set(&other, 1, 5);
        });
        set(&shared, 0, 7);
        gpu.join().unwrap();
        offload.join().unwrap();
        assert!(ran(&shared, &[1, 0]).is_some());
        check_row(&shared, 0);
        check_row(&shared, 1);
    });
}

#[test]
fn two_planners_that_share_a_log_wait_for_no_one_and_the_log_replays() {
    every_order(2_000, || {
        let log = Log::default();
        let journal = Arc::new(Journal::new(Box::new(log.clone())));
        let shape = Shape::plain(2);
        let first = stepped(&shape, Some(journal.clone()));
        let second = stepped(&shape, Some(journal.clone()));
        let beside = second.clone();
        let thread = thread::spawn(move || ran(&beside, &[0]));
        ran(&first, &[1]);
        second.make(&Op::Release(1)).unwrap();
        thread.join().unwrap();
        let replayed = replay(log.text().as_bytes()).unwrap();
        assert_eq!(
            (replayed.planners, replayed.calls),
            (2, journal.calls().unwrap())
        );
    });
}

/// A device whose ring is full until another thread says that a copy is done.
struct Full {
    done: Arc<AtomicBool>,
    buffer: Vec<u8>,
}

impl Device for Full {
    type Wait = Arc<AtomicBool>;

    fn pending(&mut self) -> Result<Option<Self::Wait>, String> {
        let done = self.done.load(Ordering::SeqCst);
        Ok((!done).then(|| self.done.clone()))
    }

    fn buffer(&mut self) -> &mut [u8] {
        &mut self.buffer
    }

    fn copy(&mut self, _runs: &[CopyRun], _cuda_stream: usize) -> Result<(), String> {
        Ok(())
    }

    fn launch(&mut self, _graph_exec: usize, _cuda_stream: usize) -> Result<(), String> {
        Ok(())
    }
}

#[test]
fn a_flush_that_waits_for_the_ring_lets_every_other_call_through() {
    every_order(50, || {
        let shape = Shape::plain(1);
        let planner = Planner::new(shape.layout(), 1).unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let buffer = vec![0; planner.largest_flush_bytes()];
        let full = Full {
            done: done.clone(),
            buffer,
        };
        let shared = Arc::new(Shared::new(planner, full, None));
        for op in [Op::AddLease(1), Op::Open] {
            shared.make(&op).unwrap();
        }
        let (handle, table, pages, length) = (0, 0, vec![1], 1);
        shared
            .make(&Op::SetStream {
                handle,
                table,
                pages,
                length,
            })
            .unwrap();
        let seq = shared.stage(&batch(&[0]), 0).unwrap().0.seq;
        let beside = shared.clone();
        let device = thread::spawn(move || {
            beside.make(&Op::Open).unwrap(); // would wait for good if the flush held the lock
            done.store(true, Ordering::SeqCst);
        });
        let copies = shared.flush(seq, 0, |done| {
            while !done.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            Ok(())
        });
        device.join().unwrap();
        assert_eq!(copies, Ok(3));
        shared.commit(seq).unwrap();
    });
}
