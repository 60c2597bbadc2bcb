//! An engine's day: more requests than slots, plans made ahead and abandoned, host steps in between, requests that
//! come and go, and a teardown after which handles are recycled.

use super::machine::Machine;
use super::operations::Kind;
use super::random::Random;
use super::shapes::Shape;
use mstar_resident_core::Op;

/// Marks that an engine makes between any two calls.
const MARKS: &[Kind] = &[
    Kind::HostStep,
    Kind::HostStep,
    Kind::SetStream,
    Kind::Append,
    Kind::Truncate,
    Kind::SetColumn,
    Kind::MarkStale,
    Kind::Offload,
    Kind::Fork,
    Kind::Reserve,
];

/// What a scenario is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    pub shape: Shape,
    pub owned: Vec<usize>,
    pub requests: usize,
    pub steps: usize,
}

/// Runs a scenario; every step of it is checked cell by cell.
pub fn run(plan: &Plan, seed: u64) -> Machine {
    let mut random = Random::new(seed);
    let random = &mut random;
    let mut machine = Machine::new(&plan.shape, &plan.owned);
    for _ in 0..plan.requests {
        machine.open_request(random);
    }
    let mut batch = Vec::new();
    for _ in 0..plan.steps {
        marks(&mut machine, random, 4);
        next_batch(&machine, random, &mut batch);
        if random.once_in(2) {
            ahead(&mut machine, random, &batch);
        }
        step(&mut machine, random, &batch);
        if random.once_in(2) && machine.node.live().len() < plan.requests {
            machine.open_request(random);
        }
    }
    teardown(&mut machine, random, plan.requests);
    machine
}

/// The batch before, with a row or two that leave or join, or another one.
fn next_batch(machine: &Machine, random: &mut Random, batch: &mut Vec<i64>) {
    let (live, widest) = (machine.node.live(), machine.node.truth.max_batch);
    batch.retain(|handle| live.contains(handle));
    if random.once_in(3) && !batch.is_empty() {
        batch.remove(random.below(batch.len()));
    }
    if random.once_in(8) {
        batch.clear();
    }
    let joining = random.below(3);
    for handle in random.some(&live, joining.max(usize::from(batch.is_empty()))) {
        if batch.len() < widest && !batch.contains(&handle) {
            batch.push(handle);
        }
    }
}

/// A plan made ahead, which something may end before its step comes.
fn ahead(machine: &mut Machine, random: &mut Random, batch: &[i64]) {
    feed(machine, random, batch);
    let mut planned = batch.to_vec();
    match random.below(4) {
        0 => planned = random.some(&machine.node.live(), 1),
        1 => planned.reverse(),
        _ => {}
    }
    machine.stage(&planned, random.below(2));
    match random.below(4) {
        0 => marks(machine, random, 1),
        1 if machine.node.staged.is_some() => {
            machine.node.drop_staged();
            machine.follow();
        }
        _ => {}
    }
}

/// Executes the step: the plan made ahead if it still stands for it, a new one otherwise.
fn step(machine: &mut Machine, random: &mut Random, batch: &[i64]) {
    let live = machine.node.live();
    let batch: Vec<i64> = batch
        .iter()
        .copied()
        .filter(|row| live.contains(row))
        .collect();
    if batch.is_empty() {
        return;
    }
    let narrow = machine.node.device.leases[2].bucket >= batch.len() && random.once_in(3);
    let lease = if narrow { 2 } else { random.below(2) };
    let promoted = machine.node.staged.clone().is_some_and(|staged| {
        let batch = machine.node.batch(&batch);
        machine.node.planner.promote(staged.info.seq, &batch, lease)
    });
    if !promoted {
        feed(machine, random, &batch);
        machine.stage(&batch, lease);
    }
    if machine.node.staged.is_none() {
        return; // a pool is short of pages
    }
    if random.once_in(40) {
        machine.launch(Some(random.below(4)));
        return;
    }
    machine.launch(None);
    marks(machine, random, 5);
    if random.once_in(40) {
        machine.fail();
    } else {
        machine.commit();
    }
}

fn feed(machine: &mut Machine, random: &mut Random, batch: &[i64]) {
    for &handle in batch {
        machine.feed(random, handle);
    }
}

/// None or one mark, or a request that ends.
fn marks(machine: &mut Machine, random: &mut Random, odds: usize) {
    if random.once_in(odds) {
        let call = machine.call(random.pick(MARKS), random);
        machine.tell(&call);
    }
    if random.once_in(3 * odds) && !machine.node.live().is_empty() {
        machine.tell(&Op::Release(random.pick(&machine.node.live())));
    }
}

/// Every request ends, some while their step is in flight; their handles come again and step once.
fn teardown(machine: &mut Machine, random: &mut Random, requests: usize) {
    let batch = random.some(&machine.node.live(), machine.node.truth.max_batch);
    feed(machine, random, &batch);
    if !batch.is_empty() && machine.stage(&batch, 0).is_some() {
        machine.launch(None);
    }
    for handle in random.some(&machine.node.live(), requests) {
        machine.tell(&Op::Release(handle));
    }
    if machine.node.step.is_some() {
        machine.commit();
    }
    let stats = machine.node.planner.stats();
    assert_eq!(
        (stats.slots_held, stats.slots_cooling),
        (0, 0),
        "nothing is held after the last request"
    );
    machine.open_request(random);
    let again = machine.node.live();
    assert!(
        machine
            .node
            .dead
            .iter()
            .any(|dead| dead & 0xFFFF_FFFF == again[0] & 0xFFFF_FFFF),
        "an index comes again under another generation"
    );
    feed(machine, random, &again);
    machine.stage(&again, 0).unwrap();
    machine.launch(None);
    machine.commit();
}
