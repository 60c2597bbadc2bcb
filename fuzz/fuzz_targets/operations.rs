//! Any operations in any order, chosen by the fuzzer's bytes, against the naive truth and a twin; then the log of what
//! was done is written and replayed.

#![no_main]

#[path = "../../tests/support/mod.rs"]
mod support;

use libfuzzer_sys::fuzz_target;
use mstar_resident_core::replay;
use support::machine::Machine;
use support::operations::COUNT;
use support::ram::record;
use support::random::Random;
use support::shapes::{Shape, append};

/// More operations take long and reach nothing that fewer do not.
const MOST: usize = 200;

fuzz_target!(|data: &[u8]| {
    let mut random = Random::of(data);
    let of_one_token = vec![append("kv", 1, 30, 20), append("other", 2, 30, 20)];
    let (shape, owned): (Shape, &[usize]) = match random.below(5) {
        0 => (Shape::mixed(2), &[]),
        1 => (Shape::mixed(2), &[0, 2]),
        2 => (Shape::new(of_one_token, 1, 1), &[1]),
        3 => (Shape::new(Vec::new(), 3, 2), &[]),
        _ => (Shape::mixed(3), &[0]),
    };
    let mut machine = Machine::new(&shape, owned);
    for _ in 0..MOST {
        if random.is_spent() {
            break;
        }
        machine.operate(random.below(COUNT), &mut random);
    }
    let log = record(&shape, &machine.node.history);
    let replayed = replay(log.as_bytes()).unwrap();
    assert_eq!(replayed.calls, machine.node.history.len() as u64);
});
