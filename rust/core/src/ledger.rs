//! The slot ledger: which slots are free, cooling or held. A cache that never refuses.

use crate::error::{Error, Result};
use crate::ids::{Handle, PlanSeq, Slot};

/// A held slot, ordered by who gives it up first: last read, then taken.
pub(crate) type Victim = (PlanSeq, (PlanSeq, u32), Slot);

/// Free, cooling and held partition the slots `1..=2B` after every operation.
#[derive(Debug)]
pub struct SlotLedger {
    /// One bit a slot, lowest first: the order of claims depends on no history of releases.
    free: Vec<u64>,
    holder: Vec<Option<Handle>>,
    last_read: Vec<PlanSeq>,
    /// When each slot was taken: the step, and the row's place in its batch. No slot number decides a tie, since
    /// equal requests may hold other slots elsewhere.
    taken: Vec<(PlanSeq, u32)>,
    cooling: Vec<(PlanSeq, Slot)>,
    free_count: usize,
    slots: usize,
}

impl SlotLedger {
    /// A ledger of `slots` free slots, numbered from 1.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        let mut free = vec![0_u64; (slots + 1).div_ceil(64)];
        for slot in 1..=slots {
            free[slot / 64] |= 1 << (slot % 64);
        }
        Self {
            free,
            holder: vec![None; slots + 1],
            last_read: vec![PlanSeq::NONE; slots + 1],
            taken: vec![(PlanSeq::NONE, 0); slots + 1],
            cooling: Vec::with_capacity(slots),
            free_count: slots,
            slots,
        }
    }

    /// Writes the lowest free slots into `out` until it has `count` or none is left. Takes nothing.
    pub(crate) fn peek_free(&self, count: usize, out: &mut Vec<Slot>) {
        let mut found = 0;
        for (word_idx, &word) in self.free.iter().enumerate() {
            let mut bits = word;
            while bits != 0 && found < count {
                out.push(Slot::new(word_idx * 64 + bits.trailing_zeros() as usize));
                bits &= bits - 1;
                found += 1;
            }
            if found == count {
                return;
            }
        }
    }

    /// Writes `count` victims into `out`: held slots that `in_step` does not name, least recently read by a
    /// launched step first, ties by the order in which they were taken. Takes nothing.
    ///
    /// # Errors
    /// [`Error::Invariant`] if the held slots outside the step do not suffice, which `2B` slots rule out.
    pub(crate) fn peek_victims(
        &self,
        count: usize,
        in_step: impl Fn(Slot) -> bool,
        scratch: &mut Vec<Victim>,
        out: &mut Vec<Slot>,
    ) -> Result<()> {
        scratch.clear();
        for number in 1..=self.slots {
            let slot = Slot::new(number);
            if self.holder[number].is_some() && !in_step(slot) {
                scratch.push((self.last_read[number], self.taken[number], slot));
            }
        }
        if scratch.len() < count {
            return Err(Error::Invariant {
                rule: "never refuses",
                detail: format!(
                    "a step needs {count} victims and {} held slots are outside it",
                    scratch.len()
                ),
            });
        }
        if count < scratch.len() {
            scratch.select_nth_unstable(count);
        }
        let victims = &mut scratch[..count];
        victims.sort_unstable();
        out.extend(victims.iter().map(|&(_, _, slot)| slot));
        Ok(())
    }

    /// Makes `handle`, row `batch_idx` of step `seq`, the holder of a free slot, or of a held one whose holder is
    /// displaced with this.
    pub(crate) fn take(&mut self, slot: Slot, handle: Handle, seq: PlanSeq, batch_idx: u32) {
        let (word, bit) = (slot.get() / 64, 1_u64 << (slot.get() % 64));
        if self.free[word] & bit != 0 {
            self.free[word] &= !bit;
            self.free_count -= 1;
        }
        self.holder[slot.get()] = Some(handle);
        self.taken[slot.get()] = (seq, batch_idx);
    }

    /// Records that launched step `seq` reads the slot.
    pub(crate) fn read(&mut self, slot: Slot, seq: PlanSeq) {
        self.last_read[slot.get()] = seq;
    }

    /// Gives a held slot up: it cools behind `in_flight` if that step reads it, else it is free at once.
    pub(crate) fn release(&mut self, slot: Slot, in_flight: Option<PlanSeq>) {
        self.holder[slot.get()] = None;
        match in_flight {
            Some(seq) if self.last_read[slot.get()] == seq => self.cooling.push((seq, slot)),
            _ => self.set_free(slot),
        }
    }

    /// Frees the slots whose last reader is `committed` or earlier.
    pub(crate) fn retire(&mut self, committed: PlanSeq) {
        let mut at = 0;
        while at < self.cooling.len() {
            if self.cooling[at].0 <= committed {
                let (_, slot) = self.cooling.swap_remove(at);
                self.set_free(slot);
            } else {
                at += 1;
            }
        }
    }

    fn set_free(&mut self, slot: Slot) {
        self.free[slot.get() / 64] |= 1 << (slot.get() % 64);
        self.free_count += 1;
    }

    /// The live handle that owns the slot.
    #[must_use]
    pub fn holder(&self, slot: Slot) -> Option<Handle> {
        self.holder[slot.get()]
    }

    /// Slots that may be taken.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free_count
    }

    /// Slots released while a launched step that reads them has not committed.
    #[must_use]
    pub fn cooling(&self) -> usize {
        self.cooling.len()
    }

    /// Slots a live handle owns.
    #[must_use]
    pub fn held(&self) -> usize {
        self.slots - self.free_count - self.cooling.len()
    }

    /// Slots in all, `2B`.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Checks that free, cooling and held partition the slots.
    ///
    /// # Errors
    /// [`Error::Invariant`] with the slot or the counts that break the partition.
    pub fn check(&self) -> Result<()> {
        let broken = |detail: String| {
            Err(Error::Invariant {
                rule: "partition",
                detail,
            })
        };
        let mut free = 0;
        for number in 1..=self.slots {
            let is_free = self.free[number / 64] & (1 << (number % 64)) != 0;
            let is_held = self.holder[number].is_some();
            let cools = self
                .cooling
                .iter()
                .filter(|&&(_, slot)| slot.get() == number)
                .count();
            if usize::from(is_free) + usize::from(is_held) + cools != 1 {
                return broken(format!(
                    "slot {number}: free {is_free}, held {is_held}, cooling {cools} times"
                ));
            }
            free += usize::from(is_free);
        }
        // The held ones are what is left of the slots, so that this counts them too.
        if free != self.free_count {
            return broken(format!("counted {free} free, kept {}", self.free_count));
        }
        if self.free[0] & 1 != 0 || self.holder[0].is_some() {
            return broken("the trash row is free or held".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Break = (&'static str, fn(&mut SlotLedger));

    /// Three slots: 1 is held, 2 cools behind step 1, 3 is free.
    fn ledger() -> SlotLedger {
        let mut ledger = SlotLedger::new(3);
        let seq = PlanSeq::NONE.next();
        for (slot, batch_idx) in [(1, 0), (2, 1)] {
            let handle = Handle::new(batch_idx, 0);
            ledger.take(Slot::new(slot), handle, seq, batch_idx);
            ledger.read(Slot::new(slot), seq);
        }
        ledger.release(Slot::new(2), Some(seq));
        ledger
    }

    #[test]
    fn the_check_finds_every_way_to_break_the_partition() {
        ledger().check().unwrap();
        let breaks: [Break; 8] = [
            ("a held slot is free", |ledger| ledger.free[0] |= 1 << 1),
            ("a cooling slot is free", |ledger| ledger.free[0] |= 1 << 2),
            ("a free slot is held", |ledger| {
                ledger.holder[3] = Some(Handle::new(5, 0));
            }),
            ("a slot is nobody's", |ledger| ledger.holder[1] = None),
            ("a slot cools twice", |ledger| {
                ledger.cooling.push((PlanSeq::NONE, Slot::new(2)));
            }),
            ("a count differs", |ledger| ledger.free_count += 1),
            ("the trash row is free", |ledger| ledger.free[0] |= 1),
            ("the trash row is held", |ledger| {
                ledger.holder[0] = Some(Handle::new(5, 0));
            }),
        ];
        for (what, break_it) in breaks {
            let mut broken = ledger();
            break_it(&mut broken);
            assert!(broken.check().is_err(), "{what}");
        }
    }

    #[test]
    fn only_slots_whose_last_reader_committed_stop_cooling() {
        let (first, second) = (PlanSeq::NONE.next(), PlanSeq::NONE.next().next());
        let mut ledger = SlotLedger::new(4);
        for (slot, seq) in [(1, second), (2, first), (3, second), (4, first)] {
            ledger.take(Slot::new(slot), Handle::new(slot as u32, 0), seq, 0);
            ledger.read(Slot::new(slot), seq);
            ledger.release(Slot::new(slot), Some(seq));
        }
        ledger.retire(PlanSeq::NONE);
        assert_eq!((ledger.free(), ledger.cooling()), (0, 4));
        ledger.retire(first);
        let mut free = Vec::new();
        ledger.peek_free(4, &mut free);
        assert_eq!(free, [Slot::new(2), Slot::new(4)]);
        ledger.retire(second);
        assert_eq!((ledger.free(), ledger.cooling()), (4, 0));
        ledger.check().unwrap();
    }

    #[test]
    fn a_step_that_needs_more_victims_than_there_are_is_a_broken_rule() {
        let (mut scratch, mut out) = (Vec::new(), Vec::new());
        let ledger = ledger();
        let everyone = |_: Slot| false;
        ledger
            .peek_victims(1, everyone, &mut scratch, &mut out)
            .unwrap();
        assert_eq!(out, [Slot::new(1)]);
        let error = ledger.peek_victims(2, everyone, &mut scratch, &mut out);
        assert!(matches!(
            error,
            Err(Error::Invariant {
                rule: "never refuses",
                ..
            })
        ));
    }

    #[test]
    fn free_slots_are_found_lowest_first_across_words() {
        let ledger = SlotLedger::new(130);
        for count in [0, 1, 63, 64, 65, 128, 130, 200] {
            let mut out = Vec::new();
            ledger.peek_free(count, &mut out);
            assert!(out.into_iter().map(Slot::get).eq(1..=count.min(130)));
        }
    }
}
