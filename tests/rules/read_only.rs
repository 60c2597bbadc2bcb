//! A pool that is only read: rows and lengths, no write location, no advance, no crossings.

use crate::support::shapes::Shape;
use crate::{Node, node};

fn with_context() -> (Node, i64) {
    let mut node = node(&Shape::with_context(2));
    let a = node.request(&[(&[8, 1], 5), (&[20, 21], 6)], &[]);
    (node, a)
}

#[test]
fn a_context_neither_advances_nor_crosses() {
    let (mut node, a) = with_context();
    let out = node.step(&[a]);
    assert_eq!(out.write_loc[0][0], 4 + 1);
    assert_eq!((out.lengths[0][0], out.lengths[1][0]), (6, 6));
    for _ in 0..2 {
        node.step(&[a]);
        assert_eq!(node.cells(a, 1)[..3], [20, 21, 0]);
        assert_eq!(node.length(a, 1), 6);
        assert!(node.planner.copies().is_empty());
    }
    assert_eq!(node.planner.stats().crossings, 0);
}

#[test]
fn a_full_last_page_of_a_context_needs_no_page_more() {
    let mut node = node(&Shape::with_context(1));
    let a = node.request(&[(&[1], 0), (&[20, 21], 8)], &[]);
    node.step(&[a]);
    assert_eq!(node.cells(a, 1)[..3], [20, 21, 0]);
}

#[test]
fn a_context_of_no_tokens_is_legal() {
    let mut node = node(&Shape::with_context(1));
    let a = node.request(&[(&[1], 0), (&[], 0)], &[]);
    let out = node.step(&[a]);
    assert_eq!(out.lengths[1][0], 0);
}

#[test]
fn a_context_encoded_again_at_equal_length_is_rewritten() {
    let (mut node, a) = with_context();
    node.step(&[a]);
    node.set_stream(a, 1, &[5, 6], 6);
    node.step(&[a]);
    assert_eq!(node.cells(a, 1)[..3], [5, 6, 0]);
    assert_eq!(node.planner.stats().whole_rows, 2);
}

#[test]
fn a_context_told_again_unchanged_sends_nothing() {
    let (mut node, a) = with_context();
    node.step(&[a]);
    node.set_stream(a, 1, &[20, 21], 6);
    node.host_step(a, 1, 0);
    node.step(&[a]);
    assert!(node.planner.copies().is_empty());
}

#[test]
fn a_context_set_while_a_step_is_in_flight_leaves_the_own_stream_to_advance() {
    let (mut node, a) = with_context();
    node.launch_step(&[a]);
    node.set_stream(a, 1, &[5, 6], 7);
    node.commit();
    assert_eq!((node.length(a, 0), node.length(a, 1)), (6, 7));
    let out = node.step(&[a]);
    assert_eq!((out.stored[0][0], out.stored[1][0]), (6, 7));
}

#[test]
fn a_host_step_on_the_own_stream_sends_nothing_of_the_context() {
    let (mut node, a) = with_context();
    node.step(&[a]);
    node.host_step(a, 0, 1);
    node.step(&[a]);
    let stats = node.planner.stats();
    assert_eq!(
        (
            stats.whole_rows,
            stats.moved_rows,
            stats.refreshed_lengths,
            stats.crossings
        ),
        (1, 1, 1, 0)
    );
}

#[test]
fn a_longer_context_is_sent_as_lengths_and_new_pages() {
    let (mut node, a) = with_context();
    node.step(&[a]);
    node.append_page(a, 1, 22);
    node.host_step(a, 1, 3);
    let out = node.step(&[a]);
    assert_eq!(
        (out.stored[1][0], node.cells(a, 1)[..4].to_vec()),
        (9, vec![20, 21, 22, 0])
    );
    assert_eq!(node.planner.stats().whole_rows, 1);
}

#[test]
fn a_request_that_comes_back_has_both_its_tables_rewritten() {
    let mut node = node(&Shape::with_context(2));
    let a = node.request(&[(&[4], 2), (&[12, 13], 7)], &[]);
    node.step(&[a]);
    node.offload(a);
    node.set_stream(a, 0, &[9], 3);
    node.set_stream(a, 1, &[5, 6], 5);
    let out = node.step(&[a]);
    assert_eq!((out.stored[0][0], out.stored[1][0]), (3, 5));
    let cells: Vec<i32> = node
        .cells(a, 0)
        .into_iter()
        .chain(node.cells(a, 1))
        .collect();
    assert!(cells.iter().all(|page| ![4, 12, 13].contains(page)));
}
