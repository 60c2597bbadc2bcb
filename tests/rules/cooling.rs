//! A slot is not reused before the last launched step that read it has committed.

use crate::plain;

#[test]
fn a_released_row_cools_until_its_last_reader_commits() {
    let mut node = plain(2);
    let [a, b] = node.simples(2)[..] else {
        unreachable!()
    };
    node.launch_step(&[a, b]);
    let slot = node.slot(a);
    node.release(a);
    assert_eq!(node.planner.stats().slots_cooling, 1);
    node.commit();
    assert_eq!(node.planner.stats().slots_cooling, 0);
    let c = node.simples(1)[0];
    node.step(&[b, c]);
    assert_eq!(
        node.slot(c),
        slot,
        "the slot is free once the step behind it has committed"
    );
}

#[test]
fn an_offloaded_row_cools_too_and_is_freed_once_by_the_commit() {
    let mut node = plain(2);
    let [a, b] = node.simples(2)[..] else {
        unreachable!()
    };
    node.launch_step(&[a, b]);
    node.offload(a);
    node.offload(a); // moot: there is no slot to give up
    let stats = node.planner.stats();
    assert_eq!((stats.slots_cooling, stats.released), (1, 1));
    node.release(a);
    assert_eq!(node.planner.stats().released, 1);
    node.commit();
    assert_eq!(node.planner.stats().slots_free, 3);
    assert_eq!(node.slot(a), 0, "the commit brings no row back");
}

#[test]
fn a_row_that_the_step_in_flight_does_not_read_is_free_at_once() {
    let mut node = plain(2);
    let [a, b] = node.simples(2)[..] else {
        unreachable!()
    };
    node.step(&[a]);
    node.launch_step(&[b]);
    node.release(a);
    assert_eq!(
        (
            node.planner.stats().slots_free,
            node.planner.stats().slots_cooling
        ),
        (3, 0)
    );
    node.commit();
}

#[test]
fn a_row_released_between_steps_is_free_at_once() {
    let mut node = plain(2);
    let a = node.simples(1)[0];
    node.step(&[a]);
    node.release(a);
    assert_eq!(node.planner.stats().slots_free, 4);
}

#[test]
fn a_request_that_no_launched_step_read_holds_nothing() {
    let mut node = plain(2);
    let a = node.simples(1)[0];
    assert_eq!(node.release(a), 0);
    let b = node.simples(1)[0];
    node.plan(&[b]);
    assert_eq!(node.release(b), 0, "a plan that never ran does not count");
    assert_eq!(
        (
            node.planner.stats().slots_free,
            node.planner.stats().released
        ),
        (4, 0)
    );
}

#[test]
fn rows_of_a_failed_step_stop_cooling_when_it_retires() {
    let mut node = plain(2);
    let [a, b] = node.simples(2)[..] else {
        unreachable!()
    };
    node.launch_step(&[a, b]);
    node.release(b);
    assert_eq!(node.fail(), [a]);
    assert_eq!(
        (
            node.planner.stats().slots_cooling,
            node.planner.stats().slots_free
        ),
        (0, 3)
    );
}

#[test]
fn release_names_the_last_launched_step_that_read_the_row() {
    let mut node = plain(2);
    let [a, b, c] = node.simples(3)[..] else {
        unreachable!()
    };
    node.step(&[a, b]);
    node.step(&[a, b]);
    let second = node.planner.committed_seq().get();
    node.step(&[a, c]);
    let third = node.planner.committed_seq().get();
    node.plan(&[a, b]); // never launched
    assert_eq!(node.release(b), second);
    assert_eq!(node.offload(a), third);
    assert_eq!(node.release(a), third, "an offload keeps what was read");
}

#[test]
fn the_last_step_of_a_planned_row_is_its_stage_until_the_stage_is_dropped() {
    let mut node = plain(2);
    let [a, b] = node.simples(2)[..] else {
        unreachable!()
    };
    let last = |node: &crate::Node, handle| node.planner.last_step(handle).unwrap().get();
    assert_eq!(last(&node, a), 0);
    node.step(&[a, b]);
    let launched = node.planner.committed_seq().get();
    let ahead = node.plan(&[a, b]);
    assert_eq!((last(&node, a), last(&node, b)), (ahead, ahead));
    node.mark_stale(b); // the stage is dropped, and the fence of both moves back
    assert_eq!((last(&node, a), last(&node, b)), (launched, launched));
    let other = node.plan(&[b]);
    assert_eq!((last(&node, a), last(&node, b)), (launched, other));
}
