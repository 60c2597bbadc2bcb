//! The rules of the planner core, one test each, against a model device and a naive truth.

mod arguments;
mod batches;
mod columns;
mod cooling;
mod crossings;
mod determinism;
mod displacement;
mod dropped_stages;
mod errors;
mod failures;
mod host_steps;
mod layouts;
mod leases;
mod lifecycle;
mod logs;
mod numbers;
mod owned_pages;
mod padding;
mod partition;
mod pools;
mod read_only;
mod rewinds;
mod runs;
mod shared_pages;
mod truth;

#[path = "../support/mod.rs"]
mod support;

use support::node::Node;
use support::shapes::Shape;

/// A node of one table of 4-token pages, with one lease of the widest batch.
fn plain(max_batch: usize) -> Node {
    node(&Shape::plain(max_batch))
}

/// A node with one lease of the widest batch.
fn node(shape: &Shape) -> Node {
    let mut node = Node::new(shape);
    node.add_lease(shape.max_batch);
    node
}
