//! Whatever an engine does, every row that a step reads equals its streams.

use crate::support::scenario::{Plan, run};
use crate::support::shapes::{Shape, append};

fn plan(shape: Shape, owned: &[usize]) -> Plan {
    Plan {
        shape,
        owned: owned.to_vec(),
        requests: 20,
        steps: 300,
    }
}

#[test]
#[cfg_attr(miri, ignore = "minutes under Miri")]
fn more_live_requests_than_slots_run_off_the_cache() {
    for seed in 0..3 {
        let machine = run(&plan(Shape::mixed(4), &[]), seed);
        let stats = machine.node.planner.stats();
        assert!(stats.displaced > 50 && stats.dropped > 50, "{stats:?}");
        assert!(stats.promoted > 10 && stats.failed > 2, "{stats:?}");
        assert!(stats.crossings > 100 && stats.steps > 200, "{stats:?}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "minutes under Miri")]
fn a_short_pool_is_run_at_its_limit() {
    let shape = Shape::new(
        vec![append("kv", 4, 14, 40), append("own", 3, 16, 30)],
        1,
        4,
    );
    for seed in 10..12 {
        run(&plan(shape.clone(), &[0, 1]), seed);
    }
}
