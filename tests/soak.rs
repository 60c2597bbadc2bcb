//! Long random scenarios over many seeds: `cargo test --release --test soak -- --ignored`.

mod support;

use support::random::Random;
use support::scenario::{Plan, run};
use support::shapes::Shape;

fn soak(plan: &Plan, seeds: u64) -> Vec<(&'static str, u64)> {
    let first = std::env::var("SOAK_FIRST_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(0);
    let mut total = vec![
        ("steps", 0),
        ("displaced", 0),
        ("failed", 0),
        ("promoted", 0),
        ("dropped", 0),
        ("moved", 0),
    ];
    for seed in first..first + seeds {
        let stats = run(plan, Random::new(seed).next()).node.planner.stats();
        let counts = [
            stats.steps,
            stats.displaced,
            stats.failed,
            stats.promoted,
            stats.dropped,
            stats.moved_rows,
        ];
        for (sum, count) in total.iter_mut().zip(counts) {
            sum.1 += count;
        }
    }
    for &(what, count) in &total {
        assert!(count > seeds, "{what}: {count} over {seeds} seeds");
    }
    total
}

fn plan(owned: &[usize]) -> Plan {
    Plan {
        shape: Shape::mixed(4),
        owned: owned.to_vec(),
        requests: 20,
        steps: 300,
    }
}

#[test]
#[ignore = "minutes"]
fn twenty_requests_on_eight_slots_over_two_hundred_seeds() {
    soak(&plan(&[]), 200);
}

#[test]
#[ignore = "minutes"]
fn twenty_requests_on_pages_that_the_planner_owns_over_two_hundred_seeds() {
    soak(&plan(&[0, 2]), 200);
}
