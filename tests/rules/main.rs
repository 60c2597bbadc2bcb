//! The rules of the planner core, one test each, against a model device and a naive truth.

mod cooling;

#[path = "../support/mod.rs"]
mod support;
