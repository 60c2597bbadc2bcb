//! What calls and steps do to the truth.

use std::collections::BTreeSet;

use mstar_resident_core::Planner;

use super::ops::rows;
use super::truth::{Pool, Request, Step, Stream, Truth};
use mstar_resident_core::Op;

impl Truth {
    /// Records a call that succeeded. Pages that the planner chose are read from it, and must have been free.
    pub fn tell(&mut self, call: &Op, answer: i64, planner: &Planner, step: &mut Option<Step>) {
        match call {
            Op::Open => {
                let streams = vec![Stream::default(); self.tables.len()];
                let columns = vec![None; self.columns];
                let opened = Request { streams, columns };
                assert!(
                    self.requests.insert(answer, opened).is_none(),
                    "handle {answer} is live twice"
                );
            }
            Op::Release(handle) => {
                self.empty(*handle, step);
                self.requests.remove(handle);
            }
            Op::Offload(handle) => self.empty(*handle, step),
            Op::SetStream {
                handle,
                table,
                pages,
                length,
            } => {
                forget(*handle, Some(*table), step);
                *self.stream_mut(*handle, *table) = Stream {
                    pages: pages.clone(),
                    length: *length,
                    released_tokens: false,
                };
            }
            Op::AppendPages {
                table,
                handles,
                counts,
                pages,
            } => {
                let mut rest = pages.iter();
                for (&handle, &count) in handles.iter().zip(counts) {
                    let own = rest.by_ref().take(count as usize);
                    self.stream_mut(handle, *table).pages.extend(own);
                }
            }
            Op::HostStep {
                table,
                handles,
                tokens,
            } => {
                for (&handle, &added) in handles.iter().zip(tokens) {
                    self.stream_mut(handle, *table).length += added;
                }
            }
            Op::Truncate {
                table,
                handle,
                length,
                pages,
            } => {
                forget(*handle, Some(*table), step);
                self.keep_pages(*handle, *table, *pages, step);
                self.stream_mut(*handle, *table).length = *length;
            }
            Op::SetColumn {
                column,
                handles,
                values,
            } => {
                for (handle, &value) in handles.iter().zip(values) {
                    self.requests.get_mut(handle).unwrap().columns[*column] = Some(value);
                }
            }
            Op::UnsetColumn { column, handles } => {
                for handle in handles {
                    self.requests.get_mut(handle).unwrap().columns[*column] = None;
                }
            }
            Op::MarkReleasedTokens { table, handle } => {
                self.stream_mut(*handle, *table).released_tokens = true;
            }
            Op::OwnPages(table) => {
                let free = (1..=self.tables[*table].pool_pages as i64).collect();
                self.pools[*table] = Some(Pool {
                    free,
                    cooling: BTreeSet::new(),
                });
            }
            Op::Reserve {
                table,
                handles,
                tokens,
            } => {
                for (&handle, &added) in handles.iter().zip(tokens) {
                    self.see_new_pages(*table, handle, added, planner, step);
                }
            }
            Op::ReserveStep(batch) => {
                let handles = rows(batch);
                for table in
                    (0..self.tables.len()).filter(|&table| planner.free_pages(table).is_ok())
                {
                    for &handle in &handles {
                        self.see_new_pages(
                            table,
                            handle,
                            self.tables[table].span as i64,
                            planner,
                            step,
                        );
                    }
                }
            }
            Op::Fork {
                table,
                parent,
                child,
                tokens,
            } => {
                let shared = (*tokens / self.tables[*table].page_size as i64) as usize;
                let pages = self.stream(*parent, *table).pages[..shared].to_vec();
                forget(*child, Some(*table), step);
                *self.stream_mut(*child, *table) = Stream {
                    pages,
                    length: *tokens,
                    released_tokens: false,
                };
            }
            _ => {}
        }
    }

    fn empty(&mut self, handle: i64, step: &mut Option<Step>) {
        forget(handle, None, step);
        for table in 0..self.tables.len() {
            self.keep_pages(handle, table, 0, step);
            *self.stream_mut(handle, table) = Stream::default();
        }
    }

    fn keep_pages(&mut self, handle: i64, table: usize, kept: usize, step: &Option<Step>) {
        let given = self.stream_mut(handle, table).pages.split_off(kept);
        let mut named: BTreeSet<i64> = BTreeSet::new();
        for request in self.requests.values() {
            named.extend(&request.streams[table].pages);
        }
        if let Some(pool) = &mut self.pools[table] {
            let cools = if step.is_some() {
                &mut pool.cooling
            } else {
                &mut pool.free
            };
            cools.extend(given.iter().filter(|page| !named.contains(page)));
        }
    }

    fn see_new_pages(
        &mut self,
        table: usize,
        handle: i64,
        added: i64,
        planner: &Planner,
        step: &Option<Step>,
    ) {
        let coming = self.coming_length(handle, table, step.as_ref());
        let held = self.stream(handle, table).pages.clone();
        let pages: Vec<i64> = planner
            .pages(handle, table)
            .unwrap()
            .iter()
            .map(|&page| i64::from(page))
            .collect();
        assert_eq!(
            pages[..held.len()],
            held,
            "a reservation changed the pages of {handle}"
        );
        let page_size = self.tables[table].page_size as i64;
        let needed = (coming + added + page_size - 1) / page_size;
        assert_eq!(
            pages.len(),
            held.len().max(needed as usize),
            "pages reserved for {handle}"
        );
        let pool = self.pools[table].as_mut().unwrap();
        for page in &pages[held.len()..] {
            assert!(pool.free.remove(page), "page {page} was not free");
        }
        self.stream_mut(handle, table).pages = pages;
    }

    /// Ends the step in flight; `landed` if its tokens count.
    pub fn end(&mut self, step: &Step, landed: bool) {
        for (&handle, counts) in step.handles.iter().zip(&step.counts) {
            for (table, _) in counts
                .iter()
                .enumerate()
                .filter(|&(_, counts)| landed && *counts)
            {
                let span = self.tables[table].span as i64;
                self.stream_mut(handle, table).length += span;
            }
        }
        for pool in self.pools.iter_mut().flatten() {
            pool.free.append(&mut pool.cooling);
        }
    }
}

fn forget(handle: i64, table: Option<usize>, step: &mut Option<Step>) {
    if let Some(step) = step {
        step.forget(handle, table);
    }
}
