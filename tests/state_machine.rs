//! Every public operation in any order, at every point of a step's life, against the naive truth and a twin.

mod support;

use proptest::collection::vec;
use proptest::prelude::*;
use support::machine::Machine;
use support::operations::COUNT;
use support::random::Random;
use support::shapes::{Shape, append};

type Script = Vec<(usize, u64)>;

fn scripts() -> impl Strategy<Value = Script> {
    vec((0..COUNT, any::<u64>()), 1..200)
}

fn run(shape: &Shape, owned: &[usize], script: &Script) -> Machine {
    let mut machine = Machine::new(shape, owned);
    for seed in 0..3 * shape.max_batch as u64 {
        machine.open_request(&mut Random::new(seed));
    }
    for &(kind, seed) in script {
        machine.operate(kind, &mut Random::new(seed));
    }
    machine
}

fn config(cases: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok());
    ProptestConfig {
        cases: asked.unwrap_or(cases),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config(150))]

    #[test]
    fn every_row_that_a_step_reads_is_true(script in scripts()) {
        run(&Shape::mixed(3), &[], &script);
    }

    #[test]
    fn rows_are_true_when_the_planner_owns_the_pages(script in scripts()) {
        run(&Shape::mixed(2), &[0, 2], &script);
    }

    #[test]
    fn rows_are_true_on_pages_of_one_token(script in scripts()) {
        let tables = vec![append("kv", 1, 30, 20), append("other", 1, 30, 20), append("third", 2, 30, 20)];
        run(&Shape::new(tables, 1, 1), &[1], &script);
    }

    #[test]
    fn a_row_needs_no_table(script in scripts()) {
        run(&Shape::new(Vec::new(), 3, 2), &[], &script);
    }

    #[test]
    fn planners_with_the_same_history_send_the_same_bytes(script in scripts()) {
        let shape = Shape::mixed(2);
        let (first, second) = (run(&shape, &[0], &script), run(&shape, &[0], &script));
        prop_assert_eq!(first.sent, second.sent);
        prop_assert_eq!(first.node.planner.stats(), second.node.planner.stats());
    }
}
