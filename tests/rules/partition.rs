//! Free, cooling and held slots partition all but the trash row.

use mstar_resident_core::SlotLedger;

use crate::support::random::Random;
use crate::support::shapes::{Shape, append};
use crate::{node, plain};

fn counts(node: &crate::Node) -> (u64, u64, u64) {
    let stats = node.planner.stats();
    (stats.slots_free, stats.slots_cooling, stats.slots_held)
}

#[test]
fn every_slot_is_free_cooling_or_held_at_every_point_of_a_step() {
    let mut node = plain(2);
    assert_eq!(counts(&node), (4, 0, 0));
    let [a, b] = node.simples(2)[..] else {
        unreachable!()
    };
    node.plan(&[a, b]);
    assert_eq!(counts(&node), (4, 0, 0), "what a stage claims is tentative");
    node.launch();
    assert_eq!(counts(&node), (2, 0, 2));
    node.release(a);
    assert_eq!(counts(&node), (2, 1, 1));
    node.commit();
    assert_eq!(counts(&node), (3, 0, 1));
    node.offload(b);
    assert_eq!(counts(&node), (4, 0, 0));
}

#[test]
#[cfg_attr(miri, ignore = "minutes under Miri")]
fn slots_are_twice_the_widest_batch_and_the_trash_row_is_none_of_them() {
    for max_batch in [1, 31, 32, 33, 64] {
        let ledger = SlotLedger::new(2 * max_batch);
        assert_eq!(
            (ledger.slots(), ledger.free()),
            (2 * max_batch, 2 * max_batch)
        );
        assert_eq!((ledger.held(), ledger.cooling()), (0, 0));
        ledger.check().unwrap();
        let mut node = plain(max_batch);
        let first = node.simples(max_batch);
        let second = node.simples(max_batch);
        node.step(&first);
        node.step(&second);
        let mut slots: Vec<usize> = first
            .iter()
            .chain(&second)
            .map(|&handle| node.slot(handle))
            .collect();
        slots.sort_unstable();
        assert!(
            slots.into_iter().eq(1..=2 * max_batch),
            "every slot but the trash row is used"
        );
    }
}

#[test]
fn a_step_of_all_new_rows_runs_behind_a_full_one_whose_rows_left_in_flight() {
    let mut node = plain(4);
    let first = node.simples(4);
    let others = node.simples(4);
    node.step(&others);
    node.launch_step(&first);
    for &handle in &first {
        node.release(handle);
    }
    assert_eq!(counts(&node), (0, 4, 4));
    node.commit();
    let third = node.simples(4);
    node.step(&third); // never refused
    assert_eq!(node.planner.stats().displaced, 0);
}

#[test]
#[cfg_attr(miri, ignore = "minutes under Miri")]
fn steps_of_new_rows_only_never_run_out_of_slots() {
    let mut node = plain(3);
    let mut random = Random::new(9);
    for round in 0..60 {
        let rows = node.simples(3);
        node.launch_step(&rows);
        for &handle in rows.iter().take(random.below(4)) {
            node.release(handle);
        }
        if round % 7 == 3 {
            node.fail();
        } else {
            node.commit();
        }
        let live = node.live();
        if live.len() > 30 {
            node.release(live[0]);
        }
    }
    assert!(node.planner.stats().displaced > 20);
}

#[test]
#[cfg_attr(miri, ignore = "minutes under Miri")]
fn admitting_and_leaving_in_every_way_leaks_no_slot() {
    let mut node = node(&Shape::new(vec![append("kv", 4, 1000, 64)], 1, 2));
    for round in 0..1000 {
        let [a, b] = [0, 1].map(|_| node.request(&[(&[1, 2], 1)], &[7]));
        node.plan(&[a, b]);
        match round % 6 {
            0 => node.drop_staged(),
            1 => node.mark_stale(a),
            2 => {
                node.launch();
                node.commit();
            }
            3 => {
                node.launch();
                node.fail();
            }
            4 => {
                let lacking = node.request(&[(&[3], 1)], &[]); // a later resource has nothing for it yet
                assert!(node.stage(&[a, lacking], 0).is_err());
                node.release(lacking);
            }
            _ => {}
        }
        node.release(a);
        node.release(b);
        node.dead.clear();
        assert_eq!(counts(&node), (4, 0, 0), "round {round}");
    }
}

#[test]
fn a_step_of_all_new_rows_runs_behind_a_full_plan_that_never_ran() {
    let mut node = plain(4);
    let others = node.simples(4);
    node.step(&others);
    let never = node.simples(4);
    node.plan(&never); // claims every slot that is free
    let new = node.simples(4);
    node.step(&new);
    assert_eq!(counts(&node), (0, 0, 8));
    assert_eq!(node.planner.stats().displaced, 0);
    node.step(&never);
    assert_eq!(node.planner.stats().displaced, 4);
}
