//! Several pools: each has its own length, pages, crossings.

use crate::node;
use crate::support::shapes::{Shape, append, read_only};

#[test]
fn pools_with_overlapping_page_numbers_stay_apart() {
    let mut node = node(&Shape::new(
        vec![append("x", 4, 50, 40), append("y", 4, 50, 40)],
        0,
        1,
    ));
    let a = node.request(&[(&[4, 9], 5), (&[4, 2, 8], 9)], &[]);
    let out = node.step(&[a]);
    assert_eq!(node.cells(a, 0)[..3], [4, 9, 0]);
    assert_eq!(node.cells(a, 1)[..4], [4, 2, 8, 0]);
    assert_eq!(
        (out.write_loc[0][0], out.write_loc[1][0]),
        (9 * 4 + 1, 8 * 4 + 1)
    );
    assert_eq!((out.lengths[0][0], out.lengths[1][0]), (6, 10));
}

#[test]
fn three_pools_of_unequal_pages_cross_each_in_its_own_rhythm() {
    let tables = vec![
        append("x", 1, 90, 60),
        append("y", 3, 90, 60),
        append("z", 8, 90, 60),
    ];
    let mut node = node(&Shape::new(tables, 1, 2));
    let pages: Vec<i64> = (1..=40).collect();
    let rows = [
        node.request(&[(&pages, 0), (&pages, 2), (&pages, 7)], &[1]),
        node.request(&[(&pages, 5), (&pages, 0), (&pages, 0)], &[2]),
    ];
    for _ in 0..30 {
        node.step(&rows);
    }
    let stats = node.planner.stats();
    assert_eq!(stats.whole_rows, 2);
    assert_eq!(stats.crossings, 2 * 29 + 10 + 9 + 4 + 3);
}

#[test]
fn one_pools_host_step_leaves_the_others_cells_alone() {
    let tables = vec![
        append("x", 4, 50, 40),
        read_only("c", 4, 50, 40),
        append("y", 4, 50, 40),
    ];
    let mut node = node(&Shape::new(tables, 0, 1));
    let a = node.request(&[(&[1, 2], 1), (&[3], 2), (&[4, 5], 2)], &[]);
    node.step(&[a]);
    node.host_step(a, 2, 1);
    let out = node.step(&[a]);
    assert_eq!(
        [out.stored[0][0], out.stored[1][0], out.stored[2][0]],
        [2, 2, 4]
    );
    let stats = node.planner.stats();
    assert_eq!(
        (stats.refreshed_lengths, stats.crossings, stats.moved_rows),
        (1, 1, 1)
    );
}

#[test]
fn one_stream_set_in_flight_lets_the_others_count() {
    let tables = vec![append("x", 4, 50, 40), append("y", 4, 50, 40)];
    let mut node = node(&Shape::new(tables, 0, 1));
    let a = node.request(&[(&[1, 2], 1), (&[3, 4], 2)], &[]);
    node.launch_step(&[a]);
    node.truncate(a, 0, 1, 2);
    node.commit();
    assert_eq!((node.length(a, 0), node.length(a, 1)), (1, 3));
    node.step(&[a]);
}

#[test]
fn requests_may_share_the_pages_of_a_prefix() {
    let mut node = crate::plain(2);
    let rows = [
        node.request(&[(&[7, 8, 1], 9)], &[]),
        node.request(&[(&[7, 8, 2], 10)], &[]),
    ];
    let out = node.step(&rows);
    assert_eq!(out.write_loc[0], [4 + 1, 8 + 2]);
}
