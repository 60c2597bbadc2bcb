//! What must hold between any two calls.

use std::collections::BTreeSet;

use mstar_resident_core::{Error, Planner, Slot};

use super::node::Node;

type Request = (i64, Vec<(i64, Vec<i32>)>, Vec<Option<i64>>, Option<usize>);

/// All that a caller can see of a planner, but for counts of attempts and plan numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    requests: Vec<Request>,
    free_pages: Vec<Option<u64>>,
    counts: Vec<u64>,
}

/// Looks at every request of `handles` and at the counters.
pub fn seen(planner: &Planner, handles: &[i64]) -> Seen {
    let tables = planner.layout().tables().len();
    let stream = |handle: i64, table: usize| {
        let pages = planner.pages(handle, table).unwrap().to_vec();
        (planner.length(handle, table).unwrap(), pages)
    };
    let requests = handles
        .iter()
        .map(|&handle| {
            let columns = 0..planner.layout().columns().len();
            (
                handle,
                (0..tables).map(|table| stream(handle, table)).collect(),
                columns
                    .map(|column| planner.column(handle, column).unwrap())
                    .collect(),
                planner.slot(handle).unwrap().map(Slot::get),
            )
        })
        .collect();
    let stats = planner.stats();
    let counts = vec![
        stats.steps,
        stats.failed,
        stats.whole_rows,
        stats.moved_rows,
        stats.crossings,
        stats.refreshed_lengths,
        stats.displaced,
        stats.released,
        stats.copies,
        stats.bytes,
        stats.slots_free,
        stats.slots_cooling,
        stats.slots_held,
    ];
    Seen {
        requests,
        free_pages: (0..tables)
            .map(|table| planner.free_pages(table).ok())
            .collect(),
        counts,
    }
}

impl Node {
    /// The live requests.
    pub fn live(&self) -> Vec<i64> {
        self.truth.requests.keys().copied().collect()
    }

    pub fn seen(&self) -> Seen {
        seen(&self.planner, &self.live())
    }

    /// Compares the planner with the truth and the naive slots.
    pub fn check(&self) {
        self.planner.check().unwrap();
        self.check_requests();
        self.check_slots();
        for (table, pool) in self.truth.pools.iter().enumerate() {
            let free = pool.as_ref().map(|pool| pool.free.len() as u64);
            assert_eq!(
                self.planner.free_pages(table).ok(),
                free,
                "free pages of table {table}"
            );
        }
        if let Some(staged) = &self.staged {
            assert!(
                self.planner.flush_is_empty(staged.info.seq).is_ok(),
                "the stage stands"
            );
        } else {
            let stale = mstar_resident_core::PlanSeq::from_raw(self.last_seq);
            assert!(
                self.planner.flush_is_empty(stale).is_err(),
                "no stage stands"
            );
        }
        for &handle in self.dead.iter().rev().take(4) {
            assert_eq!(
                self.planner.slot(handle),
                Err(Error::UnknownHandle { handle })
            );
        }
    }

    fn check_requests(&self) {
        for (&handle, request) in &self.truth.requests {
            for (table, stream) in request.streams.iter().enumerate() {
                assert_eq!(
                    self.planner.length(handle, table),
                    Ok(stream.length),
                    "length of {handle}"
                );
                let pages = self.planner.pages(handle, table).unwrap();
                assert!(
                    pages
                        .iter()
                        .map(|&page| i64::from(page))
                        .eq(stream.pages.iter().copied()),
                    "pages of {handle}"
                );
            }
            for (column, value) in request.columns.iter().enumerate() {
                assert_eq!(
                    self.planner.column(handle, column),
                    Ok(*value),
                    "column {column} of {handle}"
                );
            }
            let last = self.last_launched.get(&handle).copied().unwrap_or(0);
            let staged = self
                .staged
                .as_ref()
                .filter(|staged| staged.handles.contains(&handle));
            let expected = staged.map_or(last, |staged| staged.info.seq.get());
            assert_eq!(
                self.planner.last_step(handle).unwrap().get(),
                expected,
                "last step of {handle}"
            );
        }
    }

    fn check_slots(&self) {
        for &handle in self.truth.requests.keys() {
            let held = self.slots.held.get(&handle).map(|held| held.slot);
            assert_eq!(
                self.planner.slot(handle).unwrap().map(Slot::get),
                held,
                "slot of {handle}"
            );
        }
        let stats = self.planner.stats();
        let counted = (
            self.slots.free().len() as u64,
            self.slots.cooling.len() as u64,
            self.slots.held.len() as u64,
        );
        assert_eq!(
            (stats.slots_free, stats.slots_cooling, stats.slots_held),
            counted,
            "free, cooling, held"
        );
        let held: BTreeSet<usize> = self.slots.held.values().map(|held| held.slot).collect();
        assert!(
            held.iter()
                .all(|slot| (1..=self.slots.total).contains(slot))
        );
        let counts = (
            self.counts.steps,
            self.counts.failed,
            self.counts.displaced,
            self.counts.released,
            self.counts.whole_rows,
            self.counts.moved_rows,
            self.counts.crossings,
            self.counts.refreshed_lengths,
            self.counts.copies,
            self.counts.bytes,
        );
        let kept = (
            stats.steps,
            stats.failed,
            stats.displaced,
            stats.released,
            stats.whole_rows,
            stats.moved_rows,
            stats.crossings,
            stats.refreshed_lengths,
            stats.copies,
            stats.bytes,
        );
        assert_eq!(
            kept, counts,
            "steps, failed, displaced, released, rows, cells, copies"
        );
    }
}
