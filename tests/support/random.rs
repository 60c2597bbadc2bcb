//! A small generator of random numbers: a seed replays a scenario. A fuzzer's choices are bytes.

/// Bytes first, one a number; then splitmix64.
#[derive(Clone, Debug)]
pub struct Random {
    bytes: Vec<u8>,
    state: u64,
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self {
            bytes: Vec::new(),
            state: seed,
        }
    }

    /// Numbers that a fuzzer chooses.
    pub fn of(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.iter().rev().copied().collect(),
            state: 0,
        }
    }

    /// Whether no byte is left.
    pub fn is_spent(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn next(&mut self) -> u64 {
        if let Some(byte) = self.bytes.pop() {
            return u64::from(byte);
        }
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// True once in `odds` calls.
    pub fn once_in(&mut self, odds: usize) -> bool {
        self.below(odds) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// At most `count` distinct items, in random order.
    pub fn some<T: Copy>(&mut self, from: &[T], count: usize) -> Vec<T> {
        let mut rest = from.to_vec();
        let mut out = Vec::new();
        while out.len() < count && !rest.is_empty() {
            out.push(rest.swap_remove(self.below(rest.len())));
        }
        out
    }
}
