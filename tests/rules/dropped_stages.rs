//! A stage that is not launched leaves no trace: the next plan sends what it would have sent.

use mstar_resident_core::{Error, PlanSeq};

use crate::support::shapes::{Shape, append};
use crate::{Node, node, plain};
use mstar_resident_core::Op;

/// A request one token before its crossing, stepped once; its next step crosses.
fn before_crossing() -> (Node, i64, i64) {
    let mut node = plain(2);
    let a = node.request(&[(&[1, 2], 3)], &[]);
    let b = node.request(&[(&[5, 6], 1)], &[]);
    node.step(&[a, b]);
    (node, a, b)
}

#[test]
fn an_abandoned_plan_does_not_lose_its_crossing() {
    let (mut node, a, b) = before_crossing();
    node.plan(&[a, b]);
    node.drop_staged();
    let out = node.step(&[a, b]);
    assert_eq!(out.write_loc[0][0], 8);
    assert_eq!(node.planner.stats().crossings, 1);
}

#[test]
fn a_plan_for_other_rows_does_not_lose_the_crossing_of_the_one_it_replaces() {
    let (mut node, a, b) = before_crossing();
    node.plan(&[a, b]);
    node.plan(&[b]); // a left the step after it was planned
    node.launch();
    node.commit();
    assert_eq!(node.planner.stats().dropped, 1);
    assert_eq!(node.step(&[a, b]).write_loc[0][0], 8);
}

#[test]
fn lengths_advance_at_commit_only_however_often_a_step_is_planned() {
    let mut node = plain(1);
    let a = node.simple(1, 4, 5);
    for _ in 0..5 {
        node.plan(&[a]);
        assert_eq!(node.length(a, 0), 5);
    }
    node.launch();
    assert_eq!(node.length(a, 0), 5);
    node.commit();
    assert_eq!(node.length(a, 0), 6);
}

#[test]
fn a_dropped_stage_cannot_be_flushed_or_promoted() {
    let mut node = plain(2);
    let [a, b] = node.simples(2)[..] else {
        unreachable!()
    };
    let first = PlanSeq::from_raw(node.plan(&[a]));
    let second = PlanSeq::from_raw(node.plan(&[a, b]));
    assert_eq!(
        node.refuses_flush(first),
        Error::StageDropped { seq: first.get() }
    );
    let batch = node.batch(&[a]);
    assert!(!node.planner.promote(first, &batch, 0));
    assert!(!node.planner.drop_staged(first));
    let batch = node.batch(&[a, b]);
    assert!(
        node.planner.promote(second, &batch, 0),
        "the newer stage stands"
    );
    node.launch();
    assert!(!node.planner.promote(second, &batch, 0), "it is launched");
    assert!(!node.planner.drop_staged(second));
    node.commit();
}

#[test]
fn a_stage_is_promoted_for_the_same_rows_order_and_lease_only() {
    let mut node = plain(2);
    let narrow = node.add_lease(2);
    let [a, b, c] = node.simples(3)[..] else {
        unreachable!()
    };
    let seq = PlanSeq::from_raw(node.plan(&[a, b]));
    for (rows, lease, stands) in [
        (&[a, b][..], 0, true),
        (&[b, a], 0, false),
        (&[a], 0, false),
        (&[a, c], 0, false),
        (&[a, b], narrow, false),
        (&[a, b], 0, true),
    ] {
        let batch = node.batch(rows);
        assert_eq!(
            node.planner.promote(seq, &batch, lease),
            stands,
            "{rows:?} on lease {lease}"
        );
    }
    assert_eq!(node.planner.stats().promoted, 2);
    node.launch();
    node.commit();
}

/// Every call that marks a row, for a request of one owned and one told table and a column.
fn marks(handle: i64) -> Vec<Op> {
    vec![
        Op::SetStream {
            handle,
            table: 0,
            pages: vec![1, 2],
            length: 5,
        },
        Op::HostStep {
            table: 0,
            handles: vec![handle],
            tokens: vec![0],
        },
        Op::Truncate {
            table: 1,
            handle,
            length: 0,
            pages: 1,
        },
        Op::SetColumn {
            column: 0,
            handles: vec![handle],
            values: vec![3],
        },
        Op::UnsetColumn {
            column: 0,
            handles: vec![handle],
        },
        Op::MarkStale(vec![handle]),
        Op::MarkReleasedTokens { table: 0, handle },
        Op::Offload(handle),
        Op::Release(handle),
    ]
}

#[test]
fn every_mark_on_a_member_drops_the_stage_and_none_on_another_request_does() {
    let shape = Shape::new(
        vec![append("told", 4, 50, 40), append("owned", 4, 50, 40)],
        1,
        2,
    );
    for (number, marks_member) in (0..9).flat_map(|number| [(number, true), (number, false)]) {
        for steps_before in 0..2 {
            let mut node = node(&shape);
            node.tell(&Op::OwnPages(1)).unwrap();
            let mut open = |pages: &[i64]| {
                let handle = node.open();
                node.set_stream(handle, 0, pages, 5);
                node.set_column(0, handle, 3);
                node.reserve(handle, 1, 8);
                handle
            };
            let (member, other) = (open(&[1, 2, 3, 4]), open(&[5, 6, 7, 8]));
            for _ in 0..steps_before {
                node.step(&[member]);
            }
            let seq = node.plan(&[member]);
            let marked = if marks_member { member } else { other };
            let call = &marks(marked)[number];
            node.tell(call).unwrap();
            let stands = node.planner.flush_is_empty(PlanSeq::from_raw(seq)).is_ok();
            assert_eq!(stands, !marks_member, "{call:?}");
            assert_eq!(
                node.planner.stats().dropped,
                u64::from(marks_member),
                "{call:?}"
            );
        }
    }
}

#[test]
fn pages_for_a_member_and_forks_of_it_let_its_stage_stand() {
    let shape = Shape::new(
        vec![append("told", 4, 50, 40), append("owned", 4, 50, 40)],
        0,
        2,
    );
    let mut node = node(&shape);
    node.tell(&Op::OwnPages(1)).unwrap();
    let a = node.open();
    node.set_stream(a, 0, &[1], 1);
    node.reserve(a, 1, 4);
    node.host_step(a, 1, 4);
    node.reserve(a, 1, 1);
    let seq = PlanSeq::from_raw(node.plan(&[a]));
    let child = node.open();
    node.append_page(a, 0, 2);
    node.reserve(a, 1, 9);
    node.tell(&Op::Fork {
        table: 1,
        parent: a,
        child,
        tokens: 4,
    })
    .unwrap();
    let batch = node.batch(&[a]);
    assert!(node.planner.promote(seq, &batch, 0));
    node.launch();
    node.commit();
}

#[test]
fn a_refused_admit_that_returns_pages_drops_the_stage_that_names_them() {
    let mut node = plain(1);
    let a = node.request(&[(&[9, 2], 4)], &[]);
    let seq = PlanSeq::from_raw(node.plan(&[a]));
    node.truncate(a, 0, 4, 1); // the reservation is rolled back: page 2 is another's now
    assert!(node.planner.flush_is_empty(seq).is_err());
    node.append_page(a, 0, 4);
    assert_eq!(
        node.step(&[a]).write_loc[0][0],
        16,
        "page 4, not the one that was returned"
    );
}

#[test]
fn a_whole_row_mark_between_stage_and_execution_is_not_lost() {
    let (mut node, a, b) = before_crossing();
    let seq = node.plan(&[a, b]);
    node.set_stream(a, 0, &[30, 31], 4); // reloaded meanwhile
    let batch = node.batch(&[a, b]);
    assert!(!node.planner.promote(PlanSeq::from_raw(seq), &batch, 0));
    assert_eq!(node.step(&[a, b]).write_loc[0][0], 31 * 4);
}

#[test]
fn a_refused_plan_leaves_its_rows_to_the_next_step() {
    let mut node = plain(3);
    let [a, b] = [
        node.request(&[(&[1, 2], 3)], &[]),
        node.request(&[(&[5, 6], 3)], &[]),
    ];
    node.step(&[a, b]);
    node.mark_stale(b);
    let lacking = node.request(&[(&[], 0)], &[]);
    let before = node.seen();
    assert!(node.stage(&[a, b, lacking], 0).is_err()); // raised after it had taken a's cell and b's row
    assert_eq!(node.seen(), before);
    let whole = node.planner.stats().whole_rows;
    node.step(&[a, b]);
    assert_eq!(
        node.planner.stats().whole_rows,
        whole + 1,
        "b is still stale"
    );
    assert_eq!(node.planner.stats().crossings, 1, "a still crosses");
}

#[test]
#[cfg_attr(miri, ignore = "minutes under Miri")]
fn reserving_and_skipping_a_thousand_times_keeps_rows_as_they_are() {
    let (mut node, a, b) = before_crossing();
    let bytes = node.planner.stats().bytes;
    for _ in 0..1000 {
        node.plan(&[a, b]);
        node.drop_staged();
    }
    assert_eq!(node.planner.pages(a, 0).unwrap().len(), 2);
    assert_eq!(node.step(&[a, b]).write_loc[0][0], 8);
    assert_eq!(node.planner.stats().bytes - bytes, 32, "one row of cells");
    assert_eq!(node.planner.stats().crossings, 1);
}

#[test]
fn a_reordered_batch_is_another_step() {
    let (mut node, a, b) = before_crossing();
    let out = node.step(&[b, a]);
    assert_eq!((out.write_loc[0][0], out.write_loc[0][1]), (5 * 4 + 2, 8));
    assert_eq!(
        node.planner.stats().whole_rows,
        2,
        "reordering rewrites no row"
    );
}

#[test]
#[cfg_attr(miri, ignore = "minutes under Miri")]
fn crossings_stand_in_one_order_whether_or_not_a_dropped_stage_broke_the_batch_up() {
    let tables = || {
        vec![
            append("x", 4, 200, 40),
            append("y", 4, 200, 40),
            append("z", 4, 200, 40),
        ]
    };
    let mut sent = Vec::new();
    for disturbed in [false, true] {
        let mut node = node(&Shape::new(tables(), 0, 32));
        let rows: Vec<i64> = (0..32)
            .map(|row| {
                let pages = [1 + 2 * row, 2 + 2 * row];
                node.request(&[(&pages, 3), (&pages, 3), (&pages, 3)], &[])
            })
            .collect();
        node.step(&rows);
        if disturbed {
            node.plan(&rows[..5]);
            node.drop_staged();
        }
        node.step(&rows);
        assert_eq!(node.planner.stats().crossings, 96);
        let copies = node.planner.copies().to_vec();
        sent.push((
            crate::support::machine::gather(&copies, &node.buffer),
            copies,
        ));
    }
    assert_eq!(sent[0], sent[1]);
}
