//! Every refusal says what was expected and what came, and leaves no trace.

use mstar_resident_core::Error;

use crate::support::shapes::{Shape, append};
use crate::{Node, node};
use mstar_resident_core::Op;

/// Two tables, one of them owned by the planner, a column, two requests with rows.
pub fn busy() -> (Node, i64, i64) {
    let mut node = node(&Shape::new(
        vec![append("told", 4, 20, 40), append("owned", 4, 6, 40)],
        1,
        2,
    ));
    node.tell(&Op::OwnPages(1)).unwrap();
    let mut open = |pages: &[i64]| {
        let handle = node.open();
        node.set_stream(handle, 0, pages, 3);
        node.reserve(handle, 1, 5);
        node.set_column(0, handle, 1);
        handle
    };
    let (a, b) = (open(&[1, 2]), open(&[3, 4]));
    node.step(&[a, b]);
    (node, a, b)
}

pub fn refused(node: &mut Node, call: &Op) -> Error {
    let before = node.seen();
    let error = node.tell(call).unwrap_err();
    assert_eq!(node.seen(), before, "{call:?}");
    error
}

#[test]
fn a_refused_call_does_not_drop_the_stage_or_break_the_batch_up() {
    let (mut node, a, b) = busy();
    node.plan(&[a, b]);
    for call in [
        Op::SetStream {
            handle: a,
            table: 0,
            pages: vec![1],
            length: 9,
        },
        Op::HostStep {
            table: 0,
            handles: vec![a],
            tokens: vec![100],
        },
        Op::Truncate {
            table: 0,
            handle: a,
            length: 99,
            pages: 0,
        },
        Op::SetColumn {
            column: 0,
            handles: vec![a, b],
            values: vec![1],
        },
        Op::MarkStale(vec![a, a]),
        Op::Fork {
            table: 1,
            parent: b,
            child: a,
            tokens: 0,
        },
        Op::Release(77),
    ] {
        refused(&mut node, &call); // the stage is looked for after each
    }
    node.launch();
    node.commit();
}

#[test]
fn a_stage_asked_for_behind_a_step_in_flight_is_not_ready() {
    let (mut node, a, b) = busy();
    node.launch_step(&[a, b]);
    let seq = node.step.as_ref().unwrap().seq;
    let before = node.seen();
    assert_eq!(node.stage(&[a], 0), Err(Error::NotReady { seq }));
    assert_eq!(node.seen(), before);
    node.commit();
    node.step(&[a]);
}

#[test]
fn a_batch_with_a_request_that_left_is_refused() {
    let (mut node, a, b) = busy();
    let batch = node.batch(&[a, b]);
    node.release(b);
    assert_eq!(
        node.stage_batch(&batch, 0),
        Err(Error::UnknownHandle { handle: b })
    );
    assert_eq!(
        node.planner.reserve_step(&batch),
        Err(Error::UnknownHandle { handle: b })
    );
    let recycled = node.open();
    assert_eq!(recycled & 0xFFFF_FFFF, b & 0xFFFF_FFFF);
    assert_eq!(
        node.stage_batch(&batch, 0),
        Err(Error::UnknownHandle { handle: b })
    );
}

#[test]
fn a_row_with_released_tokens_is_refused_until_it_is_replaced() {
    let (mut node, a, b) = busy();
    node.tell(&Op::MarkReleasedTokens {
        table: 0,
        handle: a,
    })
    .unwrap();
    let error = node.stage(&[b, a], 0).unwrap_err();
    assert_eq!(
        error,
        Error::ReleasedTokens {
            handle: a,
            table: "told".into()
        }
    );
    node.step(&[b]);
    node.set_stream(a, 0, &[1, 2], 4);
    node.step(&[a]);
    node.tell(&Op::MarkReleasedTokens {
        table: 1,
        handle: a,
    })
    .unwrap();
    assert!(node.stage(&[a], 0).is_err());
    node.offload(a); // an empty stream has none to miss
    node.set_stream(a, 0, &[1], 1);
    node.reserve(a, 1, 1);
    node.step(&[a]);
}

#[test]
fn rows_that_no_table_can_describe_name_request_pool_and_numbers() {
    let (mut node, a, b) = busy();
    node.truncate(a, 0, 4, 1);
    assert_eq!(
        node.stage(&[b, a], 0),
        Err(Error::MissingPage {
            handle: a,
            table: "told".into(),
            needed: 2,
            held: 1
        })
    );
    let pages: Vec<i64> = (1..=11).collect();
    node.set_stream(a, 0, &pages, 40);
    assert_eq!(
        node.stage(&[a], 0),
        Err(Error::RowOverflow {
            handle: a,
            table: "told".into(),
            needed: 11,
            width: 10
        })
    );
}

#[test]
fn a_flush_buffer_that_is_too_small_changes_nothing() {
    let (mut node, a, b) = busy();
    node.mark_stale(a);
    let seq = mstar_resident_core::PlanSeq::from_raw(node.plan(&[a, b]));
    let (before, expected) = (node.seen(), node.planner.largest_flush_bytes());
    let mut short = vec![0; expected - 1];
    let got = expected - 1;
    assert_eq!(
        node.planner.flush(seq, &mut short),
        Err(Error::FlushBuffer { expected, got })
    );
    assert_eq!(
        node.planner.flush(seq, &mut []),
        Err(Error::FlushBuffer { expected, got: 0 })
    );
    assert_eq!(node.seen(), before);
    node.launch(); // the stage stands
    node.commit();
}

#[test]
fn every_error_says_expected_and_got() {
    let (mut node, a, _) = busy();
    let set = Op::SetStream {
        handle: a,
        table: 0,
        pages: vec![1],
        length: 5,
    };
    let error = refused(&mut node, &set).to_string();
    assert_eq!(
        error,
        format!("request {a}, table told: expected a length from 0 to 4, got 5")
    );
    let owned = Op::SetStream {
        handle: a,
        table: 1,
        pages: vec![1],
        length: 1,
    };
    assert_eq!(
        refused(&mut node, &owned).to_string(),
        "table owned: expected pages owned by the engine"
    );
    let told = Op::Reserve {
        table: 0,
        handles: vec![a],
        tokens: vec![1],
    };
    assert_eq!(
        refused(&mut node, &told).to_string(),
        "table told: expected pages owned by the planner"
    );
}
