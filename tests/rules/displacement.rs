//! Who gives a slot up when none is free.

use crate::{Node, plain};

/// Requests of `batches` batches of `rows`, each stepped once, in order.
fn filled(rows: usize, batches: usize) -> (Node, Vec<Vec<i64>>) {
    let mut node = plain(rows);
    let all: Vec<Vec<i64>> = (0..batches).map(|_| node.simples(rows)).collect();
    for batch in &all {
        node.step(batch);
    }
    (node, all)
}

fn held(node: &Node, handles: &[i64]) -> Vec<bool> {
    handles
        .iter()
        .map(|&handle| node.slot(handle) != 0)
        .collect()
}

#[test]
fn the_least_recently_read_rows_are_displaced() {
    let (mut node, all) = filled(2, 2);
    node.step(&all[0]); // the second batch is older now
    let new = node.simples(2);
    node.step(&new);
    assert_eq!(held(&node, &all[0]), [true, true]);
    assert_eq!(held(&node, &all[1]), [false, false]);
    assert_eq!(node.planner.stats().displaced, 2);
}

#[test]
fn rows_read_by_one_step_are_displaced_in_the_order_of_their_slots_taking() {
    let (mut node, all) = filled(3, 2);
    let new = node.simples(1);
    node.step(&new);
    assert_eq!(
        held(&node, &all[0]),
        [false, true, true],
        "the first row of the first batch took its slot first"
    );
}

#[test]
fn rows_that_took_their_slots_in_one_step_are_displaced_in_batch_order_whatever_their_slots() {
    let mut node = plain(2);
    let [a, b, c] = node.simples(3)[..] else {
        unreachable!()
    };
    node.step(&[a]);
    node.step(&[b, c]);
    // One slot is free and a's is the victim's: the batch's first row gets the higher number.
    let [d, e] = node.simples(2)[..] else {
        unreachable!()
    };
    node.step(&[d, e]);
    assert!(node.slot(d) > node.slot(e));
    node.step(&[b, c]);
    let f = node.simples(1)[0];
    node.step(&[f]);
    assert_eq!(
        held(&node, &[d, e]),
        [false, true],
        "d took its slot before e"
    );
}

#[test]
fn a_step_never_displaces_its_own_oldest_row() {
    let (mut node, all) = filled(2, 2);
    let new = node.simples(1);
    let oldest = all[0][0];
    node.step(&[oldest, new[0]]);
    assert_ne!(node.slot(oldest), 0);
    assert_eq!(
        held(&node, &all[0]),
        [true, false],
        "the next oldest gave its slot up"
    );
}

#[test]
fn a_step_displaces_no_row_of_the_step_before_it() {
    let (mut node, all) = filled(2, 2);
    node.launch_step(&all[1]);
    node.commit();
    let new = node.simples(2);
    node.step(&new);
    assert_eq!(held(&node, &all[1]), [true, true]);
}

#[test]
fn a_displaced_row_is_written_whole_with_its_lengths_of_now() {
    let (mut node, all) = filled(1, 2);
    let victim = all[0][0];
    let new = node.simples(1);
    node.step(&new);
    assert_eq!(node.slot(victim), 0);
    node.host_step(victim, 0, 5); // 1 + 1 + 5 tokens: the second page is in use
    node.mark_stale(victim); // moot: it holds no row
    let before = node.planner.stats().whole_rows;
    let out = node.step(&[victim]);
    assert_eq!(out.stored[0][0], 7);
    assert_eq!(node.planner.stats().whole_rows, before + 1);
    assert_eq!(
        node.planner.stats().moved_rows,
        0,
        "no mark of the lost row is left"
    );
}

#[test]
fn a_victim_leaves_no_marks_behind() {
    let (mut node, all) = filled(1, 2);
    let victim = all[0][0];
    node.mark_stale(victim);
    let new = node.simples(1)[0];
    node.step(&[new]); // takes the stale row's slot
    node.step(&[victim]);
    node.step(&[new]);
    let whole = node.planner.stats().whole_rows;
    node.step(&[victim]);
    assert_eq!(
        node.planner.stats().whole_rows,
        whole,
        "it was written whole once"
    );
}

#[test]
fn plans_that_never_ran_hold_no_slots_and_read_no_rows() {
    let (mut node, all) = filled(2, 2);
    let never: Vec<i64> = node.simples(2);
    node.plan(&never);
    node.plan(&all[0]); // dropped too: it does not make them recently read
    let new = node.simples(2);
    node.step(&new);
    assert_eq!(held(&node, &never), [false, false]);
    assert_eq!(held(&node, &all[0]), [false, false]);
    assert_eq!(held(&node, &all[1]), [true, true]);
}

#[test]
fn free_slots_are_taken_before_anyone_is_displaced() {
    let (mut node, all) = filled(2, 2);
    node.release(all[1][0]);
    let new = node.simples(2);
    node.step(&new);
    assert_eq!(node.planner.stats().displaced, 1);
    assert_eq!(held(&node, &all[0]), [false, true]);
}

#[test]
fn a_victim_that_leaves_between_stage_and_flush_is_not_displaced() {
    let (mut node, all) = filled(1, 2);
    let new = node.simples(1)[0];
    node.plan(&[new]);
    node.release(all[0][0]);
    let recycled = node.open();
    node.launch();
    node.commit();
    assert_eq!(node.planner.stats().displaced, 0);
    assert_eq!(node.slot(recycled), 0);
    assert_eq!(node.planner.stats().slots_held, 2);
}

#[test]
fn a_victim_that_is_offloaded_between_stage_and_flush_is_not_displaced() {
    let (mut node, all) = filled(1, 2);
    let new = node.simples(1)[0];
    node.plan(&[new]);
    node.offload(all[0][0]);
    node.launch();
    node.commit();
    assert_eq!(node.planner.stats().displaced, 0);
}

#[test]
fn offloading_every_row_and_running_others_refuses_none_and_reloads_them_whole() {
    let mut node = plain(2);
    let first = node.simples(4);
    node.step(&first[..2]);
    node.step(&first[2..]);
    for &handle in &first {
        node.offload(handle);
    }
    assert_eq!(node.planner.stats().slots_held, 0);
    let others = node.simples(4);
    node.step(&others[..2]);
    node.step(&others[2..]);
    for (number, &handle) in (0..).zip(&first) {
        node.set_stream(handle, 0, &[500 + 2 * number, 501 + 2 * number], 2);
    }
    let before = node.planner.stats().whole_rows;
    node.step(&first[..2]);
    node.step(&first[2..]);
    assert_eq!(node.planner.stats().whole_rows, before + 4);
}

#[test]
fn turns_of_more_batches_than_slots_displace_every_row_every_time() {
    let (mut node, all) = filled(2, 4);
    let displaced = node.planner.stats().displaced;
    for _ in 0..3 {
        for batch in &all {
            node.step(batch);
        }
    }
    assert_eq!(node.planner.stats().displaced, displaced + 3 * 8);
}
