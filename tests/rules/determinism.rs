//! Equal histories decide alike: no clock, address, hash order or slot number is looked at.

use crate::support::machine::gather;
use crate::{Node, plain};

fn held(node: &Node, handles: &[i64]) -> Vec<bool> {
    handles
        .iter()
        .map(|&handle| node.slot(handle) != 0)
        .collect()
}

#[test]
fn nodes_with_the_same_history_displace_the_same_requests_and_send_the_same_bytes() {
    let mut logs = Vec::new();
    for _ in 0..2 {
        let mut node = plain(3);
        let rows = node.simples(12);
        let mut log = Vec::new();
        for round in 0..40 {
            let step = [
                rows[round % 12],
                rows[(5 * round + 3) % 12],
                rows[(7 * round + 7) % 12],
            ];
            let mut step = step.to_vec();
            step.dedup();
            let mut distinct: Vec<i64> = Vec::new();
            for row in step {
                if !distinct.contains(&row) {
                    distinct.push(row);
                }
            }
            if node.length(distinct[0], 0) > 12 {
                for &row in &rows {
                    node.truncate(row, 0, 1, 4);
                }
            }
            node.step(&distinct);
            let copies = node.planner.copies().to_vec();
            log.push((gather(&copies, &node.buffer), copies, held(&node, &rows)));
        }
        logs.push(log);
    }
    assert_eq!(logs[0], logs[1]);
}

#[test]
fn a_release_on_the_other_side_of_a_commit_changes_slots_and_no_decision() {
    let mut outcomes = Vec::new();
    for early in [true, false] {
        let mut node = plain(2);
        let rows = node.simples(6);
        node.step(&[rows[0], rows[1]]);
        node.launch_step(&[rows[0], rows[1]]);
        if early {
            node.release(rows[0]);
        }
        node.commit();
        if !early {
            node.release(rows[0]);
        }
        node.step(&[rows[2], rows[3]]);
        node.step(&[rows[1], rows[4]]);
        node.step(&[rows[5]]);
        outcomes.push(held(&node, &rows[1..]));
    }
    assert_eq!(outcomes[0], outcomes[1]);
}

#[test]
fn a_release_on_the_other_side_of_a_flush_still_runs() {
    for early in [true, false] {
        let mut node = plain(2);
        let rows = node.simples(8);
        node.step(&[rows[0], rows[1]]);
        node.step(&[rows[2], rows[3]]);
        if early {
            node.release(rows[2]);
        }
        node.plan(&[rows[4], rows[5]]);
        if !early {
            node.release(rows[2]);
        }
        node.launch();
        node.commit();
        node.step(&[rows[6], rows[7]]);
        node.step(&[rows[0], rows[1]]);
    }
}

#[test]
fn victims_do_not_depend_on_the_slots_that_requests_hold() {
    let mut outcomes = Vec::new();
    for shuffled in [false, true] {
        let mut node = plain(2);
        let rows = node.simples(8);
        if shuffled {
            // Another past puts the same rows into other slots.
            let gone = node.simples(3);
            node.step(&gone[..2]);
            node.step(&gone[2..]);
            node.step(&[rows[0]]);
            for handle in gone {
                node.release(handle);
            }
        } else {
            node.step(&[rows[0]]);
        }
        node.step(&[rows[1], rows[2]]);
        node.step(&[rows[3], rows[4]]); // one of them displaces row 0
        node.step(&[rows[1], rows[2]]);
        node.step(&[rows[5]]); // of rows 3 and 4, the first in its batch goes
        outcomes.push(held(&node, &rows));
    }
    assert_eq!(outcomes[0], outcomes[1]);
}
