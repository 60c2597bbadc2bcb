//! Layouts that the tests plan for.

use mstar_resident_core::{RowLayout, TableSpec};

/// An appending table.
pub fn append(name: &str, page_size: u64, pool_pages: u64, max_seq_len: u64) -> TableSpec {
    TableSpec {
        name: name.into(),
        page_size,
        pool_pages,
        max_seq_len,
        span: 1,
    }
}

/// A read-only table.
pub fn read_only(name: &str, page_size: u64, pool_pages: u64, max_seq_len: u64) -> TableSpec {
    TableSpec {
        span: 0,
        ..append(name, page_size, pool_pages, max_seq_len)
    }
}

/// What a model node is built from.
#[derive(Clone, Debug)]
pub struct Shape {
    pub tables: Vec<TableSpec>,
    pub columns: usize,
    pub max_batch: usize,
}

impl Shape {
    pub fn new(tables: Vec<TableSpec>, columns: usize, max_batch: usize) -> Self {
        Self {
            tables,
            columns,
            max_batch,
        }
    }

    /// One appending table of 16 pages of 4 tokens.
    pub fn plain(max_batch: usize) -> Self {
        Self::new(vec![append("kv", 4, 1000, 64)], 0, max_batch)
    }

    /// The decoder of an encoder-decoder model: it appends to its own pool and reads the encoder's.
    pub fn with_context(max_batch: usize) -> Self {
        let tables = vec![append("kv", 4, 1000, 64), read_only("context", 4, 1000, 32)];
        Self::new(tables, 0, max_batch)
    }

    /// Two appending tables of different pages around a read-only one, and two columns.
    pub fn mixed(max_batch: usize) -> Self {
        let tables = vec![
            append("kv", 4, 40, 24),
            read_only("context", 2, 40, 12),
            append("own", 3, 24, 21),
        ];
        Self::new(tables, 2, max_batch)
    }

    pub fn column_names(&self) -> Vec<String> {
        (0..self.columns)
            .map(|column| format!("column{column}"))
            .collect()
    }

    pub fn layout(&self) -> RowLayout {
        RowLayout::new(self.tables.clone(), self.column_names()).unwrap()
    }
}

/// Page ids a table holds.
pub fn width(spec: &TableSpec) -> usize {
    let pages = spec.max_seq_len / spec.page_size
        + u64::from(!spec.max_seq_len.is_multiple_of(spec.page_size));
    pages.min(spec.pool_pages) as usize
}

/// Pages that a step reads of a stream of `length` tokens.
pub fn used(spec: &TableSpec, length: i64) -> usize {
    let tokens = length + spec.span as i64;
    let page_size = spec.page_size as i64;
    ((tokens + page_size - 1) / page_size) as usize
}
