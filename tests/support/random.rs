//! A small generator of random numbers: a seed replays a scenario.

/// splitmix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
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
