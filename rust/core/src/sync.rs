//! The locks: the standard library's, or a model's that tries every order of threads (`--cfg loom`).

#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};
