//! Named narrow columns: position offsets, recurrent indices, scalars.

use crate::support::shapes::{Shape, append};
use crate::{Node, node};
use mstar_resident_core::Op;

fn with_columns(max_batch: usize) -> Node {
    node(&Shape::new(
        vec![append("kv", 128, 100, 1280)],
        2,
        max_batch,
    ))
}

#[test]
fn an_offset_may_be_negative_and_positions_follow_from_it() {
    let mut node = with_columns(1);
    let a = node.request(&[(&[1, 2, 3], 300)], &[-182, 5]);
    let out = node.step(&[a]);
    assert_eq!(out.stored[0][0] + out.columns[0][0], 118);
}

#[test]
fn an_offset_told_chunk_by_chunk_is_read_when_the_row_is_built() {
    let mut node = with_columns(1);
    let a = node.request(&[(&[1, 2, 3], 300)], &[-1, 5]);
    for wrong in [-60, -120] {
        node.set_column(0, a, wrong);
    }
    node.set_column(0, a, -182);
    assert_eq!(node.step(&[a]).columns[0][0], -182);
    node.set_column(0, a, -180); // a later change marks the row
    let out = node.step(&[a]);
    assert_eq!(out.columns[0][0], -180);
    assert_eq!(node.planner.stats().moved_rows, 1);
}

#[test]
fn an_offset_survives_a_preemption() {
    let mut node = with_columns(1);
    let a = node.request(&[(&[1, 2], 130)], &[-40, 3]);
    node.step(&[a]);
    node.offload(a);
    node.set_stream(a, 0, &[7, 8], 131);
    let out = node.step(&[a]);
    assert_eq!(out.stored[0][0] + out.columns[0][0], 91);
}

#[test]
fn a_row_before_its_recurrent_index_exists_is_refused() {
    let mut node = with_columns(2);
    let a = node.open();
    node.set_stream(a, 0, &[1], 3);
    node.set_column(0, a, 0);
    let error = node.stage(&[a], 0).unwrap_err().to_string();
    assert!(
        error.contains("column column1: expected a value"),
        "{error}"
    );
    node.set_column(1, a, 4);
    node.step(&[a]);
    node.tell(&Op::UnsetColumn {
        column: 1,
        handles: vec![a],
    })
    .unwrap();
    assert!(
        node.stage(&[a], 0).is_err(),
        "a batch that stepped last is looked at too"
    );
    node.set_column(1, a, 4);
    node.step(&[a]);
    assert!(
        node.planner.copies().is_empty(),
        "the device has the value still"
    );
}

#[test]
fn a_recycled_index_starts_with_no_column_set() {
    let mut node = with_columns(1);
    let a = node.request(&[(&[1], 3)], &[1, 2]);
    node.step(&[a]);
    node.release(a);
    let b = node.open();
    assert_eq!(b & 0xFFFF_FFFF, a & 0xFFFF_FFFF);
    node.set_stream(b, 0, &[1], 3);
    assert!(node.stage(&[b], 0).is_err());
    assert_eq!(node.planner.column(b, 0), Ok(None));
}

#[test]
fn the_first_use_of_a_row_writes_every_narrow_cell() {
    let mut node = with_columns(1);
    let a = node.request(&[(&[1], 3)], &[111, 222]);
    let b = node.request(&[(&[2], 9)], &[333, 444]);
    for row in [a, b, a, b] {
        let out = node.step(&[row]); // every slot was another's before
        assert_eq!(out.columns[0][0], if row == a { 111 } else { 333 });
    }
    node.release(a);
    node.release(b);
    let c = node.request(&[(&[3], 0)], &[0, 0]);
    let out = node.step(&[c]);
    assert_eq!(
        (out.stored[0][0], out.columns[0][0], out.columns[1][0]),
        (0, 0, 0)
    );
}

#[test]
fn rows_keep_their_own_values_in_any_order() {
    let mut node = with_columns(2);
    let (a, b) = (
        node.request(&[(&[1], 3)], &[0, 1]),
        node.request(&[(&[2], 3)], &[1, 2]),
    );
    let slots = (node.step(&[a, b]), node.slot(a), node.slot(b));
    let out = node.step(&[b, a]);
    assert_eq!(out.columns, [[1, 0], [2, 1]]);
    assert_eq!(
        (node.slot(a), node.slot(b)),
        (slots.1, slots.2),
        "a row does not move with its place in the batch"
    );
    node.release(a);
    node.set_column(0, b, 9);
    assert_eq!(node.step(&[b]).columns[0], [9, 0]);
}

#[test]
fn columns_changed_past_what_a_cells_row_holds_rewrite_the_row() {
    let mut node = node(&Shape::new(Vec::new(), 3, 1)); // no table: two cells a batch row
    let a = node.request(&[], &[1, 2, 3]);
    node.step(&[a]);
    node.set_column(0, a, 5);
    node.set_column(2, a, 6);
    node.step(&[a]);
    assert_eq!(
        (
            node.planner.stats().whole_rows,
            node.planner.stats().moved_rows
        ),
        (1, 1)
    );
    for column in 0..3 {
        node.set_column(column, a, 9);
    }
    assert_eq!(node.step(&[a]).columns, [[9], [9], [9]]);
    assert_eq!(
        (
            node.planner.stats().whole_rows,
            node.planner.stats().moved_rows
        ),
        (2, 1)
    );
}

#[test]
fn a_column_set_in_flight_is_sent_with_the_next_step() {
    let mut node = with_columns(1);
    let a = node.request(&[(&[1], 3)], &[1, 2]);
    node.launch_step(&[a]);
    node.set_column(1, a, 7);
    node.commit();
    assert_eq!(node.length(a, 0), 4);
    assert_eq!(node.step(&[a]).columns[1][0], 7);
}

#[test]
fn sixty_four_columns_are_held_and_the_last_one_too() {
    let mut node = node(&Shape::new(vec![append("kv", 4, 10, 40)], 64, 1));
    let values: Vec<i64> = (0..64).map(|value| i64::MAX - value).collect();
    let a = node.request(&[(&[1], 0)], &values);
    let out = node.step(&[a]);
    assert_eq!(out.columns[63][0], i64::MAX - 63);
    node.tell(&Op::UnsetColumn {
        column: 63,
        handles: vec![a],
    })
    .unwrap();
    assert!(
        node.stage(&[a], 0)
            .unwrap_err()
            .to_string()
            .contains("column63")
    );
}

#[test]
fn a_request_prefilled_again_into_another_recurrent_index_reads_that_one() {
    for index in [3, 6] {
        let mut node = with_columns(2);
        let a = node.request(&[(&[1], 5)], &[0, 3]);
        node.step(&[a]);
        node.offload(a);
        let b = node.request(&[(&[9], 1)], &[0, 3]); // takes the index over
        node.step(&[b]);
        node.set_stream(a, 0, &[2], 6);
        node.set_column(1, a, index);
        assert_eq!(node.step(&[b, a]).columns[1], [3, index]);
    }
}
