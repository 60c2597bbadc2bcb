//! The copies of a flush: joined, disjoint, in bounds, and no more than what differs.

use mstar_resident_core::{Planner, Target};

use crate::support::shapes::{Shape, append, read_only};
use crate::{Node, node, plain};

fn targets(node: &Node) -> Vec<(Target, usize)> {
    node.planner
        .copies()
        .iter()
        .map(|run| (run.target, run.bytes))
        .collect()
}

#[test]
fn whole_rows_in_neighbouring_slots_are_one_copy_a_target() {
    let mut node = node(&Shape::new(vec![append("kv", 4, 50, 8)], 0, 3)); // tables of two pages
    let rows: Vec<i64> = (0..3)
        .map(|row| node.request(&[(&[1 + row, 4 + row], 5)], &[]))
        .collect();
    node.step(&rows);
    assert_eq!(
        targets(&node),
        [
            (Target::Narrow, 24),
            (Target::Table(0), 24),
            (Target::Lease(0), 24)
        ]
    );
}

#[test]
fn rows_that_do_not_fill_their_table_are_copies_of_their_own() {
    let mut node = plain(3);
    let rows = node.simples(3);
    node.step(&rows);
    let table: Vec<usize> = node
        .planner
        .copies()
        .iter()
        .filter(|run| run.target == Target::Table(0))
        .map(|run| run.bytes)
        .collect();
    assert_eq!(table, [4, 4, 4], "used cells only");
}

#[test]
fn whole_rows_are_joined_in_the_order_of_their_slots() {
    let mut node = plain(4);
    let rows = node.simples(4);
    node.step(&rows);
    for &row in &rows {
        node.mark_stale(row);
    }
    node.step(&[rows[3], rows[1], rows[0], rows[2]]);
    let narrow: Vec<(Target, usize)> = targets(&node)
        .into_iter()
        .filter(|run| run.0 == Target::Narrow)
        .collect();
    assert_eq!(narrow, [(Target::Narrow, 32)]);
}

#[test]
fn a_steady_step_of_an_unchanged_batch_copies_nothing() {
    let mut node = node(&Shape::new(
        vec![append("kv", 128, 100, 2560), read_only("c", 128, 100, 2560)],
        2,
        4,
    ));
    let rows: Vec<i64> = (0..4)
        .map(|row| node.request(&[(&[1 + row], 7), (&[9], 3)], &[1, 2]))
        .collect();
    node.step(&rows);
    let bytes = node.planner.stats().bytes;
    for _ in 0..100 {
        node.plan(&rows);
        assert_eq!(node.staged.as_ref().unwrap().info.cells, 0);
        node.launch();
        node.commit();
    }
    assert_eq!(node.planner.stats().bytes, bytes);
}

#[test]
#[cfg_attr(miri, ignore = "minutes under Miri")]
fn a_thousand_steps_send_the_slots_once_and_a_cell_a_crossing() {
    let mut node = node(&Shape::new(vec![append("kv", 16, 300, 64)], 0, 64));
    let rows: Vec<i64> = (0..64)
        .map(|row| node.request(&[(&[1 + row, 65 + row, 129 + row, 193 + row], 1)], &[]))
        .collect();
    node.step(&rows);
    for step in 1..1000 {
        let before = node.planner.stats();
        if step % 60 == 0 {
            for &row in &rows {
                node.truncate(row, 0, 1, 4);
            }
            node.step(&rows);
            continue;
        }
        node.plan(&rows);
        node.launch();
        node.commit();
        let after = node.planner.stats();
        assert_eq!(
            after.bytes - before.bytes,
            32 * (after.crossings - before.crossings)
        );
    }
    assert!(node.planner.stats().crossings > 64 * 40);
}

#[test]
fn a_whole_row_sends_its_used_cells_and_the_tail_to_be_cleared() {
    let mut node = plain(1);
    let long = node.request(&[(&[1, 2, 3, 4, 5], 18)], &[]);
    let short = node.request(&[(&[9], 1)], &[]);
    let other = node.request(&[(&[8], 1)], &[]);
    node.step(&[long]);
    node.step(&[other]);
    node.step(&[short]); // in the slot of the long row
    let table = node
        .planner
        .copies()
        .iter()
        .find(|run| run.target == Target::Table(0))
        .unwrap();
    assert_eq!(
        table.bytes,
        5 * 4,
        "one page and four cells of the row before"
    );
    node.step(&[long]); // in the slot of the other
    node.step(&[short]);
    assert!(
        node.planner
            .copies()
            .iter()
            .all(|run| run.target != Target::Table(0))
    );
}

#[test]
fn the_largest_flush_fills_the_buffer_and_no_more() {
    let shape = Shape::new(
        vec![append("x", 4, 50, 20), read_only("y", 4, 50, 12)],
        1,
        5,
    );
    let mut node = node(&shape); // tables of five and three pages, five rows: both need alignment
    let rows: Vec<i64> = (0..5)
        .map(|row| node.request(&[(&[1 + row, 6, 7, 8, 9], 17), (&[1, 2, 3], 9)], &[row]))
        .collect();
    node.plan(&rows);
    node.launch(); // the buffer has exactly `largest_flush_bytes`
    node.fail();
    node.step(&rows); // every row whole, slots and every row of cells
    let end = node
        .planner
        .copies()
        .iter()
        .map(|run| run.from_bytes + run.bytes)
        .max()
        .unwrap();
    assert_eq!(end, node.planner.largest_flush_bytes());
    assert_eq!(end, 5 * 3 * 8 + 104 + 64 + 8 * (5 + 5 * 2 * 4));
}

#[test]
#[cfg_attr(miri, ignore = "minutes under Miri")]
fn steps_of_256_rows_send_nothing_inside_a_page_and_a_cell_a_crossing() {
    let shape = Shape::new(vec![append("kv", 2048, 700, 4096)], 0, 256);
    let mut planner = Planner::new(shape.layout(), shape.max_batch).unwrap();
    planner.add_lease(shape.max_batch).unwrap();
    let mut buffer = vec![0; planner.largest_flush_bytes()];
    let handles: Vec<i64> = (0..256).map(|_| planner.open()).collect();
    for (&handle, page) in handles.iter().zip(1..) {
        let length = 2048 - 1001 - page % 2; // the last of a thousand steps inside the page is followed by a crossing
        planner
            .set_stream(handle, 0, &[page, page + 256], length)
            .unwrap();
    }
    let batch = planner.batch(&handles).unwrap();
    let mut step = |planner: &mut Planner| {
        let before = planner.stats();
        let stage = planner.stage(&batch, 0).unwrap();
        planner.flush(stage.seq, &mut buffer).unwrap();
        planner.commit(stage.seq).unwrap();
        let after = planner.stats();
        (after.copies - before.copies, after.bytes - before.bytes)
    };
    step(&mut planner);
    assert_eq!(planner.stats().whole_rows, 256);
    for _ in 0..1000 {
        assert_eq!(step(&mut planner), (0, 0));
    }
    for rows in [255, 255] {
        // Every other row: from the first of them to the last is one copy.
        assert_eq!(step(&mut planner), (1, 32 * rows));
    }
    assert_eq!(step(&mut planner), (0, 0));
    assert_eq!(planner.stats().crossings, 256);
}
