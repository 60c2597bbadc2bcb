//! A slot is not reused before the last launched step that read it has committed.

use crate::support::node::Node;
use crate::support::shapes::Shape;

fn node(max_batch: usize) -> Node {
    let mut node = Node::new(&Shape::plain(max_batch));
    node.add_lease(max_batch);
    node
}

#[test]
fn a_released_row_cools_until_its_last_reader_commits() {
    let mut node = node(2);
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
