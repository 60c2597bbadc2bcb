//! A batch that steps again: lengths advance together and are written out when it breaks up.

use std::time::{Duration, Instant};

use mstar_resident_core::{Batch, Planner};

use crate::support::shapes::{Shape, append, read_only};
use crate::{node, plain};

#[test]
fn a_batch_that_steps_on_and_breaks_up_has_every_length_right() {
    let mut node = plain(3);
    let rows = node.simples(3);
    for _ in 0..5 {
        node.step(&rows);
    }
    node.step(&rows[1..]);
    node.step(&rows[..1]);
    assert_eq!(
        [
            node.length(rows[0], 0),
            node.length(rows[1], 0),
            node.length(rows[2], 0)
        ],
        [7, 7, 7]
    );
    node.step(&rows);
    assert_eq!(node.planner.stats().refreshed_lengths, 0);
}

#[test]
fn equal_handles_named_again_are_the_same_batch() {
    let mut node = plain(2);
    let rows = node.simples(2);
    let (first, second) = (node.batch(&rows), node.batch(&rows));
    for batch in [&first, &second, &first] {
        node.stage_batch(batch, 0).unwrap();
        node.launch();
        node.commit();
    }
    let stats = node.planner.stats();
    assert_eq!((stats.whole_rows, stats.steps), (2, 3));
    assert_eq!(stats.committed_seq, node.planner.committed_seq().get());
    assert!(stats.committed_seq >= 3);
    assert_eq!(first.handles().len(), 2);
    assert_eq!(first.handles()[1].pack(), rows[1]);
}

#[test]
fn a_mark_on_one_row_leaves_the_others_of_its_batch_unwritten() {
    let mut node = plain(3);
    let rows = node.simples(3);
    node.step(&rows);
    node.step(&rows);
    node.mark_stale(rows[1]);
    node.step(&rows);
    assert_eq!(node.planner.stats().whole_rows, 4);
    assert_eq!(node.planner.stats().refreshed_lengths, 0);
}

#[test]
fn a_batch_broken_up_in_flight_is_committed_as_the_step_recorded_it() {
    let mut node = plain(3);
    let rows = node.simples(3);
    node.step(&rows);
    node.launch_step(&rows);
    node.mark_stale(rows[0]);
    node.mark_stale(rows[2]);
    assert_eq!(node.planner.in_flight_slots().len(), 3);
    node.commit();
    assert!(node.planner.in_flight_slots().is_empty());
    assert_eq!(
        rows.iter()
            .map(|&row| node.length(row, 0))
            .collect::<Vec<_>>(),
        [3, 3, 3]
    );
    node.step(&rows);
    assert_eq!(node.planner.stats().whole_rows, 5);
}

#[test]
fn crossings_of_a_batch_start_from_where_its_rows_are() {
    for start in 0..5 {
        let mut node = node(&Shape::new(
            vec![
                append("kv", 4, 90, 40),
                read_only("c", 4, 90, 40),
                append("own", 3, 90, 30),
            ],
            0,
            2,
        ));
        let pages: Vec<i64> = (1..=10).collect();
        let rows = [
            node.request(&[(&pages, start), (&pages, 6), (&pages, start + 1)], &[]),
            node.request(&[(&pages, start + 3), (&pages, 8), (&pages, start)], &[]),
        ];
        for round in 0..18 {
            if round == 7 {
                node.step(&rows[..1]);
            }
            node.step(&rows);
        }
        assert_eq!(node.planner.stats().whole_rows, 2);
    }
}

#[test]
#[cfg_attr(miri, ignore = "minutes under Miri")]
fn a_wide_batch_crosses_in_every_step_and_sends_each_row_once_a_page() {
    let mut node = node(&Shape::new(vec![append("kv", 4, 2000, 400)], 0, 96));
    let pages: Vec<i64> = (1..=100).collect();
    let rows: Vec<i64> = (0..96)
        .map(|row| node.request(&[(&pages, row % 4)], &[]))
        .collect();
    for _ in 0..41 {
        node.step(&rows);
    }
    assert_eq!(node.planner.stats().crossings, 96 * 10);
}

/// The fastest of a few runs of 200 steps, of batches in turn.
fn fastest(planner: &mut Planner, batches: &[Batch]) -> Duration {
    let mut buffer = vec![0; planner.largest_flush_bytes()];
    let mut run = || {
        let begin = Instant::now();
        for step in 0..200 {
            let stage = planner.stage(&batches[step % batches.len()], 0).unwrap();
            planner.flush(stage.seq, &mut buffer).unwrap();
            planner.commit(stage.seq).unwrap();
        }
        begin.elapsed()
    };
    (0..5).map(|_| run()).min().unwrap()
}

#[test]
#[cfg_attr(miri, ignore = "it is timed")]
fn a_steady_step_of_an_unchanged_batch_walks_no_rows() {
    let shape = Shape::new(vec![append("kv", 1 << 20, 9, 1 << 20)], 0, 8192);
    let mut planner = Planner::new(shape.layout(), shape.max_batch).unwrap();
    planner.add_lease(shape.max_batch).unwrap();
    let handles: Vec<i64> = (0..8192).map(|_| planner.open()).collect();
    for &handle in &handles {
        planner.set_stream(handle, 0, &[1], 0).unwrap();
    }
    let reversed: Vec<i64> = handles.iter().rev().copied().collect();
    let batches = [
        planner.batch(&handles).unwrap(),
        planner.batch(&reversed).unwrap(),
    ];
    let broken_up = fastest(&mut planner, &batches);
    let steady = fastest(&mut planner, &batches[..1]);
    assert!(
        steady * 20 < broken_up,
        "200 steps of 8192 rows: {steady:?} steady, {broken_up:?} by row"
    );
}
