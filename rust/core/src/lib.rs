//! Resident decode planner.
#![forbid(unsafe_code)]
