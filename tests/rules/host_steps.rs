//! Host-planned steps move rows; the next resident step that reads them mends them first.

use mstar_resident_core::{Error, Op};

use crate::support::shapes::{Shape, append};
use crate::{node, plain};

#[test]
fn a_host_step_inside_a_page_is_mended_by_one_length() {
    let mut node = plain(2);
    let [a, b] = node.simples(2)[..] else {
        unreachable!()
    };
    node.step(&[a, b]);
    node.host_step(a, 0, 1);
    let out = node.step(&[a, b]);
    assert_eq!(out.stored[0][..2], [3, 2]);
    let stats = node.planner.stats();
    assert_eq!(
        (
            stats.moved_rows,
            stats.refreshed_lengths,
            stats.whole_rows,
            stats.crossings
        ),
        (1, 1, 2, 0)
    );
}

#[test]
fn a_host_crossing_and_the_resident_one_behind_it_both_land() {
    let mut node = node(&Shape::new(
        vec![append("kv", 1, 50, 40), append("other", 8, 50, 40)],
        0,
        1,
    ));
    let a = node.request(&[(&[1, 2, 3, 4], 1), (&[9], 1)], &[]);
    node.step(&[a]);
    node.host_step(a, 0, 1); // enters page 3
    node.host_step(a, 1, 1);
    let out = node.step(&[a]); // enters page 4
    assert_eq!(node.cells(a, 0)[..5], [1, 2, 3, 4, 0]);
    assert_eq!(out.write_loc[0][0], 4);
    let stats = node.planner.stats();
    assert_eq!(
        (
            stats.whole_rows,
            stats.moved_rows,
            stats.crossings,
            stats.refreshed_lengths
        ),
        (1, 1, 2, 2)
    );
}

#[test]
fn host_steps_past_what_a_cells_row_holds_rewrite_the_row_whole() {
    let mut node = plain(1);
    let a = node.simple(1, 10, 1);
    node.step(&[a]);
    for _ in 0..3 {
        node.host_step(a, 0, 4); // three pages and a length are more than two cells
    }
    let out = node.step(&[a]);
    assert_eq!(out.stored[0][0], 14);
    assert_eq!(
        (
            node.planner.stats().whole_rows,
            node.planner.stats().moved_rows
        ),
        (2, 0)
    );
}

#[test]
fn a_cells_row_is_filled_to_its_last_cell_before_a_row_is_written_whole() {
    let tables = || vec![append("x", 4, 50, 40), append("y", 4, 50, 40)]; // four cells a batch row
    for (extra_column, whole) in [(false, 2), (true, 3)] {
        let mut node = node(&Shape::new(tables(), 1, 2));
        let a = node.request(&[(&[1, 2, 3], 2), (&[4, 5, 6], 2)], &[0]);
        let b = node.request(&[(&[7, 8], 1), (&[9, 10], 1)], &[0]);
        node.step(&[a, b]);
        for table in 0..2 {
            node.host_step(a, table, 2);
        }
        if extra_column {
            node.set_column(0, a, 5);
        }
        node.host_step(b, 0, 1);
        node.step(&[a, b]); // a: two lengths and two pages
        assert_eq!(node.planner.stats().whole_rows, whole);
    }
}

#[test]
fn several_host_steps_of_many_rows_are_mended_together() {
    let mut node = plain(4);
    let rows = node.simples(4);
    node.step(&rows);
    node.tell(&Op::HostStep {
        table: 0,
        handles: vec![rows[3], rows[1]],
        tokens: vec![2, 3],
    })
    .unwrap();
    node.step(&[rows[0], rows[2]]);
    let out = node.step(&rows);
    assert_eq!(out.stored[0][..4], [3, 5, 3, 4]);
}

#[test]
fn a_row_moved_while_it_was_out_of_the_step_is_mended_when_it_returns() {
    let mut node = plain(2);
    let [a, b] = [
        node.request(&[(&[3, 5], 6)], &[]),
        node.request(&[(&[7], 3)], &[]),
    ];
    node.step(&[a, b]);
    node.append_page(b, 0, 8);
    node.step(&[b]);
    node.host_step(a, 0, 1);
    node.append_page(a, 0, 2);
    node.step(&[b]);
    let out = node.step(&[a, b]);
    assert_eq!((out.stored[0][0], out.write_loc[0][0]), (8, 2 * 4));
}

#[test]
fn a_preempted_row_comes_back_on_other_pages_and_no_cell_names_the_old_ones() {
    let mut node = plain(2);
    let (a, b) = (
        node.request(&[(&[3, 5], 6)], &[]),
        node.request(&[(&[7], 3)], &[]),
    );
    node.step(&[a, b]);
    node.offload(a); // its pages 3 and 5 are another's now
    node.append_page(b, 0, 3);
    node.step(&[b]);
    node.step(&[b]);
    node.set_stream(a, 0, &[9, 2], 7);
    let out = node.step(&[a, b]);
    assert_eq!(out.write_loc[0], [2 * 4 + 3, 3 * 4 + 2]);
    assert!(node.cells(a, 0).iter().all(|page| ![3, 5].contains(page)));
}

#[test]
fn a_host_step_tells_nothing_of_a_request_without_a_row() {
    let mut node = plain(1);
    let a = node.simple(1, 3, 1);
    node.host_step(a, 0, 4);
    node.step(&[a]);
    let stats = node.planner.stats();
    assert_eq!(
        (stats.whole_rows, stats.moved_rows, stats.refreshed_lengths),
        (1, 0, 0)
    );
}

#[test]
fn a_host_step_in_flight_leaves_room_for_the_token_of_that_step() {
    let mut node = plain(1);
    let a = node.request(&[(&[1, 2], 6)], &[]);
    node.launch_step(&[a]); // the seventh token
    let two = Op::HostStep {
        table: 0,
        handles: vec![a],
        tokens: vec![2],
    };
    assert!(node.tell(&two).is_err(), "a ninth token has no page");
    node.host_step(a, 0, 1);
    node.commit();
    assert_eq!(node.length(a, 0), 8);
}

#[test]
fn a_step_wider_than_the_widest_bucket_is_refused_and_its_host_step_moves_its_rows() {
    let mut node = plain(8);
    let rows = node.simples(12);
    assert_eq!(node.planner.stats().slots_free, 16);
    let host = |node: &mut crate::Node| {
        assert!(matches!(
            node.planner.batch(&rows),
            Err(Error::BatchSize { rows: 12, .. })
        ));
        node.tell(&Op::HostStep {
            table: 0,
            handles: rows.clone(),
            tokens: vec![1; 12],
        })
        .unwrap();
    };
    host(&mut node);
    assert_eq!(node.step(&rows[..8]).stored[0], [2; 8]);
    host(&mut node);
    assert_eq!(node.step(&rows[4..]).stored[0], [4, 4, 4, 4, 3, 3, 3, 3]);
    assert_eq!(node.step(&rows[..8]).stored[0], [4, 4, 4, 4, 5, 5, 5, 5]);
    assert_eq!(node.planner.stats().whole_rows, 12);
}
