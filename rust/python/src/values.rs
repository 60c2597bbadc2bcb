//! Frozen values that the module hands out.

use mstar_resident_core as core;
use mstar_resident_core::Answer;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;

use crate::errors::raised;

/// The columns of a row: tables as (name, page_size, pool_pages, max_seq_len, span), then the named narrow columns.
///
/// Raises LayoutError for a size that no store can be built from.
#[pyclass(frozen, module = "mstar_resident._core")]
pub(crate) struct Layout {
    pub(crate) layout: core::RowLayout,
}

#[pymethods]
impl Layout {
    #[new]
    fn new(
        py: Python<'_>,
        tables: Vec<(String, i64, i64, i64, i64)>,
        columns: Vec<String>,
    ) -> PyResult<Self> {
        // A negative size is refused by the core as the huge one that it becomes.
        let specs = tables
            .into_iter()
            .map(
                |(name, page_size, pool_pages, max_seq_len, span)| core::TableSpec {
                    name,
                    page_size: page_size as u64,
                    pool_pages: pool_pages as u64,
                    max_seq_len: max_seq_len as u64,
                    span: span as u64,
                },
            );
        raised(py, core::RowLayout::new(specs.collect(), columns)).map(|layout| Self { layout })
    }

    /// Cells of a row, tables included.
    #[getter]
    fn width(&self) -> usize {
        self.layout.width()
    }

    /// Narrow cells of a row: one stored length per table, then the named columns.
    #[getter]
    fn narrow_cells(&self) -> usize {
        self.layout.narrow_cells()
    }

    /// Cells that a batch row has in the cells row.
    #[getter]
    fn cells_per_row(&self) -> usize {
        self.layout.cells_per_row()
    }

    /// Page ids that each table holds.
    #[getter]
    fn table_pages(&self) -> Vec<usize> {
        self.layout.table_pages()
    }
}

/// What an operation answered, as Python has it.
pub(crate) struct Answered(pub(crate) Answer);

impl<'py> IntoPyObject<'py> for Answered {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.0 {
            Answer::Done | Answer::Value(None) => Ok(py.None().into_bound(py)),
            Answer::Flag(flag) => flag.into_bound_py_any(py),
            Answer::Number(number) | Answer::Value(Some(number)) => number.into_bound_py_any(py),
            Answer::Numbers(numbers) => numbers.into_bound_py_any(py),
            other => unreachable!("{other:?} is made into an object by its method"),
        }
    }
}

/// The requests of a step, in order; immutable.
#[pyclass(frozen, module = "mstar_resident._core")]
pub(crate) struct Batch {
    pub(crate) batch: core::Batch,
    pub(crate) node: u64,
}

#[pymethods]
impl Batch {
    /// Rows of the step.
    #[getter]
    fn rows(&self) -> usize {
        self.batch.handles().len()
    }

    /// The handles, in batch order.
    fn handles(&self) -> Vec<i64> {
        packed(&self.batch)
    }

    fn __repr__(&self) -> String {
        format!("Batch(rows={})", self.rows())
    }
}

/// What a plan decided for one step, named by its plan_seq.
#[pyclass(frozen, module = "mstar_resident._core")]
pub(crate) struct Stage {
    pub(crate) info: core::StageInfo,
    pub(crate) lease: usize,
    pub(crate) bucket: usize,
    pub(crate) batch: core::Batch,
    pub(crate) node: u64,
}

#[pymethods]
impl Stage {
    /// The plan_seq of the plan.
    #[getter]
    fn seq(&self) -> u64 {
        self.info.seq.get()
    }

    /// The number of the lease that it is valid for.
    #[getter]
    fn lease(&self) -> usize {
        self.lease
    }

    /// Rows of the step.
    #[getter]
    fn rows(&self) -> usize {
        self.batch.handles().len()
    }

    /// Rows of the lease's bucket; those behind the step's read the trash row.
    #[getter]
    fn bucket(&self) -> usize {
        self.bucket
    }

    /// Rows that the flush writes whole.
    #[getter]
    fn whole_rows(&self) -> usize {
        self.info.whole_rows
    }

    /// Single cells that the flush sends: crossings, refreshed lengths and columns.
    #[getter]
    fn cells(&self) -> usize {
        self.info.cells
    }

    /// The handles, in batch order.
    fn handles(&self) -> Vec<i64> {
        packed(&self.batch)
    }

    fn __repr__(&self) -> String {
        format!(
            "Stage(seq={}, lease={}, rows={}, whole_rows={}, cells={})",
            self.seq(),
            self.lease,
            self.rows(),
            self.info.whole_rows,
            self.info.cells
        )
    }
}

fn packed(batch: &core::Batch) -> Vec<i64> {
    batch.handles().iter().map(|handle| handle.pack()).collect()
}

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters since the planner was built, and how its slots stand.
        #[pyclass(frozen, get_all, module = "mstar_resident._core")]
        pub(crate) struct Stats {
            $($(#[$doc])* $name: u64,)*
            /// Flushes that waited for the oldest buffer of the ring.
            ring_waits: u64,
        }

        impl Stats {
            pub(crate) fn new(stats: core::Stats, ring_waits: u64) -> Self {
                Self { $($name: stats.$name,)* ring_waits }
            }
        }

        #[pymethods]
        impl Stats {
            fn __repr__(&self) -> String {
                let counts = [$(format!("{}={}", stringify!($name), self.$name)),*].join(", ");
                format!("Stats({counts}, ring_waits={})", self.ring_waits)
            }
        }
    };
}
stats! {
    /// Committed resident steps.
    steps,
    /// Stages made.
    staged,
    /// Stages used as they were made ahead.
    promoted,
    /// Stages dropped before their first copy.
    dropped,
    /// Steps that failed between their first copy and their commit.
    failed,
    /// Rows written whole.
    whole_rows,
    /// Rows mended by their lengths, columns and new pages alone.
    moved_rows,
    /// Table cells sent because a stream entered a new page.
    crossings,
    /// Length cells sent because the mirror differed from the stream.
    refreshed_lengths,
    /// Rows whose slot another request took.
    displaced,
    /// Slots given up by a release or an offload.
    released,
    /// Host-to-device copies issued.
    copies,
    /// Bytes those copies carried.
    bytes,
    /// Slots that may be taken.
    slots_free,
    /// Slots released while a launched step that reads them has not committed.
    slots_cooling,
    /// Slots that live handles own.
    slots_held,
    /// The last committed step.
    committed_seq,
}
