//! Checks of what must hold after every call. A broken one is a fault of the planner.

use crate::error::{Error, Result};
use crate::ids::Slot;
use crate::planner::Planner;

impl Planner {
    /// Checks every invariant that can be checked between calls: the partition of the slots, holders and requests
    /// naming each other, the one unlaunched stage and the one step in flight, page references. O(slots + pages).
    ///
    /// # Errors
    /// [`Error::Invariant`] names the rule that is broken.
    pub fn check(&self) -> Result<()> {
        self.ledger.check()?;
        self.check_holders()?;
        self.check_cooling()?;
        self.check_pools()
    }

    fn check_holders(&self) -> Result<()> {
        for number in 1..=self.ledger.slots() {
            let slot = Slot::new(number);
            let Some(holder) = self.ledger.holder(slot) else {
                continue;
            };
            if !self.requests.is_live(holder) || self.requests.get(holder).slot != slot {
                return broken(
                    "partition",
                    format!("slot {number} is held by {holder:?}, which does not hold it"),
                );
            }
        }
        for handle in self.requests.live() {
            let request = self.requests.get(handle);
            let Some(slot) = request.held_slot() else {
                continue;
            };
            if self.ledger.holder(slot) != Some(handle) {
                return broken(
                    "partition",
                    format!(
                        "{handle:?} holds slot {} and the ledger differs",
                        slot.get()
                    ),
                );
            }
            if request.stale || self.mirror.is_unknown(slot) {
                continue;
            }
            for table in 0..self.layout.tables().len() {
                let (extent, pages) = (
                    self.mirror.extent(slot, table),
                    &self.requests.stream(handle, table).pages,
                );
                if extent > pages.len() {
                    return broken(
                        "truth",
                        format!("{handle:?} is not stale and has lost pages that its row names"),
                    );
                }
            }
        }
        Ok(())
    }

    fn check_cooling(&self) -> Result<()> {
        if self.in_flight.is_none() && self.ledger.cooling() > 0 {
            return broken(
                "cooling",
                "a slot cools and no step is in flight".to_owned(),
            );
        }
        if self.in_flight.is_some() && self.stage.is_active() {
            return broken(
                "never refuses",
                "a stage was made while a step is in flight".to_owned(),
            );
        }
        Ok(())
    }

    fn check_pools(&self) -> Result<()> {
        for (table, pool) in self.pools.iter().enumerate() {
            let Some(pool) = pool else { continue };
            let mut named = vec![0_u32; self.layout.tables()[table].spec.pool_pages as usize + 1];
            for handle in self.requests.live() {
                for &page in &self.requests.stream(handle, table).pages {
                    named[page as usize] += 1;
                }
            }
            pool.check(&named)?;
        }
        Ok(())
    }

    /// Checks that the mirror of every row of the step in flight equals its streams. O(rows).
    pub(crate) fn check_truth(&self) -> Result<()> {
        let Some(batch) = &self.cohort.batch else {
            return Ok(());
        };
        for (&handle, &slot) in batch.rows.iter().zip(&self.cohort.slots) {
            let ticks = self.cohort.ticks as i64;
            for (table, spec) in self.layout.tables().iter().enumerate() {
                let length = self.length_of(handle, table);
                let mirrored = self.mirror.length(slot, table) + ticks * spec.span;
                let (used, extent) = (
                    spec.used_pages(length) as usize,
                    self.mirror.extent(slot, table),
                );
                if mirrored != length || used != extent {
                    let detail = format!(
                        "{handle:?} in slot {}, table {table}: length {length}, mirrored {mirrored}; used cells {used}, mirrored {extent}",
                        slot.get()
                    );
                    return broken("truth", detail);
                }
            }
            for column in 0..self.layout.columns().len() {
                if self.mirror.value(slot, column) != self.requests.value(handle, column) {
                    return broken(
                        "truth",
                        format!("{handle:?} in slot {}, column {column} differs", slot.get()),
                    );
                }
            }
        }
        Ok(())
    }
}

fn broken(rule: &'static str, detail: String) -> Result<()> {
    Err(Error::Invariant { rule, detail })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{RowLayout, TableSpec};
    use crate::stage::Batch;

    type Break = (&'static str, fn(&mut Planner));

    /// Two requests, stepped; the second one's step is in flight.
    fn planner() -> Planner {
        let kv = TableSpec {
            name: "kv".into(),
            page_size: 4,
            pool_pages: 20,
            max_seq_len: 40,
            span: 1,
        };
        let layout = RowLayout::new(vec![kv], vec!["index".into()]).unwrap();
        let mut planner = Planner::new(layout, 2).unwrap();
        planner.own_pages(0).unwrap();
        planner.add_lease(2).unwrap();
        let mut buffer = vec![0; planner.largest_flush_bytes()];
        for last in [false, true] {
            let handle = planner.open();
            planner.reserve(0, &[handle], &[4]).unwrap();
            planner.set_column(0, &[handle], &[7]).unwrap();
            let batch: Batch = planner.batch(&[handle]).unwrap();
            let stage = planner.stage(&batch, 0).unwrap();
            planner.flush(stage.seq, &mut buffer).unwrap();
            if !last {
                planner.commit(stage.seq).unwrap();
            }
        }
        planner.check().unwrap();
        planner.check_truth().unwrap();
        planner
    }

    #[test]
    fn the_check_finds_every_rule_broken() {
        let breaks: [Break; 8] = [
            ("a holder that does not hold", |planner| {
                let handle = planner.requests.live().next().unwrap();
                planner.requests.get_mut(handle).slot = Slot::TRASH;
            }),
            ("a holder that is not live", |planner| {
                let handle = planner.requests.live().next().unwrap();
                planner.requests.get_mut(handle).live = false;
            }),
            ("a slot that another holds", |planner| {
                let handles: Vec<_> = planner.requests.live().collect();
                let slot = planner.requests.get(handles[1]).slot;
                let fresh = planner.requests.open();
                planner.requests.get_mut(fresh).slot = slot;
            }),
            ("lost pages and no mark", |planner| {
                planner.mirror.set_extent(Slot::new(1), 0, 3);
            }),
            ("a slot cools behind no step", |planner| {
                let handle = planner.requests.live().nth(1).unwrap();
                planner.release(handle.pack()).unwrap();
                planner.in_flight = None;
            }),
            ("a stage behind a step in flight", |planner| {
                planner.stage.seq = planner.last_seq;
            }),
            ("a page that no stream names", |planner| {
                let handle = planner.requests.live().next().unwrap();
                planner.requests.stream_mut(handle, 0).pages.clear();
                planner.requests.get_mut(handle).stale = true;
            }),
            ("a broken ledger", |planner| {
                planner
                    .ledger
                    .take(Slot::TRASH, crate::Handle::new(9, 0), planner.last_seq, 0);
            }),
        ];
        for (what, break_it) in breaks {
            let mut broken = planner();
            break_it(&mut broken);
            assert!(broken.check().is_err(), "{what}");
        }
    }

    #[test]
    fn rows_that_will_be_written_whole_may_have_lost_pages() {
        let marks: [fn(&mut Planner); 2] = [
            |planner| planner.mirror.set_unknown(Slot::new(1), true),
            |planner| {
                let handle = planner.requests.live().next().unwrap();
                planner.requests.get_mut(handle).stale = true;
            },
        ];
        for mark in marks {
            let mut planner = planner();
            planner.mirror.set_extent(Slot::new(1), 0, 3);
            mark(&mut planner);
            planner.check().unwrap();
        }
    }

    #[test]
    fn the_check_of_a_flush_finds_a_row_that_differs() {
        let breaks: [Break; 4] = [
            ("a length", |planner| {
                planner.mirror.advance(Slot::new(2), 0, 1);
            }),
            ("too many cells", |planner| {
                planner.mirror.set_extent(Slot::new(2), 0, 2);
            }),
            ("too few cells", |planner| {
                planner.mirror.set_extent(Slot::new(2), 0, 0);
            }),
            ("a column", |planner| {
                planner.mirror.set_value(Slot::new(2), 0, 8);
            }),
        ];
        for (what, break_it) in breaks {
            let mut broken = planner();
            break_it(&mut broken);
            assert!(broken.check_truth().is_err(), "{what}");
        }
    }
}
