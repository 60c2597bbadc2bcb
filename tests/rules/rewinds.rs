//! Tokens taken back: the mirror follows the device, the stream what the engine tells, and the difference is sent.

use crate::support::shapes::{Shape, append};
use crate::{node, plain};
use mstar_resident_core::Op;

#[test]
fn a_token_discarded_after_its_step_committed_is_rewound_before_the_row_is_read() {
    let mut node = plain(1);
    let a = node.simple(1, 4, 5);
    node.step(&[a]); // device and mirror say 6
    node.truncate(a, 0, 5, 4);
    let out = node.step(&[a]);
    assert_eq!((out.stored[0][0], out.write_loc[0][0]), (5, 9));
    assert_eq!(node.planner.stats().refreshed_lengths, 1);
    assert_eq!(node.planner.stats().whole_rows, 1);
}

#[test]
fn a_token_discarded_while_its_step_is_in_flight_never_counts() {
    let mut node = plain(2);
    let [a, b] = [node.simple(1, 4, 5), node.simple(11, 4, 5)];
    node.launch_step(&[a, b]);
    node.truncate(a, 0, 5, 4);
    node.commit();
    assert_eq!((node.length(a, 0), node.length(b, 0)), (5, 6));
    assert_eq!(node.step(&[a, b]).stored[0][..2], [5, 6]);
}

#[test]
fn a_rewind_over_a_page_border_clears_the_cell_behind_it() {
    let mut node = plain(1);
    let a = node.request(&[(&[1, 2, 3], 7)], &[]);
    node.step(&[a]);
    node.step(&[a]); // entered page 3
    assert_eq!(node.cells(a, 0)[..4], [1, 2, 3, 0]);
    node.truncate(a, 0, 7, 3);
    node.step(&[a]);
    assert_eq!(
        node.cells(a, 0)[..4],
        [1, 2, 0, 0],
        "rewritten whole, its tail cleared"
    );
    assert_eq!(node.planner.stats().whole_rows, 2);
}

#[test]
fn verified_drafts_keep_what_was_accepted() {
    let mut node = plain(1);
    let a = node.request(&[(&[2, 9, 4], 6)], &[]);
    node.step(&[a]);
    node.truncate(a, 0, 6, 3);
    node.host_step(a, 0, 4); // four draft positions
    node.truncate(a, 0, 8, 3); // two were kept
    let out = node.step(&[a]);
    assert_eq!(
        (out.stored[0][0], out.lengths[0][0], out.write_loc[0][0]),
        (8, 9, 16)
    );
}

#[test]
fn pages_returned_by_a_rewind_and_others_appended_are_written() {
    let mut node = plain(1);
    let a = node.request(&[(&[1, 2, 3], 8)], &[]);
    node.step(&[a]);
    node.truncate(a, 0, 6, 2); // page 3 stood in the row
    node.append_page(a, 0, 9);
    for stored in 6..10 {
        assert_eq!(node.step(&[a]).stored[0][0], stored);
    }
    assert_eq!(node.cells(a, 0)[..4], [1, 2, 9, 0]);
}

#[test]
fn returning_a_page_that_the_row_does_not_name_rewrites_nothing() {
    let mut node = plain(1);
    let a = node.request(&[(&[1, 2, 3], 5)], &[]);
    node.step(&[a]);
    node.truncate(a, 0, 6, 2);
    node.step(&[a]);
    assert_eq!(node.planner.stats().whole_rows, 1);
    assert_eq!(
        node.planner.stats().bytes,
        8 + 2 * 4 + 8,
        "a whole row and a slot, and no more"
    );
}

#[test]
fn a_reload_writes_exactly_the_length_it_is_given() {
    for kept in [7, 8] {
        let mut node = plain(1);
        let a = node.request(&[(&[1, 2], 7)], &[]);
        node.launch_step(&[a]);
        node.offload(a);
        node.commit();
        node.set_stream(a, 0, &[5, 6, 7], kept);
        assert_eq!(node.length(a, 0), kept);
        assert_eq!(node.step(&[a]).stored[0][0], kept);
    }
}

#[test]
fn a_reload_before_the_commit_of_the_step_behind_it_is_absolute_too() {
    let mut node = plain(2);
    let [a, b] = [node.request(&[(&[1, 2, 3], 7)], &[]), node.simple(11, 4, 1)];
    node.launch_step(&[a, b]);
    node.offload(a);
    node.set_stream(a, 0, &[5, 6, 7], 8);
    node.commit();
    assert_eq!((node.length(a, 0), node.length(b, 0)), (8, 2));
    assert_eq!(node.step(&[a, b]).stored[0][0], 8);
}

#[test]
fn a_stream_set_in_flight_counts_from_the_next_step_on() {
    let mut node = plain(1);
    let a = node.simple(1, 4, 5);
    node.launch_step(&[a]);
    node.set_stream(a, 0, &[1, 2, 3, 4], 5);
    node.commit();
    node.step(&[a]);
    node.step(&[a]);
    assert_eq!(node.length(a, 0), 7, "later steps count again");
}

#[test]
fn lengths_and_rewinds_at_their_edges() {
    let mut node = plain(1);
    let a = node.simple(1, 2, 8);
    let cut = |length, pages| Op::Truncate {
        table: 0,
        handle: a,
        length,
        pages,
    };
    for (length, pages) in [
        (9, 2),
        (8, 3),
        (5, 1),
        (-1, 2),
        (i64::MAX, 2),
        (i64::MIN, 2),
        (1, 0),
    ] {
        assert!(
            node.tell(&cut(length, pages)).is_err(),
            "{length} tokens on {pages} pages"
        );
    }
    for (length, pages) in [(8, 2), (4, 1), (0, 1), (0, 0)] {
        node.tell(&cut(length, pages)).unwrap();
    }
    let set = |pages: &[i64], length| Op::SetStream {
        handle: a,
        table: 0,
        pages: pages.to_vec(),
        length,
    };
    for (pages, length) in [(&[1, 2][..], 9), (&[1], 5), (&[], 1), (&[1], -1)] {
        assert!(
            node.tell(&set(pages, length)).is_err(),
            "{length} tokens on {pages:?}"
        );
    }
    node.tell(&set(&[1, 2], 8)).unwrap();
    node.tell(&set(&[], 0)).unwrap();
    let add = |tokens| Op::HostStep {
        table: 0,
        handles: vec![a],
        tokens: vec![tokens],
    };
    node.set_stream(a, 0, &[1], 3);
    for tokens in [2, -1, i64::MAX, i64::MIN] {
        assert!(node.tell(&add(tokens)).is_err(), "{tokens} tokens");
    }
    node.tell(&add(1)).unwrap();
    node.tell(&add(0)).unwrap();
}

#[test]
fn a_length_computed_before_a_prefix_hit_is_refused_and_the_right_one_accepted() {
    let mut node = node(&Shape::new(vec![append("kv", 256, 100, 2560)], 0, 1));
    let a = node.open();
    let set = |length| Op::SetStream {
        handle: a,
        table: 0,
        pages: vec![7, 3],
        length,
    };
    assert!(node.tell(&set(465 + 256)).is_err());
    node.tell(&set(465)).unwrap();
    assert_eq!(node.step(&[a]).write_loc[0][0], 3 * 256 + 465 - 256);
}

#[test]
fn outputs_of_two_steps_that_end_after_a_request_left_touch_no_other() {
    let mut node = plain(2);
    let (a, b) = (node.simple(1, 4, 5), node.simple(11, 4, 5));
    node.step(&[a, b]);
    node.launch_step(&[a, b]); // in flight
    node.release(a);
    let again = node.simple(30, 1, 2);
    node.commit();
    node.launch_step(&[b, again]);
    node.truncate(b, 0, 6, 4); // the outputs of both steps are thrown away
    node.commit();
    assert_eq!((node.length(b, 0), node.length(again, 0)), (6, 3));
    node.step(&[again, b]);
}
