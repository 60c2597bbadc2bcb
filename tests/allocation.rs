//! The step path allocates nothing: stage, promote, drop, flush and commit, whatever the step sends. Requests that have
//! left keep nothing.

#![allow(unsafe_code)] // an allocator cannot be counted without being one

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use mstar_resident_core::{Batch, Planner, RowLayout, TableSpec};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: usize, freed: usize) {
    ALLOCATIONS.with(|allocations| allocations.set(allocations.get() + u64::from(bytes > 0)));
    BYTES.with(|held| held.set(held.get() + bytes as isize - freed as isize));
}

// SAFETY: every call is the system allocator's own, with the caller's arguments; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller's contract is this call's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: the caller's contract is this call's.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size, layout.size());
        // SAFETY: the caller's contract is this call's.
        unsafe { System.realloc(at, layout, new_size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations of this thread while `work` runs.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

const ROWS: usize = 16;

struct Bench {
    planner: Planner,
    buffer: Vec<u8>,
    handles: Vec<i64>,
    /// Four batches: twice as many rows as there are slots.
    batches: Vec<Batch>,
}

impl Bench {
    fn new() -> Self {
        let table = |name: &str, page_size, span| TableSpec {
            name: name.into(),
            page_size,
            pool_pages: 1000,
            max_seq_len: 300,
            span,
        };
        let tables = vec![
            table("kv", 4, 1),
            table("context", 8, 0),
            table("own", 3, 1),
        ];
        let layout = RowLayout::new(tables, vec!["offset".into(), "index".into()]).unwrap();
        let mut planner = Planner::new(layout, ROWS).unwrap();
        planner.add_lease(ROWS).unwrap();
        planner.add_lease(ROWS).unwrap();
        let handles: Vec<i64> = (0..4 * ROWS).map(|_| planner.open()).collect();
        let pages: Vec<i64> = (1..=75).collect();
        for &handle in &handles {
            for table in 0..3 {
                let count = if table == 1 { 38 } else { 75 };
                planner
                    .set_stream(handle, table, &pages[..count], 1)
                    .unwrap();
            }
            planner.set_column(0, &[handle], &[-handle]).unwrap();
            planner.set_column(1, &[handle], &[handle]).unwrap();
        }
        let batches = handles
            .chunks(ROWS)
            .map(|rows| planner.batch(rows).unwrap())
            .collect();
        let buffer = vec![0; planner.largest_flush_bytes()];
        Self {
            planner,
            buffer,
            handles,
            batches,
        }
    }

    fn step(&mut self, batch: usize, lease: usize) {
        let stage = self.planner.stage(&self.batches[batch], lease).unwrap();
        assert!(self.planner.promote(stage.seq, &self.batches[batch], lease));
        self.planner.flush(stage.seq, &mut self.buffer).unwrap();
        self.planner.commit(stage.seq).unwrap();
    }
}

#[test]
fn steady_and_crossing_steps_allocate_nothing() {
    let mut bench = Bench::new();
    assert!(
        allocations(|| drop(vec![0_u8; 64])) > 0,
        "allocations are counted"
    );
    let counted = allocations(|| {
        for step in 0..100 {
            bench.step(0, step % 2);
        }
    });
    assert_eq!(counted, 0);
    assert!(bench.planner.stats().crossings > 500);
}

#[test]
fn steps_of_other_batches_and_displaced_rows_allocate_nothing() {
    let mut bench = Bench::new();
    let counted = allocations(|| {
        for step in 0..60 {
            bench.step(step % 4, step % 2);
        }
    });
    assert_eq!(counted, 0);
    assert!(bench.planner.stats().displaced > 500);
}

#[test]
fn stages_that_are_dropped_allocate_nothing() {
    let mut bench = Bench::new();
    let counted = allocations(|| {
        for step in 0..40 {
            let ahead = bench
                .planner
                .stage(&bench.batches[(step + 1) % 4], 0)
                .unwrap();
            assert!(bench.planner.drop_staged(ahead.seq));
            bench
                .planner
                .stage(&bench.batches[(step + 2) % 4], 1)
                .unwrap();
            bench.step(step % 3, 0);
        }
    });
    assert_eq!(counted, 0);
}

#[test]
fn a_flush_of_the_largest_step_allocates_nothing() {
    let mut bench = Bench::new();
    let rows = bench.handles[..ROWS].to_vec();
    for &handle in &rows {
        for table in [0, 2] {
            bench.planner.host_step(table, &[handle], &[220]).unwrap();
        }
        bench.planner.host_step(1, &[handle], &[299]).unwrap();
    }
    bench.step(0, 0);
    let stage = bench.planner.stage(&bench.batches[0], 0).unwrap();
    bench.planner.flush(stage.seq, &mut bench.buffer).unwrap();
    bench.planner.fail(stage.seq).unwrap();
    let counted = allocations(|| bench.step(0, 0)); // every row whole, every cell of the lease
    assert_eq!(counted, 0);
}

#[test]
fn a_commit_behind_releases_in_flight_allocates_nothing() {
    let mut bench = Bench::new();
    let mut counted = 0;
    for batch in 0..4 {
        let stage = bench.planner.stage(&bench.batches[batch], 0).unwrap();
        counted += allocations(|| bench.planner.flush(stage.seq, &mut bench.buffer).unwrap());
        for row in 0..ROWS {
            bench
                .planner
                .release(bench.handles[batch * ROWS + row])
                .unwrap();
        }
        counted += allocations(|| bench.planner.commit(stage.seq).unwrap());
    }
    assert_eq!(counted, 0);
}

#[test]
fn reservations_of_steps_that_enter_no_page_allocate_nothing() {
    let spec = TableSpec {
        name: "kv".into(),
        page_size: 128,
        pool_pages: 1000,
        max_seq_len: 1280,
        span: 1,
    };
    let mut planner = Planner::new(RowLayout::new(vec![spec], Vec::new()).unwrap(), ROWS).unwrap();
    planner.own_pages(0).unwrap();
    planner.add_lease(ROWS).unwrap();
    let handles: Vec<i64> = (0..2 * ROWS).map(|_| planner.open()).collect();
    let batches = [
        planner.batch(&handles[..ROWS]).unwrap(),
        planner.batch(&handles[ROWS..]).unwrap(),
    ];
    let mut buffer = vec![0; planner.largest_flush_bytes()];
    for batch in &batches {
        planner.reserve_step(batch).unwrap();
    }
    let counted = allocations(|| {
        for step in 0..100 {
            let batch = &batches[usize::from(step % 10 == 3)];
            planner.reserve_step(batch).unwrap();
            let stage = planner.stage(batch, 0).unwrap();
            planner.flush(stage.seq, &mut buffer).unwrap();
            planner.commit(stage.seq).unwrap();
        }
    });
    assert_eq!(counted, 0);
}

/// A short request: it ends before its first plan, behind one, in flight, by an error in the plan, offloaded, or done.
fn short_request(planner: &mut Planner, buffer: &mut [u8], exit: usize) {
    let handle = planner.open();
    if exit != 3 {
        planner.set_stream(handle, 0, &[1, 2], 1).unwrap();
        planner.set_column(0, &[handle], &[5]).unwrap();
    }
    let batch = planner.batch(&[handle]).unwrap();
    let mut step = |planner: &mut Planner| {
        let seq = planner.stage(&batch, 0).unwrap().seq;
        planner.flush(seq, buffer).unwrap();
        seq
    };
    let mut in_flight = None;
    match exit {
        0 => {}
        1 => drop(planner.stage(&batch, 0).unwrap()),
        2 => in_flight = Some(step(planner)),
        3 => assert!(planner.stage(&batch, 0).is_err()),
        4 => {
            let seq = step(planner);
            planner.commit(seq).unwrap();
            planner.offload(handle).unwrap();
        }
        _ => {
            for _ in 0..3 {
                let seq = step(planner);
                planner.commit(seq).unwrap();
            }
        }
    }
    planner.release(handle).unwrap();
    if let Some(seq) = in_flight {
        planner.commit(seq).unwrap();
    }
    assert!(handle & 0xFFFF_FFFF < 2, "indices are recycled");
}

#[test]
#[cfg_attr(miri, ignore = "minutes under Miri")]
fn a_hundred_thousand_short_requests_through_every_exit_keep_no_byte() {
    let spec = TableSpec {
        name: "kv".into(),
        page_size: 4,
        pool_pages: 100,
        max_seq_len: 32,
        span: 1,
    };
    let layout = RowLayout::new(vec![spec], vec!["offset".into()]).unwrap();
    let mut planner = Planner::new(layout, 2).unwrap();
    planner.add_lease(2).unwrap();
    let mut buffer = vec![0; planner.largest_flush_bytes()];
    let mut held = 0;
    for request in 0..100_600 {
        if request == 600 {
            held = BYTES.get();
        }
        short_request(&mut planner, &mut buffer, request % 6);
    }
    assert_eq!(BYTES.get(), held, "bytes that the requests left behind");
    let stats = planner.stats();
    assert_eq!(
        (stats.slots_free, stats.slots_held, stats.slots_cooling),
        (4, 0, 0)
    );
    planner.check().unwrap();
}
