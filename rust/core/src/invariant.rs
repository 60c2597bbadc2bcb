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
            let ticks = self.cohort.ticks as i64 - self.requests.get(handle).settled as i64;
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
