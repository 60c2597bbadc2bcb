//! What a plan costs in the core: median of stage + flush + commit per step, for every case and width.
//!
//! `cargo bench --bench plan_latency`, or `-- --rows 1,64 --steps 20000`.

#![allow(missing_docs, clippy::print_stdout)]

mod cases;

fn main() {
    let mut rows = vec![1, 16, 64, 256];
    let mut steps = 20_000;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().expect("a value behind the option");
        match argument.as_str() {
            "--rows" => {
                rows = value()
                    .split(',')
                    .map(|n| n.parse().expect("--rows 1,64"))
                    .collect();
            }
            "--steps" => steps = value().parse().expect("--steps N"),
            _ => {} // what cargo passes to every bench
        }
    }
    println!(
        "{:<12} {:>5} {:>12} {:>14} {:>12} {:>9}",
        "case", "rows", "step ns p50", "ns per row", "bytes", "GB/s"
    );
    for (name, case) in cases::CASES {
        for &rows in &rows {
            // A whole row is a 4 KiB copy: fewer steps measure it as well.
            let steps = if matches!(case, cases::Case::Whole) {
                steps / 10
            } else {
                steps
            };
            let timing = cases::time(case, rows, steps.max(100));
            let per_row = timing.ns_p50 / rows as f64;
            let rate = timing.bytes / timing.ns_p50;
            println!(
                "{name:<12} {rows:>5} {:>12.0} {per_row:>14.1} {:>12.0} {rate:>9.2}",
                timing.ns_p50, timing.bytes
            );
        }
    }
}
