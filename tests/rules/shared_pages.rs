//! Pages that several streams name: nobody writes into them.

use mstar_resident_core::{Error, Op};

use crate::support::shapes::{Shape, append};
use crate::{Node, node};

/// A parent of two pages of four tokens, and a child that shares both.
fn parent_and_child() -> (Node, i64, i64) {
    let mut node = node(&Shape::new(vec![append("kv", 4, 10, 40)], 0, 2));
    node.tell(&Op::OwnPages(0)).unwrap();
    let (parent, child) = (node.open(), node.open());
    node.reserve(parent, 0, 8);
    node.tell(&Op::HostStep {
        table: 0,
        handles: vec![parent],
        tokens: vec![8],
    })
    .unwrap();
    node.tell(&Op::Fork {
        table: 0,
        parent,
        child,
        tokens: 8,
    })
    .unwrap();
    (node, parent, child)
}

fn rewind(node: &mut Node, handle: i64, length: i64, pages: usize) -> Result<i64, Error> {
    node.tell(&Op::Truncate {
        table: 0,
        handle,
        length,
        pages,
    })
}

#[test]
fn a_rewind_into_a_shared_page_is_refused() {
    let (mut node, parent, child) = parent_and_child();
    let second = node.planner.pages(parent, 0).unwrap()[1];
    for handle in [parent, child] {
        let refused = rewind(&mut node, handle, 6, 2).unwrap_err();
        let Error::SharedPage { page, .. } = refused else {
            panic!("{refused}")
        };
        assert_eq!(page, i64::from(second));
        assert!(
            rewind(&mut node, handle, 4, 2).is_err(),
            "kept for the next token"
        );
        assert_eq!(node.planner.length(handle, 0).unwrap(), 8);
    }
}

#[test]
fn a_rewind_that_gives_the_shared_page_back_is_right() {
    let (mut node, parent, child) = parent_and_child();
    rewind(&mut node, parent, 4, 1).unwrap();
    node.reserve(parent, 0, 1);
    let (ours, theirs) = (node.planner.pages(parent, 0), node.planner.pages(child, 0));
    let (ours, theirs) = (ours.unwrap(), theirs.unwrap());
    assert_eq!(ours[0], theirs[0]);
    assert_ne!(ours[1], theirs[1]);
}

#[test]
fn a_page_whose_other_owner_is_gone_may_be_written_again() {
    let (mut node, parent, child) = parent_and_child();
    node.tell(&Op::Release(child)).unwrap();
    rewind(&mut node, parent, 6, 2).unwrap();
    assert_eq!(node.planner.length(parent, 0).unwrap(), 6);
}
