//! Which rows of a batch cross a page, and when: known in advance, so that a steady step walks no rows.

/// The crossings of one appending table. Every row crosses once each `page_size` steps, so rows sorted by their
/// next crossing stay in cyclic order for ever: the ones that are due stand at the cursor.
#[derive(Debug, Default)]
pub(crate) struct Calendar {
    entries: Vec<(u64, u32)>,
    cursor: usize,
    page_size: u64,
}

impl Calendar {
    pub fn with_capacity(rows: usize) -> Self {
        Self {
            entries: Vec::with_capacity(rows),
            ..Self::default()
        }
    }

    /// Enters every row of a batch, given its length before the step of `tick`.
    pub fn build(&mut self, page_size: i64, tick: u64, lengths: impl Iterator<Item = i64>) {
        self.page_size = page_size.unsigned_abs();
        self.cursor = 0;
        self.entries.clear();
        self.entries.extend(lengths.zip(0..).map(|(length, row)| {
            let into_page = length.unsigned_abs() % self.page_size;
            (tick + (self.page_size - into_page) % self.page_size, row)
        }));
        self.entries.sort_unstable();
    }

    /// Batch indices of the rows that cross at `tick`, in order of their index within one crossing.
    pub fn due(&self, tick: u64) -> impl Iterator<Item = u32> + '_ {
        let (before, after) = self.entries.split_at(self.cursor);
        after
            .iter()
            .chain(before)
            .take_while(move |&&(due, _)| due == tick)
            .map(|&(_, row)| row)
    }

    /// Moves past the crossings before `tick`.
    pub fn advance(&mut self, tick: u64) {
        while let Some(entry) = self.entries.get_mut(self.cursor) {
            if entry.0 >= tick {
                return;
            }
            entry.0 += self.page_size;
            self.cursor += 1;
            if self.cursor == self.entries.len() {
                self.cursor = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_rows_match_naive_for_every_phase() {
        let lengths = [0_i64, 3, 4, 5, 7, 8, 8, 21, 3];
        let mut calendar = Calendar::with_capacity(lengths.len());
        calendar.build(4, 10, lengths.iter().copied());
        for tick in 10..60 {
            let mut due: Vec<u32> = calendar.due(tick).collect();
            due.sort_unstable();
            let naive: Vec<u32> = (0..lengths.len() as u32)
                .filter(|&row| (lengths[row as usize] + tick as i64 - 10) % 4 == 0)
                .collect();
            assert_eq!(due, naive, "tick {tick}");
            calendar.advance(tick + 1);
        }
    }

    #[test]
    fn an_empty_calendar_is_never_due() {
        let mut calendar = Calendar::default();
        calendar.build(1, 0, std::iter::empty());
        calendar.advance(5);
        assert_eq!(calendar.due(5).count(), 0);
    }

    #[test]
    fn a_page_of_one_token_crosses_every_step() {
        let mut calendar = Calendar::with_capacity(2);
        calendar.build(1, 0, [5, 9].into_iter());
        for tick in 0..5 {
            assert_eq!(calendar.due(tick).count(), 2);
            calendar.advance(tick + 1);
        }
    }
}
