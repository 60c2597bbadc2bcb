//! A model node: a planner, the device it plans for, and the truth that its rows must equal. None of it shares code
//! with the planner; each part is as naive as it can be.

#![allow(dead_code)] // each test binary uses a part of it

pub mod arbitrary;
pub mod check;
pub mod device;
pub mod diff;
pub mod flush;
pub mod launch;
pub mod machine;
pub mod node;
pub mod operations;
pub mod ops;
pub mod ram;
pub mod random;
pub mod requests;
pub mod scenario;
pub mod shapes;
pub mod slots;
pub mod step;
pub mod truth;

use mstar_resident_core::Error;

/// The name of an error's variant.
pub fn kind(error: &Error) -> &'static str {
    match error {
        Error::Layout { .. } => "Layout",
        Error::ArrayLength { .. } => "ArrayLength",
        Error::Count { .. } => "Count",
        Error::Index { .. } => "Index",
        Error::UnknownHandle { .. } => "UnknownHandle",
        Error::DuplicateHandle { .. } => "DuplicateHandle",
        Error::BatchSize { .. } => "BatchSize",
        Error::NotReady { .. } => "NotReady",
        Error::StageDropped { .. } => "StageDropped",
        Error::NotInFlight { .. } => "NotInFlight",
        Error::RowOverflow { .. } => "RowOverflow",
        Error::MissingPage { .. } => "MissingPage",
        Error::UnsetColumn { .. } => "UnsetColumn",
        Error::ReleasedTokens { .. } => "ReleasedTokens",
        Error::Page { .. } => "Page",
        Error::Length { .. } | Error::Pages { .. } => "Length",
        Error::SharedPage { .. } => "SharedPage",
        Error::OutOfPages { .. } => "OutOfPages",
        Error::Ownership { .. } => "Ownership",
        Error::FlushBuffer { .. } => "FlushBuffer",
        Error::Invariant { .. } => "Invariant",
        _ => "another",
    }
}
