//! Entering a page: one column, at the right step, from the stream's own order of pages.

use mstar_resident_core::{Error, Op};

use crate::support::shapes::{Shape, append};
use crate::{Node, node, plain};

fn crossings(node: &Node) -> u64 {
    node.planner.stats().crossings
}

fn bytes(node: &Node) -> u64 {
    node.planner.stats().bytes
}

#[test]
fn a_row_that_enters_a_page_is_sent_one_column() {
    let mut node = plain(1);
    let a = node.request(&[(&[9, 2], 3)], &[]);
    let out = node.step(&[a]);
    assert_eq!(out.write_loc[0][0], 9 * 4 + 3);
    assert_eq!(crossings(&node), 0, "a whole row is no crossing");
    let before = bytes(&node);
    let out = node.step(&[a]);
    assert_eq!(out.write_loc[0][0], 2 * 4, "page index 1, offset 0");
    assert_eq!(out.lengths[0][0], 5);
    assert_eq!(crossings(&node), 1);
    assert_eq!(bytes(&node) - before, 32, "one batch row of the cells row");
    assert_eq!(node.cells(a, 0)[..3], [9, 2, 0]);
}

#[test]
fn writes_follow_the_table_and_never_the_next_page_number() {
    let mut node = plain(2);
    let a = node.request(&[(&[9, 2, 7], 3)], &[]);
    let other = node.request(&[(&[10, 11, 12], 3)], &[]);
    let mut seen = Vec::new();
    for _ in 0..6 {
        seen.push(node.step(&[a, other]).write_loc[0][0]);
    }
    assert_eq!(
        seen,
        [9 * 4 + 3, 2 * 4, 2 * 4 + 1, 2 * 4 + 2, 2 * 4 + 3, 7 * 4]
    );
}

#[test]
fn an_empty_stream_starts_at_the_first_cell_of_its_first_page() {
    let mut node = plain(1);
    let a = node.request(&[(&[6], 0)], &[]);
    let out = node.step(&[a]);
    assert_eq!((out.lengths[0][0], out.write_loc[0][0]), (1, 24));
    node.step(&[a]);
    assert_eq!(crossings(&node), 0);
}

#[test]
fn pages_that_the_length_does_not_need_are_not_sent() {
    let mut node = plain(1);
    let a = node.request(&[(&[3, 1, 4, 15, 9, 26, 5], 13)], &[]);
    let out = node.step(&[a]);
    assert_eq!(node.cells(a, 0)[..5], [3, 1, 4, 15, 0]);
    assert_eq!(
        out.write_loc[0][0],
        15 * 4 + 1,
        "the page at the length's column, not the last one"
    );
}

#[test]
fn used_columns_depend_on_the_length_alone() {
    for length in 14..=18_i64 {
        for spare in 0..2 {
            let mut node = node(&Shape::new(vec![append("kv", 16, 100, 160)], 0, 1));
            let used = (length + 1 + 15) / 16;
            let pages: Vec<i64> = (50..50 + used + spare).collect();
            let a = node.request(&[(&pages, length)], &[]);
            let out = node.step(&[a]);
            let cells = node.cells(a, 0);
            assert_eq!(cells.iter().filter(|&&page| page != 0).count() as i64, used);
            let last = i64::from(out.lengths[0][0]) - (used - 1) * 16;
            assert!(
                (1..=16).contains(&last),
                "a full last page counts 16, never 0"
            );
        }
    }
}

#[test]
fn a_page_appended_early_is_sent_when_it_is_entered() {
    let mut node = plain(1);
    let a = node.request(&[(&[1], 1)], &[]);
    node.step(&[a]);
    node.append_page(a, 0, 8); // the batch goes on unbroken
    node.append_page(a, 0, 7);
    for _ in 0..2 {
        node.step(&[a]);
        assert!(node.planner.copies().is_empty());
    }
    node.step(&[a]);
    assert_eq!(crossings(&node), 1);
    assert_eq!(node.cells(a, 0)[..3], [1, 8, 0]);
}

#[test]
fn a_step_that_lacks_its_page_is_refused_and_runs_once_it_has_it() {
    let mut node = plain(1);
    let a = node.request(&[(&[1], 3)], &[]);
    node.step(&[a]);
    for _ in 0..3 {
        assert!(
            node.stage(&[a], 0)
                .unwrap_err()
                .to_string()
                .contains("expected 2 pages, got a stream that holds 1")
        );
    }
    node.append_page(a, 0, 5);
    assert_eq!(node.step(&[a]).write_loc[0][0], 20);
}

#[test]
fn rows_cross_each_at_its_own_step_through_many_pages() {
    let mut node = plain(8);
    let rows: Vec<i64> = (0..8)
        .map(|number| {
            let pages: Vec<i64> = (0..12).map(|page| 1 + number + 8 * page).collect();
            node.request(&[(&pages, number)], &[])
        })
        .collect();
    for _ in 0..38 {
        node.step(&rows); // every write location is checked
    }
    assert_eq!(node.planner.stats().whole_rows, 8);
    assert!(crossings(&node) >= 8 * 9);
}

#[test]
fn a_crossing_of_two_tables_at_once_is_sent_for_both() {
    let shape = Shape::new(vec![append("x", 4, 50, 40), append("y", 2, 50, 40)], 0, 2);
    let mut node = node(&shape);
    let a = node.request(&[(&[1, 2, 3], 3), (&[9, 8, 7, 6], 3)], &[]);
    node.step(&[a]);
    let out = node.step(&[a]);
    assert_eq!((out.write_loc[0][0], out.write_loc[1][0]), (8, 14));
    assert_eq!(crossings(&node), 2);
    node.step(&[a]);
    let out = node.step(&[a]);
    assert_eq!(
        (out.write_loc[0][0], out.write_loc[1][0]),
        (10, 12),
        "only y crossed"
    );
    assert_eq!(crossings(&node), 3);
}

#[test]
fn unequal_rows_do_not_look_at_each_other_in_any_order() {
    let orders = [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ];
    let shape = Shape::new(vec![append("kv", 16, 100, 640)], 0, 3);
    for order in orders {
        let mut node = node(&shape);
        let long: Vec<i64> = (1..=33).collect();
        let rows = [
            node.request(&[(&long, 513)], &[]),
            node.request(&[(&[50], 2)], &[]),
            node.request(&[(&[60, 61, 62], 40)], &[]),
        ];
        let out = node.step(&order.map(|row| rows[row]));
        let expected = [33 * 16 + 1, 50 * 16 + 2, 62 * 16 + 8];
        assert_eq!(out.write_loc[0], order.map(|row| expected[row]));
        node.step(&[rows[1], rows[2]]); // with the longest row held and out of the step
    }
}

#[test]
fn the_last_token_of_a_full_table_fits_and_the_next_is_refused() {
    let mut node = node(&Shape::new(vec![append("kv", 128, 1000, 80_000)], 0, 2));
    let pages: Vec<i64> = (1..=625).collect();
    let a = node.request(&[(&pages, 79_998)], &[]);
    let neighbour = node.request(&[(&[700], 5)], &[]);
    for length in [79_998_i64, 79_999] {
        let out = node.step(&[a, neighbour]);
        assert_eq!(out.write_loc[0][0], 625 * 128 + length % 128);
    }
    node.append_page(a, 0, 626); // a page more does not widen the table
    let error = node.stage(&[a, neighbour], 0).unwrap_err().to_string();
    assert!(
        error.contains("expected at most 625 pages, got a step that needs 626"),
        "{error}"
    );
    let out = node.step(&[neighbour]);
    assert_eq!(out.stored[0][0], 7, "the neighbour's row is as it was");
}

#[test]
fn an_engine_that_tells_crossings_for_the_whole_batch_steps_on() {
    let mut node = plain(3);
    let rows: Vec<i64> = (0..3)
        .map(|row| node.request(&[(&[1 + row], row)], &[]))
        .collect();
    for step in 0..24 {
        let crossing: Vec<i64> = rows
            .iter()
            .copied()
            .filter(|&row| node.length(row, 0) % 4 == 0 && node.length(row, 0) > 0)
            .collect();
        let pages: Vec<i64> = (0..crossing.len() as i64)
            .map(|page| 100 + 3 * step + page)
            .collect();
        let counts = vec![1; crossing.len()];
        let call = Op::AppendPages {
            table: 0,
            handles: crossing,
            counts,
            pages,
        };
        node.tell(&call).unwrap();
        node.step(&rows);
    }
    assert_eq!(node.planner.stats().whole_rows, 3);
}

#[test]
fn a_row_that_is_full_is_refused_before_anything_is_written_beside_it() {
    let mut node = plain(1);
    let pages: Vec<i64> = (101..=116).collect();
    let a = node.request(&[(&pages, 63)], &[]);
    let neighbour = node.request(&[(&[7, 8], 5)], &[]);
    assert_eq!(node.step(&[a]).write_loc[0][0], 116 * 4 + 3);
    node.step(&[neighbour]);
    assert_eq!(node.slot(neighbour), node.slot(a) + 1);
    let slot = node.slot(neighbour);
    let before = (
        node.device.narrow(slot).to_vec(),
        node.cells(neighbour, 0),
        node.planner.stats().bytes,
    );
    assert!(matches!(
        node.stage(&[a], 0),
        Err(Error::RowOverflow {
            needed: 17,
            width: 16,
            ..
        })
    ));
    let after = (
        node.device.narrow(slot).to_vec(),
        node.cells(neighbour, 0),
        node.planner.stats().bytes,
    );
    assert_eq!(after, before);
}
