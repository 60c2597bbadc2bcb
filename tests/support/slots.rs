//! A naive slot cache: who holds a row, who gives one up, and which rows must not be taken yet.

use std::collections::{BTreeMap, BTreeSet};

/// A held row.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub slot: usize,
    /// The last launched step that read it.
    pub last_read: u64,
    /// The step in which it was taken, and the place in that step's batch.
    pub taken: (u64, usize),
}

/// Slots `1..=total` by who may take them.
#[derive(Debug)]
pub struct Slots {
    pub total: usize,
    pub held: BTreeMap<i64, Held>,
    pub cooling: BTreeSet<usize>,
}

/// How a row without a slot will come by one.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    pub batch_idx: usize,
    pub handle: i64,
    /// The request whose slot it takes, and that slot.
    pub victim: Option<(i64, usize)>,
}

impl Slots {
    pub fn new(total: usize) -> Self {
        Self {
            total,
            held: BTreeMap::new(),
            cooling: BTreeSet::new(),
        }
    }

    pub fn free(&self) -> BTreeSet<usize> {
        let mut free: BTreeSet<usize> = (1..=self.total).collect();
        for held in self.held.values() {
            assert!(free.remove(&held.slot), "slot {} is held twice", held.slot);
        }
        for slot in &self.cooling {
            assert!(free.remove(slot), "slot {slot} cools and is held");
        }
        free
    }

    /// The claims of a step: free slots go to the first rows without one, the least recently read rows to the others.
    pub fn claims(&self, step: &[i64]) -> Vec<Claim> {
        let mut victims: Vec<(u64, (u64, usize), i64, usize)> = self
            .held
            .iter()
            .filter(|(handle, _)| !step.contains(handle))
            .map(|(&handle, held)| (held.last_read, held.taken, handle, held.slot))
            .collect();
        victims.sort_unstable();
        let free = self.free().len();
        let mut rank = 0;
        let mut claims = Vec::new();
        for (batch_idx, &handle) in step.iter().enumerate() {
            if self.held.contains_key(&handle) {
                continue;
            }
            let victim = (rank >= free).then(|| {
                let (_, _, victim, slot) = victims[rank - free];
                (victim, slot)
            });
            rank += 1;
            claims.push(Claim {
                batch_idx,
                handle,
                victim,
            });
        }
        claims
    }

    /// Takes the rows that still hold the slots which `claims` take, and returns their requests.
    pub fn displace(&mut self, claims: &[Claim]) -> Vec<i64> {
        let mut displaced = Vec::new();
        for (victim, slot) in claims.iter().filter_map(|claim| claim.victim) {
            if self.held.get(&victim).is_some_and(|held| held.slot == slot) {
                self.held.remove(&victim);
                displaced.push(victim);
            }
        }
        displaced
    }

    /// Records that step `seq` read these rows.
    pub fn read(&mut self, step: &[i64], seq: u64) {
        for handle in step {
            self.held.get_mut(handle).unwrap().last_read = seq;
        }
    }

    /// Gives a row up: it cools if the step in flight, which reads `in_flight`, reads it.
    pub fn release(&mut self, handle: i64, in_flight: &[usize]) -> bool {
        let Some(held) = self.held.remove(&handle) else {
            return false;
        };
        if in_flight.contains(&held.slot) {
            self.cooling.insert(held.slot);
        }
        true
    }
}
