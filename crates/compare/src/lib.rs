//! Two runs of one capture, query by query: which query changed, by how much, and how sure that is.
//!
//! [`Samples`] is what is kept of a run, in bounded memory. [`compare()`] puts two of them side by
//! side and gives a [`Comparison`] with a [`Verdict`] on each query.
//!
//! Durations are service times: from sending a statement to the end of its answer, of executions
//! that ended well. How late a statement was sent is the replay's business and no part of them.
//!
//! This crate measures and judges. How a comparison looks on a terminal or in a file is
//! `howdah-report`'s.

mod compare;
mod comparison;
pub mod explain;
mod fail_on;
pub mod plan;
mod samples;
mod settings;
mod statistics;
#[cfg(test)]
mod testing;
mod verdict;

pub use compare::compare;
pub use comparison::{
    Caveat, Change, Comparison, Control, ErrorChange, Interval, Measures, QueryComparison, Side,
};
pub use fail_on::{Crossing, FailOn, Metric, ParseFailOnError};
pub use samples::{About, ErrorCount, Errors, ReadRunError, Samples, Words};
pub use settings::{ChangeFactor, ParseChangeFactorError, Settings};
pub use verdict::{Overall, Part, Verdict};
