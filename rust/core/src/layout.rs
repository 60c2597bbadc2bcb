//! The row layout: narrow columns in an `int64[N, C]` store, one `int32[N, P]` page table per KV pool.

use std::fmt::Display;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::ids::TableIdx;

/// One KV pool's table, as the engine describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableSpec {
    /// The pool's resource key.
    pub name: String,
    /// Tokens a page holds.
    pub page_size: u64,
    /// Page ids a live stream may name: 1 to `pool_pages`. Page 0 is the sink.
    pub pool_pages: u64,
    /// The pool's longest stream in tokens.
    pub max_seq_len: u64,
    /// Tokens a step adds to each row: 1 (append) or 0 (read-only).
    pub span: u64,
}

/// A table of the layout: its spec and the width that follows from it.
#[derive(Clone, Debug)]
pub struct Table {
    pub(crate) spec: TableSpec,
    pub(crate) width: usize,
    pub(crate) first_column: usize,
    pub(crate) page_size: i64,
    pub(crate) span: i64,
}

impl Table {
    /// Pages a row reads in a step that starts at `stored_len` tokens.
    pub(crate) fn used_pages(&self, stored_len: i64) -> u64 {
        ((stored_len + self.span).unsigned_abs()).div_ceil(self.page_size.unsigned_abs())
    }
}

/// The columns of a row. Immutable; sizes are derived, never configured.
#[derive(Clone, Debug)]
pub struct RowLayout {
    tables: Vec<Table>,
    columns: Vec<String>,
    narrow_cells: usize,
    width: usize,
}

impl RowLayout {
    /// Builds a layout from KV tables and the named narrow columns behind their lengths.
    ///
    /// # Errors
    /// [`Error::Layout`] names the first field that no store can be built from.
    pub fn new(tables: Vec<TableSpec>, columns: Vec<String>) -> Result<Self> {
        let narrow_cells = tables.len() + columns.len();
        if narrow_cells == 0 {
            return Err(layout("tables", "at least one table or column", "none"));
        }
        if columns.len() > 64 {
            return Err(layout("columns", "at most 64 columns", columns.len()));
        }
        let mut names: Vec<&str> = tables.iter().map(|t| t.name.as_str()).collect();
        names.extend(columns.iter().map(String::as_str));
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(layout("name", "distinct names", pair[0]));
        }
        let mut built = Vec::with_capacity(tables.len());
        let mut first_column = narrow_cells;
        for spec in tables {
            let table = Self::table(spec, first_column)?;
            first_column += table.width;
            built.push(table);
        }
        Ok(Self {
            tables: built,
            columns,
            narrow_cells,
            width: first_column,
        })
    }

    fn table(spec: TableSpec, first_column: usize) -> Result<Table> {
        let field = |name: &str| format!("{}.{name}", spec.name);
        if spec.page_size == 0 || spec.page_size > 1 << 20 {
            return Err(layout(
                &field("page_size"),
                "1 to 1048576 tokens",
                spec.page_size,
            ));
        }
        if spec.pool_pages == 0 || spec.pool_pages > i32::MAX as u64 {
            return Err(layout(
                &field("pool_pages"),
                "1 to 2147483647 pages",
                spec.pool_pages,
            ));
        }
        if spec.max_seq_len == 0 || spec.max_seq_len > 1 << 40 {
            return Err(layout(
                &field("max_seq_len"),
                "1 to 2^40 tokens",
                spec.max_seq_len,
            ));
        }
        if spec.span > 1 {
            return Err(layout(
                &field("span"),
                "1 (append) or 0 (read-only)",
                spec.span,
            ));
        }
        // A stream's pages are distinct pages of the pool, so the pool bounds the table too.
        let width = spec
            .max_seq_len
            .div_ceil(spec.page_size)
            .min(spec.pool_pages) as usize;
        let tokens = width as u64 * spec.page_size;
        if tokens > i32::MAX as u64 {
            return Err(layout(
                &field("max_seq_len"),
                "pages of at most 2147483647 tokens together, since attention lengths are int32",
                tokens,
            ));
        }
        Ok(Table {
            width,
            first_column,
            page_size: spec.page_size as i64,
            span: spec.span as i64,
            spec,
        })
    }

    /// The KV tables in column order.
    #[must_use]
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    pub(crate) fn table_at(&self, table: TableIdx) -> Result<&Table> {
        self.tables.get(table).ok_or(Error::Index {
            field: "table",
            limit: self.tables.len(),
            got: table,
        })
    }

    /// The named narrow columns; they follow the lengths.
    #[must_use]
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Narrow cells of a row: one stored length per table, then the named columns.
    #[must_use]
    pub fn narrow_cells(&self) -> usize {
        self.narrow_cells
    }

    /// All cells of a row, tables included.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Page ids each table holds.
    #[must_use]
    pub fn table_pages(&self) -> Vec<usize> {
        self.tables.iter().map(|t| t.width).collect()
    }

    /// Cells a batch row has in the cells row: a length and a column per table, rounded up to a power of two.
    #[must_use]
    pub fn cells_per_row(&self) -> usize {
        (2 * self.tables.len()).max(2).next_power_of_two()
    }

    /// `int64` elements of a lease's input buffer: the slot vector, then (column + 1, value) pairs per batch row.
    #[must_use]
    pub fn lease_cells(&self, bucket: usize) -> usize {
        bucket + bucket * 2 * self.cells_per_row()
    }

    /// Bytes of the largest flush a step of `max_batch` rows can issue: every row whole, and the lease's inputs.
    #[must_use]
    pub fn largest_flush_bytes(&self, max_batch: usize) -> usize {
        let rows: usize = self
            .tables
            .iter()
            .map(|t| (max_batch * t.width * 4).next_multiple_of(8))
            .sum();
        8 * self.lease_cells(max_batch) + 8 * max_batch * self.narrow_cells + rows
    }

    /// Bytes of a store of `2 * max_batch + 1` rows.
    #[must_use]
    pub fn store_bytes(&self, max_batch: usize) -> usize {
        (2 * max_batch + 1) * (8 * self.narrow_cells + 4 * (self.width - self.narrow_cells))
    }
}

impl Table {
    /// The pool's resource key.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Page ids a row of this table holds.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }
}

fn layout(field: &str, expected: &str, got: impl Display) -> Error {
    Error::Layout {
        field: field.to_owned(),
        expected: expected.to_owned(),
        got: got.to_string(),
    }
}
