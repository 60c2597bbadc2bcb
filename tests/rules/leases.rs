//! What each lease's input buffer holds, and what is sent to it.

use mstar_resident_core::Target;

use crate::support::shapes::{Shape, append};
use crate::{Node, node, plain};

/// A node whose rows cross no page.
fn long_pages(max_batch: usize) -> Node {
    node(&Shape::new(
        vec![append("kv", 128, 1000, 2560)],
        0,
        max_batch,
    ))
}

/// Bytes that the last flush sent to a lease's buffer.
fn sent(node: &Node, lease: usize) -> usize {
    let runs = node.planner.copies().iter();
    runs.filter(|run| run.target == Target::Lease(lease))
        .map(|run| run.bytes)
        .sum()
}

fn step(node: &mut Node, rows: &[i64], lease: usize) {
    node.stage(rows, lease).unwrap();
    node.launch();
    node.commit();
}

#[test]
fn each_buffer_is_sent_its_slots_once() {
    let mut node = long_pages(4);
    let other = node.add_lease(4);
    let narrow = node.add_lease(2);
    let [a, b] = node.simples(2)[..] else {
        unreachable!()
    };
    for round in 0..2 {
        for (lease, bucket) in [(0, 4), (other, 4), (narrow, 2)] {
            step(&mut node, &[a, b], lease);
            assert_eq!(
                sent(&node, lease),
                if round == 0 { 8 * bucket } else { 0 },
                "lease {lease}, round {round}"
            );
        }
        node.truncate(a, 0, 1, 4);
        node.truncate(b, 0, 1, 4);
        step(&mut node, &[a, b], 0); // refreshed lengths
    }
}

#[test]
fn a_buffer_that_holds_the_slots_of_another_batch_of_the_same_rows_is_not_sent_them_again() {
    let mut node = long_pages(2);
    let other = node.add_lease(2);
    let [a, b] = node.simples(2)[..] else {
        unreachable!()
    };
    step(&mut node, &[a, b], 0);
    step(&mut node, &[b, a], other);
    step(&mut node, &[a, b], 0); // planned row by row, and still equal
    assert_eq!(sent(&node, 0), 0);
    step(&mut node, &[a], 0);
    assert_eq!(sent(&node, 0), 16, "the second row is padding now");
    step(&mut node, &[a], 0);
    assert_eq!(sent(&node, 0), 0);
}

#[test]
fn one_cell_sends_one_batch_row_of_cells() {
    let mut node = long_pages(4);
    let rows = node.simples(4);
    node.step(&rows);
    node.host_step(rows[2], 0, 1);
    node.step(&rows);
    let runs = node.planner.copies();
    assert_eq!(
        (runs.len(), runs[0].bytes, runs[0].to_bytes),
        (1, 32, 8 * 4 + 2 * 32)
    );
}

#[test]
fn cells_are_sent_from_the_first_row_with_one_to_the_last() {
    let mut node = long_pages(6);
    let rows = node.simples(6);
    node.step(&rows);
    for row in [1, 4] {
        node.host_step(rows[row], 0, 1);
    }
    node.step(&rows);
    let runs = node.planner.copies();
    assert_eq!(
        (runs.len(), runs[0].bytes, runs[0].to_bytes),
        (1, 4 * 32, 8 * 6 + 32)
    );
}

#[test]
fn slots_and_cells_that_are_both_sent_are_one_copy() {
    let mut node = long_pages(4);
    let rows = node.simples(4);
    node.step(&rows);
    node.host_step(rows[1], 0, 1);
    node.step(&[rows[0], rows[1]]);
    let runs = node.planner.copies();
    assert_eq!(
        (runs.len(), runs[0].bytes, runs[0].to_bytes),
        (1, 8 * 4 + 2 * 32, 0)
    );
}

#[test]
fn cells_of_one_step_are_not_applied_again_by_the_next_replay_of_that_buffer() {
    let mut node = long_pages(2);
    let other = node.add_lease(2);
    let [a, b] = node.simples(2)[..] else {
        unreachable!()
    };
    step(&mut node, &[a, b], 0);
    node.host_step(a, 0, 1);
    step(&mut node, &[a, b], 0); // a's length travels in this buffer
    step(&mut node, &[a, b], other);
    step(&mut node, &[a, b], 0); // would rewind a, if its cell stood there still
    assert_eq!(node.length(a, 0), 1 + 1 + 4);
}

#[test]
fn a_row_written_whole_is_sent_no_cells() {
    let mut node = plain(2);
    let a = node.request(&[(&[1, 2], 3)], &[]);
    node.step(&[a]);
    node.mark_stale(a);
    node.step(&[a]); // it crosses, too
    assert!(
        node.planner
            .copies()
            .iter()
            .all(|run| run.target != Target::Lease(0))
    );
    assert_eq!(node.planner.stats().crossings, 0);
}

#[test]
fn after_a_failure_a_buffer_is_written_from_end_to_end() {
    let mut node = long_pages(4);
    let other = node.add_lease(4);
    let rows = node.simples(2);
    step(&mut node, &rows, other);
    step(&mut node, &rows, 0);
    node.host_step(rows[0], 0, 1);
    node.plan(&rows);
    node.launch_cut(9);
    node.fail();
    node.step(&rows);
    assert_eq!(sent(&node, 0), 8 * 4 + 4 * 32, "slots and cells");
    node.step(&rows);
    assert_eq!(sent(&node, 0), 0, "once");
    step(&mut node, &rows, other);
    assert_eq!(
        sent(&node, other),
        0,
        "the other buffer was not in that step"
    );
}

#[test]
fn a_batch_wider_than_its_bucket_is_refused() {
    let mut node = long_pages(4);
    let narrow = node.add_lease(2);
    let rows = node.simples(3);
    let seq = node.plan(&rows);
    assert!(
        node.stage(&rows, narrow)
            .unwrap_err()
            .to_string()
            .contains("expected 1 to 2 rows, got 3")
    );
    assert!(
        node.stage(&rows, narrow + 1)
            .unwrap_err()
            .to_string()
            .contains("below 2, got 2")
    );
    assert_eq!(
        node.staged.as_ref().unwrap().info.seq.get(),
        seq,
        "the older stage stands"
    );
    assert_eq!(node.planner.bucket(narrow), Ok(2));
    assert!(node.planner.bucket(2).is_err());
    for bucket in [0, 5] {
        assert!(node.planner.add_lease(bucket).is_err());
    }
    node.launch();
    node.commit();
}

#[test]
fn a_cell_that_the_replay_cleared_is_sent_again_though_it_is_equal() {
    let mut node = long_pages(2);
    let [a, b] = node.simples(2)[..] else {
        unreachable!()
    };
    step(&mut node, &[a, b], 0);
    for _ in 0..3 {
        node.truncate(a, 0, 1, 4); // the same length, in the same cell of the same buffer
        step(&mut node, &[a, b], 0);
        assert_eq!(sent(&node, 0), 32);
    }
    assert_eq!(node.planner.stats().refreshed_lengths, 3);
}
