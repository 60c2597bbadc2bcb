//! Pages that the planner owns: handed out once, shared by count, reused after the last step that may touch them.

use std::collections::BTreeSet;

use mstar_resident_core::Error;

use crate::support::ops::reserve_step;
use crate::support::shapes::{Shape, append, read_only};
use crate::{Node, node};
use mstar_resident_core::Op;

fn owner(max_batch: usize, pool_pages: u64) -> Node {
    let mut node = node(&Shape::new(
        vec![append("kv", 4, pool_pages, 40)],
        0,
        max_batch,
    ));
    node.tell(&Op::OwnPages(0)).unwrap();
    node
}

fn free(node: &Node) -> u64 {
    node.planner.free_pages(0).unwrap()
}

fn reserved(node: &mut Node, tokens: i64) -> i64 {
    let handle = node.open();
    node.reserve(handle, 0, tokens);
    handle
}

fn fork(node: &mut Node, parent: i64, child: i64, tokens: i64) -> Result<i64, Error> {
    node.tell(&Op::Fork {
        table: 0,
        parent,
        child,
        tokens,
    })
}

#[test]
fn every_page_but_the_sink_is_handed_out_once() {
    let mut node = owner(2, 10);
    let handles: Vec<i64> = (0..5).map(|_| reserved(&mut node, 8)).collect();
    assert_eq!(free(&node), 0);
    let pages: BTreeSet<i32> = handles
        .iter()
        .flat_map(|&handle| node.planner.pages(handle, 0).unwrap().to_vec())
        .collect();
    assert!(pages.into_iter().eq(1..=10));
}

#[test]
fn a_reservation_takes_all_pages_or_none() {
    let mut node = owner(2, 5);
    let (a, b) = (node.open(), node.open());
    let call = |tokens: [i64; 2]| Op::Reserve {
        table: 0,
        handles: vec![a, b],
        tokens: tokens.to_vec(),
    };
    let error = node.tell(&call([12, 12])).unwrap_err();
    let expected = Error::OutOfPages {
        table: "kv".into(),
        needed: 6,
        free: 5,
    };
    assert_eq!(error, expected);
    assert_eq!(free(&node), 5);
    node.tell(&call([12, 8])).unwrap();
    assert_eq!(free(&node), 0);
    node.tell(&call([12, 8])).unwrap(); // it has them already
    assert!(matches!(
        node.tell(&call([1, 41])),
        Err(Error::RowOverflow {
            needed: 11,
            width: 5,
            ..
        })
    ));
    for tokens in [-1, i64::MIN] {
        assert!(matches!(
            node.tell(&call([1, tokens])),
            Err(Error::Length { .. })
        ));
    }
    assert!(matches!(
        node.tell(&call([1, i64::MAX])),
        Err(Error::RowOverflow { .. })
    ));
}

#[test]
fn pages_of_a_step_in_flight_are_reused_after_it_only() {
    let mut node = owner(2, 2);
    let a = reserved(&mut node, 4);
    let b = reserved(&mut node, 4);
    node.launch_step(&[a, b]);
    let page = node.planner.pages(a, 0).unwrap()[0];
    node.release(a);
    assert_eq!(free(&node), 0);
    let c = node.open();
    assert!(
        node.tell(&Op::Reserve {
            table: 0,
            handles: vec![c],
            tokens: vec![1]
        })
        .is_err()
    );
    node.commit();
    assert_eq!(free(&node), 1);
    node.reserve(c, 0, 1);
    assert_eq!(node.planner.pages(c, 0).unwrap(), [page]);
}

#[test]
fn pages_of_a_failed_step_are_reused_after_it_too() {
    let mut node = owner(1, 2);
    let a = reserved(&mut node, 4);
    node.launch_step(&[a]);
    node.offload(a);
    assert_eq!(free(&node), 1);
    node.fail();
    assert_eq!(free(&node), 2);
}

#[test]
fn pages_given_back_between_steps_are_free_at_once() {
    let mut node = owner(1, 8);
    let a = reserved(&mut node, 16);
    node.step(&[a]);
    node.truncate(a, 0, 1, 1);
    assert_eq!(free(&node), 7);
    node.release(a);
    assert_eq!(free(&node), 8);
}

#[test]
fn a_rewind_that_returns_a_pages_row_writes_its_next_page() {
    let mut node = owner(2, 8);
    let a = reserved(&mut node, 8);
    node.host_step(a, 0, 4);
    node.step(&[a]);
    node.truncate(a, 0, 4, 1);
    let thief = reserved(&mut node, 4); // takes the page that was returned
    node.reserve(a, 0, 1);
    node.step(&[a, thief]);
}

#[test]
fn a_step_is_given_the_pages_it_enters() {
    let mut node = owner(4, 100);
    let rows: Vec<i64> = (0..4).map(|row| reserved(&mut node, row)).collect();
    for (tokens, &row) in (0..).zip(&rows) {
        node.host_step(row, 0, tokens);
    }
    for _ in 0..30 {
        let step = reserve_step(rows.clone());
        node.tell(&step).unwrap();
        node.tell(&step).unwrap(); // again: nothing more
        node.step(&rows);
    }
    assert_eq!(node.planner.stats().whole_rows, 4);
    let lengths: u64 = (0..4)
        .map(|row| (30 + row_start(row) as u64).div_ceil(4))
        .sum();
    assert_eq!(free(&node), 100 - lengths);
}

fn row_start(row: usize) -> usize {
    row
}

#[test]
fn a_step_is_given_pages_on_every_owned_pool_or_on_none() {
    let tables = vec![
        append("x", 4, 9, 40),
        append("y", 2, 2, 40),
        read_only("told", 4, 9, 40),
    ];
    let mut node = node(&Shape::new(tables, 0, 2));
    node.tell(&Op::OwnPages(0)).unwrap();
    node.tell(&Op::OwnPages(1)).unwrap();
    let rows = [node.open(), node.open()];
    let step = reserve_step(rows.to_vec());
    node.tell(&step).unwrap();
    for _ in 0..2 {
        node.step(&rows);
        if node.length(rows[0], 0) < 2 {
            node.tell(&step).unwrap();
        }
    }
    let free = node.planner.free_pages(0);
    assert!(
        matches!(
            node.tell(&step),
            Err(Error::OutOfPages {
                needed: 2,
                free: 0,
                ..
            })
        ),
        "y is empty, by the batch that stepped last"
    );
    node.release(rows[1]);
    let other = node.open();
    let another = reserve_step(vec![rows[0], other]);
    assert!(
        node.tell(&another).is_err(),
        "y has one page for two rows, x enough for both"
    );
    assert_eq!(node.planner.free_pages(0).unwrap(), free.unwrap() + 1);
    node.tell(&reserve_step(vec![rows[0]])).unwrap();
    node.step(&[rows[0]]);
}

#[test]
fn pages_for_a_step_are_refused_while_one_is_in_flight() {
    let mut node = owner(1, 9);
    let a = reserved(&mut node, 4);
    node.launch_step(&[a]);
    let seq = node.step.as_ref().unwrap().seq;
    assert_eq!(
        node.tell(&reserve_step(vec![a])),
        Err(Error::NotReady { seq })
    );
    node.reserve(a, 0, 4); // behind the token in flight: the fifth
    assert_eq!(node.planner.pages(a, 0).unwrap().len(), 2);
    node.commit();
}

#[test]
fn a_pool_can_be_owned_before_any_stream_names_its_pages_and_once() {
    let mut node = node(&Shape::plain(1));
    let a = node.request(&[(&[1], 1)], &[]);
    let own = Op::OwnPages(0);
    assert!(matches!(node.tell(&own), Err(Error::Ownership { .. })));
    node.launch_step(&[a]);
    node.release(a);
    assert!(
        matches!(node.tell(&own), Err(Error::NotReady { .. })),
        "page 1 may still be written"
    );
    assert!(matches!(
        node.planner.free_pages(0),
        Err(Error::Ownership {
            expected: "planner",
            ..
        })
    ));
    node.commit();
    node.tell(&own).unwrap();
    let b = reserved(&mut node, 4);
    node.launch_step(&[b]);
    node.release(b);
    assert!(
        node.tell(&own).is_err(),
        "owning it again would free the cooling page"
    );
    node.commit();
    assert_eq!(free(&node), 1000);
}

#[test]
fn calls_for_the_other_owner_are_refused() {
    let mut node = owner(1, 9);
    let a = reserved(&mut node, 4);
    let append = Op::AppendPages {
        table: 0,
        handles: vec![a],
        counts: vec![1],
        pages: vec![9],
    };
    assert!(matches!(
        node.tell(&append),
        Err(Error::Ownership {
            expected: "engine",
            ..
        })
    ));
    node.step(&[a]);
}

#[test]
fn a_fork_shares_full_pages_and_each_goes_back_with_its_last_owner() {
    let mut node = owner(2, 9);
    let parent = reserved(&mut node, 10);
    node.host_step(parent, 0, 10);
    let child = node.open();
    fork(&mut node, parent, child, 8).unwrap();
    assert_eq!((free(&node), node.length(child, 0)), (6, 8));
    assert_eq!(
        node.planner.pages(child, 0).unwrap(),
        &node.planner.pages(parent, 0).unwrap()[..2]
    );
    node.reserve(child, 0, 1);
    node.step(&[parent, child]);
    node.release(parent);
    assert_eq!(free(&node), 6, "the third page");
    node.step(&[child]);
    node.offload(child);
    assert_eq!(free(&node), 9);
}

#[test]
fn a_fork_of_part_of_a_page_or_onto_a_used_stream_is_refused() {
    let mut node = owner(2, 9);
    let parent = reserved(&mut node, 10);
    node.host_step(parent, 0, 10);
    let child = node.open();
    for tokens in [-4, 1, 7, 9, 10, 12, i64::MAX, i64::MIN] {
        assert!(
            matches!(
                fork(&mut node, parent, child, tokens),
                Err(Error::Length { .. })
            ),
            "{tokens}"
        );
    }
    assert!(fork(&mut node, parent, 77, 4).is_err() && fork(&mut node, 77, child, 4).is_err());
    fork(&mut node, parent, child, 4).unwrap();
    assert!(
        matches!(fork(&mut node, parent, child, 4), Err(Error::Length { .. })),
        "it is not empty"
    );
}

#[test]
fn a_stream_that_gave_up_tokens_is_not_forked() {
    let mut node = owner(2, 9);
    let parent = reserved(&mut node, 8);
    node.host_step(parent, 0, 8);
    node.tell(&Op::MarkReleasedTokens {
        table: 0,
        handle: parent,
    })
    .unwrap();
    let child = node.open();
    assert!(matches!(
        fork(&mut node, parent, child, 4),
        Err(Error::ReleasedTokens { .. })
    ));
    let sound = reserved(&mut node, 4);
    node.host_step(sound, 0, 4);
    node.tell(&Op::MarkReleasedTokens {
        table: 0,
        handle: child,
    })
    .unwrap();
    fork(&mut node, sound, child, 4).unwrap(); // the child's stream is replaced
    node.reserve(child, 0, 1);
    node.step(&[child]);
}

#[test]
fn a_fork_onto_a_planned_row_drops_its_stage() {
    let tables = vec![append("kv", 4, 9, 40), read_only("context", 4, 9, 40)];
    let mut node = node(&Shape::new(tables, 0, 2));
    node.tell(&Op::OwnPages(1)).unwrap();
    let parent = node.open();
    node.reserve(parent, 1, 4);
    node.host_step(parent, 1, 4);
    let child = node.request(&[(&[1], 1)], &[]);
    node.set_stream(parent, 0, &[2], 1);
    node.step(&[child]); // an empty context
    node.plan(&[child]);
    node.tell(&Op::Fork {
        table: 1,
        parent,
        child,
        tokens: 4,
    })
    .unwrap();
    assert!(node.staged.is_none());
    let out = node.step(&[child, parent]);
    assert_eq!(out.stored[1], [4, 4]);
}

#[test]
fn a_refused_plan_leaves_its_reservation_to_the_retry() {
    let mut node = node(&Shape::new(vec![append("kv", 4, 9, 40)], 1, 1));
    node.tell(&Op::OwnPages(0)).unwrap();
    let a = node.open();
    let step = reserve_step(vec![a]);
    node.tell(&step).unwrap();
    assert!(node.stage(&[a], 0).is_err(), "its column is not set");
    assert_eq!(free(&node), 8);
    node.set_column(0, a, 1);
    node.tell(&step).unwrap();
    node.step(&[a]);
    assert_eq!(free(&node), 8);
}
