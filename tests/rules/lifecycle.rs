//! Requests come and go: generations, recycled handles, maps that do not grow.

use mstar_resident_core::Error;

use crate::plain;
use crate::support::random::Random;

#[test]
fn a_recycled_handle_gets_a_fresh_row_while_the_old_one_cools() {
    let mut node = plain(2);
    let a = node.simple(1, 4, 5);
    node.launch_step(&[a]);
    node.release(a);
    let again = node.simple(20, 1, 2); // the same index, before the commit
    assert_eq!(again & 0xFFFF_FFFF, a & 0xFFFF_FFFF);
    assert_ne!(again, a);
    node.commit();
    assert_eq!(
        node.length(again, 0),
        2,
        "the commit advances what the step recorded, not the new request"
    );
    let out = node.step(&[again]);
    assert_eq!((out.stored[0][0], out.write_loc[0][0]), (2, 20 * 4 + 2));
    assert_eq!(node.planner.stats().whole_rows, 2);
}

#[test]
fn a_request_that_comes_back_at_once_and_without_a_step_between_is_new() {
    let mut node = plain(1);
    let a = node.simple(1, 4, 5);
    node.step(&[a]);
    node.release(a);
    let b = node.simple(9, 1, 3);
    assert_eq!(
        node.planner.release(a),
        Err(Error::UnknownHandle { handle: a }),
        "released twice"
    );
    assert_eq!(node.planner.last_step(b).unwrap().get(), 0);
    assert_eq!(node.step(&[b]).stored[0][0], 3);
    assert_eq!(node.planner.stats().whole_rows, 2);
}

#[test]
fn rows_follow_requests_through_batches_of_any_order() {
    let mut node = plain(4);
    let [r1, r2, r3, r4] = [
        node.request(&[(&[1, 2], 5)], &[]),
        node.request(&[(&[3, 4, 5, 6, 7], 17)], &[]),
        node.request(&[(&[8, 9, 10, 11, 12, 13, 14, 15, 16], 33)], &[]),
        node.request(&[(&[17], 2)], &[]),
    ];
    node.step(&[r1, r2, r3]);
    node.offload(r2);
    node.step(&[r3, r1, r4]);
    node.set_stream(r2, 0, &[20, 21, 22, 23, 24], 18);
    let out = node.step(&[r4, r2]);
    assert_eq!(out.slots[..2], [node.slot(r4), node.slot(r2)]);
    assert_eq!(out.stored[0][..2], [3, 18]);
}

#[test]
fn every_mark_of_a_request_is_reset_with_it() {
    type Reset = fn(&mut crate::Node, i64);
    let resets: [Reset; 4] = [
        |node, handle| {
            node.offload(handle);
            node.set_stream(handle, 0, &[31, 32], 4);
        },
        |node, handle| node.set_stream(handle, 0, &[41, 42], 4),
        |node, handle| {
            node.truncate(handle, 0, 0, 0);
            node.set_stream(handle, 0, &[51, 52], 4);
        },
        |node, handle| node.mark_stale(handle),
    ];
    for first in resets {
        for second in resets {
            for in_flight in [false, true] {
                let mut node = plain(2);
                let (a, b) = (node.request(&[(&[1, 2], 3)], &[]), node.simple(11, 4, 1));
                node.step(&[a, b]);
                node.plan(&[a, b]);
                if in_flight {
                    node.launch();
                }
                first(&mut node, a);
                second(&mut node, a);
                if in_flight {
                    node.commit();
                }
                node.step(&[b, a]);
                node.step(&[b, a]);
                let whole = node.planner.stats().whole_rows;
                node.step(&[b, a]);
                assert_eq!(
                    node.planner.stats().whole_rows,
                    whole,
                    "no mark is left behind"
                );
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "minutes under Miri")]
fn short_requests_through_every_exit_leave_nothing() {
    let mut node = plain(2);
    let mut random = Random::new(3);
    for round in 0..3000 {
        let handle = node.open();
        assert!(handle & 0xFFFF_FFFF < 2, "indices are recycled");
        match random.below(6) {
            0 => {} // aborted before its first plan
            1 => {
                node.set_stream(handle, 0, &[1], 1);
                node.plan(&[handle]); // aborted after a plan made ahead
            }
            2 => {
                node.set_stream(handle, 0, &[2], 1);
                node.launch_step(&[handle]); // aborted in flight
            }
            3 => assert!(node.stage(&[handle], 0).is_err()), // an error in the plan
            4 => {
                node.set_stream(handle, 0, &[3], 1);
                node.step(&[handle]);
                node.offload(handle); // offloaded, then aborted
            }
            _ => {
                node.set_stream(handle, 0, &[4], 1);
                node.step(&[handle]);
            }
        }
        node.release(handle);
        node.dead.clear();
        if node.step.is_some() {
            if round % 2 == 0 {
                node.commit();
            } else {
                node.fail();
            }
        }
    }
    let stats = node.planner.stats();
    assert_eq!(
        (stats.slots_free, stats.slots_held, stats.slots_cooling),
        (4, 0, 0)
    );
    assert!(node.live().is_empty());
}

#[test]
fn an_offload_in_flight_is_not_undone_by_the_commit() {
    let mut node = plain(2);
    let (a, b) = (node.simple(1, 4, 5), node.simple(11, 4, 1));
    node.launch_step(&[a, b]);
    node.offload(a);
    node.commit();
    assert_eq!((node.length(a, 0), node.slot(a)), (0, 0));
    assert_eq!(node.planner.pages(a, 0).unwrap(), &[] as &[i32]);
    assert!(
        node.stage(&[a, b], 0).is_err(),
        "it has no page until it is reloaded"
    );
    node.step(&[b]);
}

#[test]
fn a_silent_change_of_a_page_is_told_and_rewritten() {
    let mut node = plain(1);
    let a = node.request(&[(&[3, 4], 6)], &[]);
    node.step(&[a]);
    node.set_stream(a, 0, &[11, 4], 7); // the first column of a held row
    node.step(&[a]);
    assert_eq!(node.cells(a, 0)[..3], [11, 4, 0]);
    assert_eq!(node.planner.stats().whole_rows, 2);
}
