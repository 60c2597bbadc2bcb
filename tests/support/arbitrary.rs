//! Arbitrary calls of an engine: mostly valid, now and then not.

use super::machine::Machine;
use super::operations::Kind;
use super::ops::reserve_step;
use super::random::Random;
use mstar_resident_core::Op;

impl Machine {
    /// A live handle, or once in a while another number.
    pub fn any_handle(&self, random: &mut Random) -> i64 {
        let live = self.node.live();
        if live.is_empty() || random.once_in(20) {
            let dead = self.node.dead.last().copied().unwrap_or(7);
            return random.pick(&[dead, -1, i64::MAX, i64::MIN, 1 << 32]);
        }
        random.pick(&live)
    }

    pub fn any_handles(&self, random: &mut Random) -> Vec<i64> {
        let count = 1 + random.below(3);
        let mut handles = random.some(&self.node.live(), count);
        if random.once_in(12) {
            handles.push(self.any_handle(random)); // perhaps twice, perhaps unknown
        }
        handles
    }

    pub fn any_table(&self, random: &mut Random) -> usize {
        let tables = self.node.truth.tables.len();
        if random.once_in(25) {
            tables
        } else {
            random.below(tables)
        }
    }

    pub fn any_column(&self, random: &mut Random) -> usize {
        let columns = self.node.truth.columns;
        if random.once_in(15) {
            columns
        } else {
            random.below(columns)
        }
    }

    /// One value a handle, or once in a while one too few.
    pub fn values(random: &mut Random, count: usize, limit: usize) -> Vec<i64> {
        let count = if random.once_in(20) {
            count.saturating_sub(1)
        } else {
            count
        };
        let odd = random.once_in(25);
        let mut values: Vec<i64> = (0..count).map(|_| random.below(limit) as i64).collect();
        if let Some(value) = values.first_mut().filter(|_| odd) {
            *value = random.pick(&[-1, i64::MAX, i64::MIN]);
        }
        values
    }

    pub fn page_size(&self, table: usize) -> i64 {
        self.node
            .truth
            .tables
            .get(table)
            .map_or(1, |spec| spec.page_size as i64)
    }

    pub fn call(&self, kind: Kind, random: &mut Random) -> Op {
        let (handle, handles) = (self.any_handle(random), self.any_handles(random));
        let (table, column) = (self.any_table(random), self.any_column(random));
        match kind {
            Kind::Release => Op::Release(handle),
            Kind::Offload => Op::Offload(handle),
            Kind::SetStream => self.set_stream(random, handle, table),
            Kind::Append => {
                let counts = Self::values(random, handles.len(), 3);
                let total: i64 = counts.iter().copied().fold(0, i64::saturating_add);
                let mut pages = Vec::new();
                if table < self.node.truth.tables.len() {
                    for (&handle, &count) in handles.iter().zip(&counts) {
                        pages.extend(self.fresh_pages(
                            random,
                            handle,
                            table,
                            count.clamp(0, 3) as usize,
                        ));
                    }
                } else {
                    pages.resize(total.clamp(0, 9) as usize, 1);
                }
                if random.once_in(12) {
                    pages.push(random.pick(&[0, -1, 1, 1 << 31, 1 << 32]));
                }
                Op::AppendPages {
                    table,
                    handles,
                    counts,
                    pages,
                }
            }
            Kind::HostStep => Op::HostStep {
                table,
                tokens: Self::values(random, handles.len(), 6),
                handles,
            },
            Kind::Truncate => self.truncate(random, handle, table),
            Kind::SetColumn => Op::SetColumn {
                column,
                values: Self::values(random, handles.len(), 3),
                handles,
            },
            Kind::UnsetColumn => Op::UnsetColumn { column, handles },
            Kind::MarkStale => Op::MarkStale(handles),
            Kind::MarkReleased => Op::MarkReleasedTokens { table, handle },
            Kind::Reserve => Op::Reserve {
                table,
                tokens: Self::values(random, handles.len(), 8),
                handles,
            },
            Kind::ReserveStep => {
                let last = self.last_batch().filter(|_| !random.once_in(3));
                reserve_step(last.unwrap_or(handles))
            }
            Kind::Fork => {
                let tokens = self.page_size(table) * random.below(4) as i64;
                Op::Fork {
                    table,
                    parent: self.any_handle(random),
                    child: handle,
                    tokens: tokens + i64::from(random.once_in(6)),
                }
            }
            _ => Op::OwnPages(table),
        }
    }

    /// Pages kept, changed or added, and a length that mostly fits.
    pub fn set_stream(&self, random: &mut Random, handle: i64, table: usize) -> Op {
        let held = self
            .node
            .truth
            .requests
            .get(&handle)
            .and_then(|request| request.streams.get(table));
        let mut pages = held.map_or(Vec::new(), |stream| stream.pages.clone());
        if random.once_in(2) {
            let kept = random.below(pages.len() + 1);
            pages.truncate(kept);
        }
        if table < self.node.truth.tables.len() {
            let fresh = random.below(4);
            let fresh = self.fresh_pages(random, handle, table, fresh);
            pages.extend(fresh);
        }
        if random.once_in(12) {
            pages.push(random.pick(&[
                0,
                -1,
                pages.first().copied().unwrap_or(1),
                i64::MAX,
                1 << 32 | 1,
            ]));
        }
        let capacity = pages.len() as i64 * self.page_size(table);
        let length = match random.below(8) {
            0 => capacity,
            1 => capacity + 1 - 2 * (random.below(2) as i64),
            2 => random.pick(&[0, -1, i64::MAX, i64::MIN]),
            _ => random.below(capacity as usize + 1) as i64,
        };
        Op::SetStream {
            handle,
            table,
            pages,
            length,
        }
    }

    pub fn truncate(&self, random: &mut Random, handle: i64, table: usize) -> Op {
        let held = self
            .node
            .truth
            .requests
            .get(&handle)
            .and_then(|request| request.streams.get(table));
        let (length, pages) = held.map_or((0, 0), |stream| (stream.length, stream.pages.len()));
        let cut = length - random.below(4) as i64 + i64::from(random.once_in(12));
        let page_size = self.page_size(table);
        let least = (cut.max(0) + page_size - 1) / page_size;
        let pages = match random.below(6) {
            0 => pages + 1,
            1 => least as usize,
            2 => (least as usize).saturating_sub(1),
            _ => pages,
        };
        Op::Truncate {
            table,
            handle,
            length: cut,
            pages,
        }
    }
}
