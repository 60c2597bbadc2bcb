//! A step that raises after its first copy retires, and its rows are stale.

use mstar_resident_core::{Error, PlanSeq};

use crate::support::shapes::{Shape, append, read_only};
use crate::{Node, node, plain};

fn retried(node: &mut Node, rows: &[i64], lengths: &[i64]) {
    let whole = node.planner.stats().whole_rows;
    let out = node.step(rows);
    assert_eq!(out.stored[0][..rows.len()], *lengths);
    assert_eq!(
        node.planner.stats().whole_rows,
        whole + rows.len() as u64,
        "every row is written whole"
    );
}

#[test]
fn rows_of_a_step_that_failed_after_its_replay_are_rewritten_with_the_streams_lengths() {
    let mut node = plain(2);
    let [a, b] = node.simples(2)[..] else {
        unreachable!()
    };
    node.step(&[a, b]);
    node.launch_step(&[a, b]); // the device advanced
    assert_eq!(node.fail(), [a, b]);
    assert_eq!((node.length(a, 0), node.length(b, 0)), (2, 2));
    retried(&mut node, &[a, b], &[2, 2]);
}

#[test]
#[cfg_attr(miri, ignore = "minutes under Miri")]
fn a_launch_that_fails_at_any_copy_is_repaired_by_the_next_step() {
    let tables = || {
        vec![
            append("kv", 4, 60, 40),
            read_only("context", 4, 60, 40),
            append("own", 3, 60, 30),
        ]
    };
    for landed in 0..8 {
        for lease in 0..2 {
            let mut node = node(&Shape::new(tables(), 2, 3));
            node.add_lease(3);
            let rows: Vec<i64> = (0..3)
                .map(|row| {
                    let pages = [1 + 3 * row, 2 + 3 * row, 3 + 3 * row];
                    node.request(&[(&pages, 3), (&pages, 9), (&pages, 2)], &[row, -row])
                })
                .collect();
            node.step(&rows);
            node.set_stream(rows[1], 0, &[40, 41, 42], 5);
            node.set_column(1, rows[2], 77);
            let new = node.request(&[(&[50], 1), (&[51], 1), (&[52], 1)], &[8, 9]);
            let step = [rows[2], rows[1], new]; // crossings, a moved row, a whole one and a new one
            node.stage(&step, lease).unwrap();
            node.launch_cut(landed);
            assert_eq!(node.fail(), step);
            retried(&mut node, &step, &[4, 5, 1]);
            node.step(&rows);
        }
    }
}

#[test]
fn displacements_of_a_failed_step_stand() {
    let mut node = plain(1);
    let [a, b, c] = node.simples(3)[..] else {
        unreachable!()
    };
    node.step(&[a]);
    node.step(&[b]);
    node.plan(&[c]);
    node.launch_cut(0);
    node.fail();
    assert_eq!(node.planner.stats().displaced, 1);
    assert_eq!((node.slot(a), node.slot(c) != 0), (0, true));
    retried(&mut node, &[a], &[2]);
    retried(&mut node, &[c], &[1]);
}

#[test]
fn a_slot_of_a_failed_step_is_cleared_for_its_next_holder() {
    let mut node = plain(1);
    let pages: Vec<i64> = (1..=10).collect();
    let a = node.request(&[(&pages, 39)], &[]);
    node.launch_step(&[a]);
    node.fail();
    node.release(a);
    let [b, c] = node.simples(2)[..] else {
        unreachable!()
    };
    node.step(&[b]); // the tail behind its one page is checked
    node.step(&[c]);
}

#[test]
fn a_failed_step_counts_as_read_and_retires_like_a_committed_one() {
    let mut node = plain(1);
    let [a, b, c] = node.simples(3)[..] else {
        unreachable!()
    };
    node.step(&[a]);
    node.step(&[b]);
    node.launch_step(&[a]);
    let seq = node.step.as_ref().unwrap().seq;
    node.fail();
    assert_eq!(node.planner.committed_seq().get(), seq);
    assert_eq!(
        (node.planner.stats().failed, node.planner.stats().steps),
        (1, 2)
    );
    node.step(&[c]);
    assert_eq!(
        (node.slot(a) != 0, node.slot(b)),
        (true, 0),
        "a was read last"
    );
}

#[test]
fn a_row_released_while_its_step_fails_is_not_among_the_failed() {
    let mut node = plain(3);
    let [a, b, c] = node.simples(3)[..] else {
        unreachable!()
    };
    node.launch_step(&[a, b, c]);
    node.release(b);
    let recycled = node.open();
    assert_eq!(node.fail(), [a, c]);
    assert_eq!(node.slot(recycled), 0);
}

#[test]
fn a_stream_set_while_its_step_is_in_flight_keeps_its_length_through_a_failure() {
    let mut node = plain(1);
    let a = node.simple(1, 4, 5);
    node.launch_step(&[a]);
    node.host_step(a, 0, 2);
    node.fail();
    assert_eq!(node.length(a, 0), 7);
    retried(&mut node, &[a], &[7]);
}

#[test]
fn steps_that_are_not_in_flight_cannot_end() {
    let mut node = plain(1);
    let a = node.simples(1)[0];
    let wrong = |seq: u64, in_flight: u64| Error::NotInFlight { seq, in_flight };
    let raw = PlanSeq::from_raw;
    assert_eq!(node.planner.commit(raw(0)), Err(wrong(0, 0)));
    let seq = node.plan(&[a]);
    assert_eq!(
        node.planner.commit(raw(seq)),
        Err(wrong(seq, 0)),
        "it is staged only"
    );
    assert_eq!(node.planner.fail(raw(seq)), Err(wrong(seq, 0)));
    node.launch();
    assert_eq!(node.planner.commit(raw(seq + 1)), Err(wrong(seq + 1, seq)));
    assert_eq!(node.planner.fail(raw(seq - 1)), Err(wrong(seq - 1, seq)));
    node.check();
    node.commit();
    assert_eq!(
        node.planner.commit(raw(seq)),
        Err(wrong(seq, 0)),
        "it has committed"
    );
    assert_eq!(node.planner.fail(raw(seq)), Err(wrong(seq, 0)));
    assert_eq!(node.length(a, 0), 2);
}
