//! Padding rows read the trash row, which stays zero.

use crate::plain;

#[test]
fn padding_slots_are_zero_to_the_end_of_the_bucket() {
    let mut node = plain(48);
    let rows = node.simples(40);
    node.step(&rows);
    let out = node.step(&rows[..33]);
    assert_eq!(out.slots.len(), 48);
    assert!(out.slots[33..].iter().all(|&slot| slot == 0));
    node.step(&rows);
    node.step(&rows[..9]);
}

#[test]
fn parked_rows_are_untouched_by_a_narrower_step() {
    let mut node = plain(8);
    let rows = node.simples(6);
    node.step(&rows);
    let before: Vec<(Vec<i64>, Vec<i32>)> = rows[3..]
        .iter()
        .map(|&row| {
            (
                node.device.narrow(node.slot(row)).to_vec(),
                node.cells(row, 0),
            )
        })
        .collect();
    let slots: Vec<usize> = rows[..3].iter().map(|&row| node.slot(row)).collect();
    let out = node.step(&rows[..3]);
    assert_eq!(out.slots, [slots, vec![0; 5]].concat());
    for (row, (narrow, pages)) in rows[3..].iter().zip(before) {
        assert_eq!(
            (node.device.narrow(node.slot(*row)), node.cells(*row, 0)),
            (&narrow[..], pages)
        );
    }
}

#[test]
#[cfg_attr(miri, ignore = "minutes under Miri")]
fn the_trash_row_is_zero_after_any_number_of_replays() {
    let mut node = plain(4);
    let a = node.simple(1, 16, 0);
    for round in 0..600 {
        node.step(&[a]); // three padding rows; row 0 is checked after every replay
        if round % 60 == 59 {
            node.truncate(a, 0, 0, 16);
        }
    }
    assert!(node.device.narrow(0).iter().all(|&cell| cell == 0));
}

#[test]
fn padding_stands_behind_the_rows_and_each_row_is_credited_at_its_place() {
    let mut node = plain(4);
    let [a, b, c] = [
        node.simple(1, 4, 1),
        node.simple(5, 4, 5),
        node.simple(9, 4, 9),
    ];
    node.step(&[a, b]);
    node.host_step(a, 0, 1); // a mixed step between
    let out = node.step(&[b, c]);
    assert_eq!(out.slots, [node.slot(b), node.slot(c), 0, 0]);
    assert_eq!(
        [node.length(a, 0), node.length(b, 0), node.length(c, 0)],
        [3, 7, 10]
    );
}
