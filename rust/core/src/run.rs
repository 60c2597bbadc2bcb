//! Copies of a flush: joined runs of destination cells, one host-to-device copy each.

use crate::ids::TableIdx;

/// The device buffer a run goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The `int64[N, C]` store of narrow columns.
    Narrow,
    /// The `int32[N, P]` table of a KV pool.
    Table(TableIdx),
    /// A lease's `int64` input buffer.
    Lease(usize),
}

/// One copy: a maximal run of consecutive destination cells, whose values lie together in the flush buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRun {
    /// Where it goes.
    pub target: Target,
    /// First destination byte in the target.
    pub to_bytes: usize,
    /// First source byte in the flush buffer.
    pub from_bytes: usize,
    /// Bytes to copy.
    pub bytes: usize,
}

/// Writes runs into a flush buffer; a run that begins where the last ended joins it.
pub(crate) struct RunWriter<'a> {
    out: &'a mut [u8],
    used: usize,
    runs: &'a mut Vec<CopyRun>,
}

impl<'a> RunWriter<'a> {
    pub fn new(out: &'a mut [u8], runs: &'a mut Vec<CopyRun>) -> Self {
        runs.clear();
        Self { out, used: 0, runs }
    }

    /// Starts a target: sources of 8-byte cells stay aligned.
    pub fn align(&mut self) {
        self.used = self.used.next_multiple_of(8);
    }

    /// Reserves `bytes` of the buffer for the cells at `to_bytes` of `target` and returns them to be filled.
    pub fn run(&mut self, target: Target, to_bytes: usize, bytes: usize) -> &mut [u8] {
        let from_bytes = self.used;
        self.used += bytes;
        match self.runs.last_mut() {
            Some(last)
                if last.target == target
                    && last.to_bytes + last.bytes == to_bytes
                    && last.from_bytes + last.bytes == from_bytes =>
            {
                last.bytes += bytes;
            }
            _ => self.runs.push(CopyRun {
                target,
                to_bytes,
                from_bytes,
                bytes,
            }),
        }
        &mut self.out[from_bytes..self.used]
    }
}
