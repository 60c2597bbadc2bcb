//! Page ids, lengths and handles at the edges of 31, 32 and 63 bits: right, or refused.

use mstar_resident_core::{Error, Handle, PlanSeq};

use crate::support::shapes::{Shape, append, read_only};
use crate::{node, plain};
use mstar_resident_core::Op;

#[test]
fn a_page_id_beyond_32_bits_of_tokens_is_written_where_it_belongs() {
    let mut node = node(&Shape::new(
        vec![append("kv", 16, i32::MAX as u64, 64)],
        0,
        1,
    ));
    let a = node.request(&[(&[200_000_000, i64::from(i32::MAX)], 5)], &[]);
    assert_eq!(node.step(&[a]).write_loc[0][0], 3_200_000_005);
    node.host_step(a, 0, 10);
    assert_eq!(node.step(&[a]).write_loc[0][0], i64::from(i32::MAX) * 16);
}

#[test]
fn page_ids_outside_the_pool_are_refused_everywhere() {
    let mut node = node(&Shape::new(
        vec![
            append("kv", 4, i32::MAX as u64, 64),
            append("small", 4, 7, 64),
        ],
        0,
        1,
    ));
    let a = node.open();
    for (table, page) in [
        (0, 0),
        (0, -1),
        (0, i64::MIN),
        (0, i64::MAX),
        (0, 1 << 31),
        (0, 1 << 32),
        (0, (1 << 32) | 1),
        (1, 8),
        (1, -7),
    ] {
        let pages = vec![1, page];
        let set = Op::SetStream {
            handle: a,
            table,
            pages: pages.clone(),
            length: 1,
        };
        let append = Op::AppendPages {
            table,
            handles: vec![a],
            counts: vec![2],
            pages,
        };
        for call in [set, append] {
            let error = node.tell(&call).unwrap_err();
            assert!(
                matches!(error, Error::Page { page: named, .. } if named == page),
                "{error}"
            );
        }
    }
    node.set_stream(a, 1, &[7], 1); // the last page of the pool
}

#[test]
fn a_page_named_twice_by_a_stream_is_refused_under_strict_checks_only() {
    let mut node = plain(1);
    let a = node.request(&[(&[5, 6], 3)], &[]);
    let again = Op::AppendPages {
        table: 0,
        handles: vec![a],
        counts: vec![1],
        pages: vec![5],
    };
    assert!(node.tell(&again).is_err());
    let twice = Op::SetStream {
        handle: a,
        table: 0,
        pages: vec![9, 3, 9],
        length: 3,
    };
    assert!(matches!(
        node.tell(&twice),
        Err(Error::Page { page: 9, .. })
    ));
    node.planner.set_strict(false);
    node.planner.set_stream(a, 0, &[9, 3, 9], 3).unwrap();
}

#[test]
fn lengths_near_31_bits_are_exact() {
    let page_size = 1 << 20;
    let mut node = node(&Shape::new(
        vec![append("kv", page_size, 5000, (1 << 31) - page_size)],
        0,
        1,
    ));
    let pages: Vec<i64> = (1..=2047).collect();
    let last = 2047_i64 << 20;
    let a = node.request(&[(&pages, last - 2)], &[]);
    let out = node.step(&[a]);
    assert_eq!(i64::from(out.lengths[0][0]), last - 1);
    let out = node.step(&[a]);
    assert_eq!(
        out.write_loc[0][0],
        (2048 << 20) - 1,
        "the last token of page 2047"
    );
    node.append_page(a, 0, 2048);
    assert!(matches!(
        node.stage(&[a], 0),
        Err(Error::RowOverflow { needed: 2048, .. })
    ));
}

#[test]
fn lengths_beyond_32_bits_are_told_and_never_stepped() {
    let mut node = node(&Shape::new(
        vec![read_only("c", 1 << 20, 9000, 1 << 20)],
        0,
        1,
    ));
    let pages: Vec<i64> = (1..=8192).collect();
    let a = node.request(&[(&pages, 8192 << 20)], &[]);
    assert_eq!(node.length(a, 0), 1 << 33);
    assert!(matches!(
        node.stage(&[a], 0),
        Err(Error::RowOverflow {
            needed: 8192,
            width: 1,
            ..
        })
    ));
    node.truncate(a, 0, 1 << 20, 1);
    node.step(&[a]);
}

#[test]
fn numbers_that_no_open_handle_packs_to_are_unknown() {
    let mut node = plain(1);
    let a = node.simples(1)[0];
    for handle in [
        -1,
        i64::MIN,
        i64::MAX,
        a + 1,
        a + (1 << 32),
        1 << 31,
        (1 << 32) - 1,
        1 << 62,
    ] {
        for call in [
            Op::Release(handle),
            Op::Offload(handle),
            Op::MarkStale(vec![a, handle]),
            Op::MarkReleasedTokens { table: 0, handle },
        ] {
            assert_eq!(node.tell(&call), Err(Error::UnknownHandle { handle }));
        }
        assert_eq!(
            node.planner.batch(&[handle]).unwrap_err(),
            Error::UnknownHandle { handle }
        );
        assert_eq!(
            node.planner.last_step(handle),
            Err(Error::UnknownHandle { handle })
        );
        assert_eq!(
            node.planner.length(handle, 0),
            Err(Error::UnknownHandle { handle })
        );
        assert_eq!(
            node.planner.pages(handle, 0),
            Err(Error::UnknownHandle { handle })
        );
        assert_eq!(
            node.planner.slot(handle),
            Err(Error::UnknownHandle { handle })
        );
    }
}

#[test]
fn packed_handles_read_back_and_negative_ones_do_not() {
    for packed in [0, 1, (1 << 32) - 1, 1 << 32, (7 << 32) | 9, i64::MAX] {
        assert_eq!(Handle::unpack(packed).map(Handle::pack), Some(packed));
    }
    for packed in [-1, i64::MIN, -(1 << 32)] {
        assert_eq!(Handle::unpack(packed), None);
    }
}

#[test]
fn handles_of_one_index_differ_by_generation() {
    let mut node = plain(1);
    let mut last = node.open();
    assert_eq!(last, 0);
    for generation in 1..50 {
        node.release(last);
        let next = node.open();
        assert_eq!(next, generation << 32, "generation << 32 | index");
        last = next;
    }
    assert_eq!(node.open(), 1);
}

#[test]
fn plan_numbers_start_at_one() {
    let mut node = plain(1);
    assert_eq!(
        (PlanSeq::NONE.get(), node.planner.committed_seq().get()),
        (0, 0)
    );
    let a = node.simples(1)[0];
    assert_eq!(node.plan(&[a]), 1);
    assert_eq!(node.plan(&[a]), 2);
    assert_eq!(PlanSeq::from_raw(5).get(), 5);
}
