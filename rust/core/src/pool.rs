//! Pages owned by the planner: free lists and reference counts of one KV pool.

use crate::error::{Error, Result};
use crate::ids::PlanSeq;

/// One pool's pages `1..=pool_pages`. The sink page 0 is never handed out.
#[derive(Debug)]
pub(crate) struct PagePool {
    references: Vec<u32>,
    free: Vec<i32>,
    cooling: Vec<(PlanSeq, i32)>,
}

impl PagePool {
    pub fn new(pool_pages: u64) -> Self {
        let pages = i32::try_from(pool_pages).expect("the layout bounds a pool's pages");
        Self {
            references: vec![0; pages as usize + 1],
            free: (1..=pages).rev().collect(),
            cooling: Vec::new(),
        }
    }

    pub fn free(&self) -> u64 {
        self.free.len() as u64
    }

    /// Takes one free page, referenced once. The caller has checked that one is free.
    pub fn take(&mut self) -> i32 {
        let page = self
            .free
            .pop()
            .expect("a reservation counts the free pages first");
        self.references[page as usize] = 1;
        page
    }

    /// Adds a stream to the owners of a page.
    pub fn share(&mut self, page: i32) {
        self.references[page as usize] += 1;
    }

    /// Whether more than one stream names a page.
    pub fn is_shared(&self, page: i32) -> bool {
        self.references[page as usize] > 1
    }

    /// Takes a stream off the owners of a page. The last one frees it, behind `in_flight` if a launched step may
    /// still touch it.
    pub fn give_back(&mut self, page: i32, in_flight: Option<PlanSeq>) {
        let references = &mut self.references[page as usize];
        *references -= 1;
        if *references == 0 {
            match in_flight {
                Some(seq) => self.cooling.push((seq, page)),
                None => self.free.push(page),
            }
        }
    }

    /// Frees the pages whose last reader is `committed` or earlier.
    pub fn retire(&mut self, committed: PlanSeq) {
        let free = &mut self.free;
        self.cooling.retain(|&(seq, page)| {
            let cools = seq > committed;
            if !cools {
                free.push(page);
            }
            cools
        });
    }

    /// Checks the counts against the pages that live streams name.
    pub fn check(&self, named: &[u32]) -> Result<()> {
        let broken = |detail: String| {
            Err(Error::Invariant {
                rule: "pages",
                detail,
            })
        };
        for (page, (&kept, &counted)) in self.references.iter().zip(named).enumerate() {
            if kept != counted {
                return broken(format!(
                    "page {page}: {kept} references kept, {counted} streams name it"
                ));
            }
        }
        let unreferenced = self
            .references
            .iter()
            .skip(1)
            .filter(|&&count| count == 0)
            .count();
        if unreferenced != self.free.len() + self.cooling.len() {
            let (free, cooling) = (self.free.len(), self.cooling.len());
            return broken(format!(
                "{unreferenced} pages have no owner, {free} are free and {cooling} cooling"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_finds_pages_that_are_lost_or_counted_wrong() {
        let mut pool = PagePool::new(3);
        let (first, second) = (pool.take(), pool.take());
        assert_eq!((first, second, pool.free()), (1, 2, 1));
        pool.share(first);
        pool.check(&[0, 2, 1, 0]).unwrap();
        assert!(pool.check(&[0, 1, 1, 0]).is_err(), "one reference too many");
        assert!(pool.check(&[0, 2, 1, 1]).is_err(), "one too few");
        pool.give_back(second, Some(PlanSeq::NONE.next()));
        pool.check(&[0, 2, 0, 0]).unwrap();
        pool.retire(PlanSeq::NONE);
        assert_eq!(pool.free(), 1, "it cools still");
        pool.retire(PlanSeq::NONE.next());
        assert_eq!(pool.free(), 2);
        pool.free.pop();
        assert!(pool.check(&[0, 2, 0, 0]).is_err(), "a page is lost");
    }
}
