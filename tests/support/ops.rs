//! Operations as the tests make them.

use mstar_resident_core::{Answer, Batch, Op, Planner, Result};

/// Makes a call that sends nothing; what it answers, as a number.
pub fn make(op: &Op, planner: &mut Planner) -> Result<i64> {
    Ok(match op.apply(planner, &mut [])? {
        Answer::Number(number) => number,
        _ => 0,
    })
}

/// The reservation of a step's pages, or the refused batch of handles that no batch can name.
pub fn reserve_step(handles: Vec<i64>) -> Op {
    Batch::try_from(handles.clone()).map_or(Op::Batch(handles), Op::ReserveStep)
}

/// The requests of a batch.
pub fn rows(batch: &Batch) -> Vec<i64> {
    batch.handles().iter().map(|handle| handle.pack()).collect()
}

/// Requests whose rows an operation changes: a stage that names one of them is dropped.
pub fn marks(op: &Op) -> Vec<i64> {
    match op {
        Op::Release(handle)
        | Op::Offload(handle)
        | Op::SetStream { handle, .. }
        | Op::Truncate { handle, .. }
        | Op::MarkReleasedTokens { handle, .. }
        | Op::Fork { child: handle, .. } => vec![*handle],
        Op::HostStep { handles, .. }
        | Op::SetColumn { handles, .. }
        | Op::UnsetColumn { handles, .. }
        | Op::MarkStale(handles) => handles.clone(),
        _ => Vec::new(),
    }
}
