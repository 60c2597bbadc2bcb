//! Arguments that do not belong together or name nothing: refused, all or none.

use mstar_resident_core::{Error, Op};

use super::errors::{busy, refused};
use crate::plain;

#[test]
fn arrays_that_do_not_belong_together_are_refused() {
    let (mut node, a, b) = busy();
    let handles = vec![a, b];
    let short = vec![1];
    let length = |field, got| Error::ArrayLength {
        field,
        expected: 2,
        got,
    };
    let calls = [
        (
            Op::AppendPages {
                table: 0,
                handles: handles.clone(),
                counts: short.clone(),
                pages: vec![9],
            },
            length("counts", 1),
        ),
        (
            Op::AppendPages {
                table: 0,
                handles: handles.clone(),
                counts: vec![1, 1],
                pages: vec![9, 10, 11],
            },
            length("pages", 3),
        ),
        (
            Op::HostStep {
                table: 0,
                handles: handles.clone(),
                tokens: short.clone(),
            },
            length("tokens", 1),
        ),
        (
            Op::SetColumn {
                column: 0,
                handles: handles.clone(),
                values: short.clone(),
            },
            length("values", 1),
        ),
        (
            Op::Reserve {
                table: 1,
                handles: handles.clone(),
                tokens: short,
            },
            length("tokens", 1),
        ),
    ];
    for (call, expected) in calls {
        assert_eq!(refused(&mut node, &call), expected);
    }
    let more = |counts| Op::AppendPages {
        table: 0,
        handles: handles.clone(),
        counts,
        pages: vec![9],
    };
    for counts in [vec![i64::MAX, i64::MAX], vec![0, 2], vec![0, 0]] {
        assert!(matches!(
            refused(&mut node, &more(counts)),
            Error::ArrayLength { field: "pages", .. }
        ));
    }
    for (counts, index) in [(vec![-1, 2], 0), (vec![2, -1], 1)] {
        let got = counts[index];
        let field = "counts";
        assert_eq!(
            refused(&mut node, &more(counts)),
            Error::Count { field, index, got }
        );
    }
}

#[test]
fn tables_columns_and_leases_outside_the_layout_are_refused() {
    let (mut node, a, _) = busy();
    let handles = vec![a];
    let tables = [
        Op::SetStream {
            handle: a,
            table: 2,
            pages: vec![],
            length: 0,
        },
        Op::AppendPages {
            table: 2,
            handles: handles.clone(),
            counts: vec![0],
            pages: vec![],
        },
        Op::HostStep {
            table: 2,
            handles: handles.clone(),
            tokens: vec![0],
        },
        Op::Truncate {
            table: 2,
            handle: a,
            length: 0,
            pages: 0,
        },
        Op::MarkReleasedTokens {
            table: 2,
            handle: a,
        },
        Op::OwnPages(2),
        Op::Reserve {
            table: 2,
            handles: handles.clone(),
            tokens: vec![0],
        },
        Op::Fork {
            table: 2,
            parent: a,
            child: a,
            tokens: 0,
        },
    ];
    let index = |field, limit| Error::Index {
        field,
        limit,
        got: limit,
    };
    for call in &tables {
        assert_eq!(refused(&mut node, call), index("table", 2));
    }
    let columns = [
        Op::SetColumn {
            column: 1,
            handles: handles.clone(),
            values: vec![0],
        },
        Op::UnsetColumn { column: 1, handles },
    ];
    for call in &columns {
        assert_eq!(refused(&mut node, call), index("column", 1));
    }
    assert_eq!(node.planner.length(a, 2), Err(index("table", 2)));
    assert_eq!(node.planner.pages(a, 2), Err(index("table", 2)));
    assert_eq!(node.planner.free_pages(2), Err(index("table", 2)));
    assert_eq!(node.planner.column(a, 1), Err(index("column", 1)));
    assert_eq!(node.planner.bucket(1), Err(index("lease", 1)));
    assert_eq!(node.stage(&[a], 1), Err(index("lease", 1)));
}

#[test]
fn a_handle_twice_in_a_call_is_refused_with_both_places() {
    let (mut node, a, b) = busy();
    let handles = vec![b, a, b];
    let twice = Error::DuplicateHandle {
        handle: b,
        first: 0,
        second: 2,
    };
    let three = vec![0; 3];
    for call in [
        Op::AppendPages {
            table: 0,
            handles: handles.clone(),
            counts: three.clone(),
            pages: vec![],
        },
        Op::HostStep {
            table: 0,
            handles: handles.clone(),
            tokens: three.clone(),
        },
        Op::SetColumn {
            column: 0,
            handles: handles.clone(),
            values: three.clone(),
        },
        Op::UnsetColumn {
            column: 0,
            handles: handles.clone(),
        },
        Op::MarkStale(handles.clone()),
        Op::Reserve {
            table: 1,
            handles,
            tokens: three,
        },
    ] {
        assert_eq!(refused(&mut node, &call), twice);
    }
    assert_eq!(
        node.planner.batch(&[a, a]).unwrap_err().to_string(),
        format!("handle {a}: expected once in a call, got it at index 0 and index 1")
    );
    node.planner.batch(&[a, b]).unwrap(); // the marks of a refused call are gone
}

#[test]
fn batches_of_no_rows_or_too_many_are_refused() {
    let (mut node, a, b) = busy();
    assert_eq!(
        node.planner.batch(&[]).unwrap_err(),
        Error::BatchSize { rows: 0, limit: 2 }
    );
    assert_eq!(
        node.planner.batch(&[a, b, a]).unwrap_err(),
        Error::BatchSize { rows: 3, limit: 2 }
    );
}

#[test]
fn all_or_none_of_a_batch_call_is_applied() {
    let (mut node, a, b) = busy();
    for call in [
        Op::AppendPages {
            table: 0,
            handles: vec![a, b],
            counts: vec![1, 1],
            pages: vec![10, 21],
        },
        Op::HostStep {
            table: 0,
            handles: vec![a, b],
            tokens: vec![1, 100],
        },
        Op::Reserve {
            table: 1,
            handles: vec![a, b],
            tokens: vec![8, 12],
        },
        Op::SetColumn {
            column: 0,
            handles: vec![a, 99],
            values: vec![7, 7],
        },
        Op::UnsetColumn {
            column: 0,
            handles: vec![a, 99],
        },
        Op::MarkStale(vec![a, 99]),
    ] {
        refused(&mut node, &call);
    }
    node.step(&[a, b]);
    assert_eq!(node.planner.stats().whole_rows, 2, "no mark was left");
}

#[test]
fn nothing_but_a_live_request_can_stand_between_the_rows_of_a_batch() {
    let mut node = plain(4);
    let [a, b, c] = node.simples(3)[..] else {
        unreachable!()
    };
    node.release(b);
    for nobody in [-1, b, i64::MAX] {
        assert_eq!(
            node.planner.batch(&[a, nobody, c]).unwrap_err(),
            Error::UnknownHandle { handle: nobody }
        );
    }
    assert_eq!(
        node.step(&[a, c]).slots,
        [node.slot(a), node.slot(c), 0, 0],
        "the trash row stands behind the rows only"
    );
}
