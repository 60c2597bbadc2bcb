//! Layouts of real models, and what no store can be built from.

use mstar_resident_core::{Error, Planner, RowLayout, TableSpec};

use crate::node;
use crate::support::shapes::{Shape, append, read_only};

fn layout(tables: Vec<TableSpec>, columns: usize) -> RowLayout {
    Shape::new(tables, columns, 1).layout()
}

#[test]
fn a_hybrid_model_of_long_context_has_2050_cells_and_257_rows_in_two_mebibytes() {
    let layout = layout(vec![append("kv", 128, 2047, 262_144)], 2);
    assert_eq!((layout.width(), layout.narrow_cells()), (2050, 3));
    assert_eq!(layout.table_pages(), [2047]);
    assert_eq!(layout.store_bytes(128), 257 * (3 * 8 + 2047 * 4));
    assert!(layout.store_bytes(128) <= 4 << 20);
}

#[test]
#[cfg_attr(miri, ignore = "minutes under Miri")]
fn an_encoder_decoder_model_has_19_cells() {
    let tables = vec![
        append("self", 128, 500, 448),
        read_only("context", 128, 800, 1500),
    ];
    let layout = layout(tables.clone(), 1);
    assert_eq!((layout.width(), layout.narrow_cells()), (19, 3));
    assert_eq!(layout.table_pages(), [4, 12]);
    let mut node = node(&Shape::new(tables, 1, 64));
    assert_eq!(node.planner.stats().slots_free, 128);
    let context: Vec<i64> = (1..=12).collect();
    let rows: Vec<i64> = (0..64_i64)
        .map(|row| {
            let own: Vec<i64> = (0..4).map(|page| 1 + 4 * row + page).collect();
            node.request(&[(&own, 100 + row), (&context, 1500)], &[-row])
        })
        .collect();
    for _ in 0..130 {
        node.step(&rows);
    }
    assert_eq!(node.planner.stats().whole_rows, 64);
}

#[test]
fn a_million_tokens_on_sixteen_token_pages_have_as_many_columns_as_the_pool_has_pages() {
    let spec = append("kv", 16, 2048, 1 << 20);
    assert_eq!(layout(vec![spec.clone()], 0).table_pages(), [2048]);
    let mut node = node(&Shape::new(vec![spec], 0, 1));
    let pages: Vec<i64> = (1..=2048).rev().collect();
    let a = node.request(&[(&pages, 2047 * 16)], &[]);
    let out = node.step(&[a]);
    assert_eq!(out.write_loc[0][0], 16, "the last column names page 1");
    node.host_step(a, 0, 15);
    let error = node.stage(&[a], 0).unwrap_err();
    assert!(
        matches!(
            error,
            Error::RowOverflow {
                needed: 2049,
                width: 2048,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_table_is_as_wide_as_its_longest_stream_or_its_pool() {
    for (page_size, pool_pages, max_seq_len, pages) in [
        (4, 100, 64, 16),
        (4, 100, 65, 17),
        (4, 100, 63, 16),
        (4, 10, 64, 10),
        (1, 1, 1, 1),
        (1 << 20, 5, 3, 1),
    ] {
        let layout = layout(vec![append("kv", page_size, pool_pages, max_seq_len)], 0);
        assert_eq!(layout.table_pages(), [pages]);
        assert_eq!(
            (layout.tables()[0].name(), layout.tables()[0].width()),
            ("kv", pages)
        );
    }
}

#[test]
fn a_batch_row_has_two_cells_a_table_rounded_to_a_power_of_two() {
    for (tables, cells) in [(0, 2), (1, 2), (2, 4), (3, 8), (4, 8), (5, 16)] {
        let specs = (0..tables)
            .map(|number| append(&format!("t{number}"), 4, 10, 40))
            .collect();
        let layout = layout(specs, 1);
        assert_eq!(layout.cells_per_row(), cells);
        assert_eq!(layout.lease_cells(6), 6 + 6 * 2 * cells);
    }
}

#[test]
fn columns_follow_lengths_and_are_named() {
    let layout = layout(vec![append("kv", 4, 10, 40)], 2);
    assert_eq!(layout.columns(), ["column0", "column1"]);
    let planner = Planner::new(layout, 3).unwrap();
    assert_eq!((planner.layout().width(), planner.max_batch()), (13, 3));
}

fn refused(tables: Vec<TableSpec>, columns: &[&str]) -> (String, String) {
    let columns = columns.iter().map(|&name| name.to_owned()).collect();
    match RowLayout::new(tables, columns) {
        Err(Error::Layout { field, got, .. }) => (field, got),
        other => panic!("{other:?}"),
    }
}

#[test]
fn fields_that_no_store_can_be_built_from_are_named() {
    let spec = || append("kv", 4, 10, 40);
    let field = |spec: TableSpec| refused(vec![spec], &[]);
    let named = |name: &str, got: &str| (format!("kv.{name}"), got.to_owned());
    assert_eq!(
        field(TableSpec {
            page_size: 0,
            ..spec()
        }),
        named("page_size", "0")
    );
    assert_eq!(
        field(TableSpec {
            page_size: (1 << 20) + 1,
            ..spec()
        }),
        named("page_size", "1048577")
    );
    assert_eq!(
        field(TableSpec {
            pool_pages: 0,
            ..spec()
        }),
        named("pool_pages", "0")
    );
    assert_eq!(
        field(TableSpec {
            pool_pages: 1 << 31,
            ..spec()
        }),
        named("pool_pages", "2147483648")
    );
    assert_eq!(
        field(TableSpec {
            max_seq_len: 0,
            ..spec()
        }),
        named("max_seq_len", "0")
    );
    assert_eq!(
        field(TableSpec {
            max_seq_len: (1 << 40) + 1,
            ..spec()
        }),
        named("max_seq_len", "1099511627777")
    );
    assert_eq!(field(TableSpec { span: 2, ..spec() }), named("span", "2"));
    assert_eq!(refused(Vec::new(), &[]).0, "tables");
    assert_eq!(
        refused(vec![spec(), spec()], &[]),
        ("name".into(), "kv".into())
    );
    assert_eq!(
        refused(vec![spec()], &["a", "kv"]),
        ("name".into(), "kv".into())
    );
    assert_eq!(
        refused(vec![spec()], &["a", "b", "a"]),
        ("name".into(), "a".into())
    );
    let names: Vec<String> = (0..65).map(|number| format!("c{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(
        refused(vec![spec()], &names),
        ("columns".into(), "65".into())
    );
}

#[test]
fn the_widest_legal_fields_are_accepted() {
    layout(vec![append("kv", 1 << 20, 1, 1 << 40)], 0);
    layout(vec![append("kv", 1, i32::MAX as u64, 1)], 0);
    layout(vec![append("kv", 1, i32::MAX as u64, i32::MAX as u64)], 64);
}

#[test]
fn tokens_that_an_int32_attention_length_cannot_count_are_refused() {
    let wide = |page_size, max_seq_len| vec![append("kv", page_size, i32::MAX as u64, max_seq_len)];
    let limit = i32::MAX as u64;
    assert_eq!(
        refused(wide(2, limit), &[]),
        ("kv.max_seq_len".into(), (limit + 1).to_string()),
        "its last page is longer"
    );
    layout(wide(2, limit - 1), 0);
    layout(vec![append("kv", 16, (limit - 15) / 16, 1 << 40)], 0); // the pool bounds it
    assert_eq!(
        refused(vec![append("kv", 16, limit.div_ceil(16), 1 << 40)], &[]).0,
        "kv.max_seq_len"
    );
}

#[test]
#[cfg_attr(miri, ignore = "minutes under Miri")]
fn batches_have_a_least_and_a_largest_width() {
    let build = |rows| Planner::new(layout(vec![append("kv", 4, 10, 40)], 0), rows);
    for rows in [0, (1 << 16) + 1, usize::MAX] {
        let error = build(rows).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("layout field max_batch: expected 1 to 65536 rows, got {rows}")
        );
    }
    assert_eq!(build(1 << 16).unwrap().stats().slots_free, 1 << 17);
    build(1).unwrap();
}
