//! Every way a call can be refused. An error leaves the planner as it was.

use thiserror::Error;

/// A refused call: what was expected and what came. Handles are packed numbers.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)] // each field is named in its sentence
pub enum Error {
    /// A layout field that no store can be built from.
    #[error("layout field {field}: expected {expected}, got {got}")]
    Layout {
        field: String,
        expected: String,
        got: String,
    },
    /// Arrays of one call whose lengths do not belong together.
    #[error("array {field}: expected {expected} elements, got {got}")]
    ArrayLength {
        field: &'static str,
        expected: usize,
        got: usize,
    },
    /// A count of an array below 0.
    #[error("array {field}: expected 0 or more at index {index}, got {got}")]
    Count {
        field: &'static str,
        index: usize,
        got: i64,
    },
    /// A table or column number outside the layout.
    #[error("{field}: expected an index below {limit}, got {got}")]
    Index {
        field: &'static str,
        limit: usize,
        got: usize,
    },
    /// A handle that is not live: never opened, or released since.
    #[error("handle {handle}: expected a live handle, got one that is unknown or released")]
    UnknownHandle { handle: i64 },
    /// One handle twice in one call.
    #[error("handle {handle}: expected once in a call, got it at index {first} and index {second}")]
    DuplicateHandle {
        handle: i64,
        first: usize,
        second: usize,
    },
    /// A batch that no bucket of the lease holds.
    #[error("batch: expected 1 to {limit} rows, got {rows}")]
    BatchSize { rows: usize, limit: usize },
    /// A stage asked for while a launched step has not committed.
    #[error("stage: expected every launched step committed, got step {seq} in flight")]
    NotReady { seq: u64 },
    /// A stage that was dropped, or that is not the one unlaunched stage.
    #[error(
        "stage {seq}: expected the one unlaunched stage, got one that was dropped or already flushed"
    )]
    StageDropped { seq: u64 },
    /// A commit or fail of a step that is not in flight.
    #[error("step {seq}: expected the step in flight, got {in_flight}")]
    NotInFlight { seq: u64, in_flight: u64 },
    /// More pages than the table of a row holds.
    #[error(
        "request {handle}, table {table}: expected at most {width} pages, got a step that needs {needed}"
    )]
    RowOverflow {
        handle: i64,
        table: String,
        needed: u64,
        width: u64,
    },
    /// A stream that holds fewer pages than its next token needs.
    #[error(
        "request {handle}, table {table}: expected {needed} pages, got a stream that holds {held}"
    )]
    MissingPage {
        handle: i64,
        table: String,
        needed: u64,
        held: u64,
    },
    /// A narrow column read before its owner set it.
    #[error(
        "request {handle}, column {column}: expected a value before its row is built, got none"
    )]
    UnsetColumn { handle: i64, column: String },
    /// A stream with released tokens: its positions and pages no longer follow its length.
    #[error("request {handle}, table {table}: expected every token kept, got released tokens")]
    ReleasedTokens { handle: i64, table: String },
    /// A page id that no live stream may name, or one named twice by a stream.
    #[error(
        "request {handle}, table {table}: expected distinct page ids from 1 to {pool_pages}, got {page}"
    )]
    Page {
        handle: i64,
        table: String,
        page: i64,
        pool_pages: u64,
    },
    /// A rewind that keeps, where the stream writes next, a page that another stream names too.
    #[error(
        "request {handle}, table {table}: expected no page behind the length that another stream shares, got {page}"
    )]
    SharedPage {
        handle: i64,
        table: String,
        page: i64,
    },
    /// A rewind to more pages than a stream holds.
    #[error("request {handle}, table {table}: expected 0 to {held} pages, got {pages}")]
    Pages {
        handle: i64,
        table: String,
        pages: u64,
        held: u64,
    },
    /// A length that its pages cannot hold, or a rewind forwards.
    #[error("request {handle}, table {table}: expected a length from 0 to {limit}, got {length}")]
    Length {
        handle: i64,
        table: String,
        length: i64,
        limit: i64,
    },
    /// A pool with fewer free pages than a reservation needs; nothing was taken.
    #[error("table {table}: expected {needed} free pages, got {free}")]
    OutOfPages {
        table: String,
        needed: u64,
        free: u64,
    },
    /// A table used with the wrong owner of its pages.
    #[error("table {table}: expected pages owned by the {expected}")]
    Ownership {
        table: String,
        expected: &'static str,
    },
    /// Caller memory smaller than a flush needs.
    #[error("flush buffer: expected {expected} bytes, got {got}")]
    FlushBuffer { expected: usize, got: usize },
    /// A broken invariant: a fault of the planner, not of the caller.
    #[error("invariant {rule}: {detail}")]
    Invariant { rule: &'static str, detail: String },
}

/// The result of every planner call.
pub type Result<T> = std::result::Result<T, Error>;
