//! Compares runs of one capture, query by query: which query changed, by how much, and with what
//! confidence.
//!
//! [`Samples`] is the summary of a run, in bounded memory. [`compare_runs()`] compares several runs
//! of one setup with several of another; [`compare()`] compares just two. Both return a
//! [`Comparison`] with a [`QueryVerdict`] on each query.
//!
//! Durations are service times of successful executions: from sending a statement, or from the end
//! of the one before it in its pipeline, to the end of its reply. A delay before a statement is
//! sent is caused by the replay and is not included.
//!
//! This crate measures and classifies. `howdah-report` renders comparisons for terminals and files.

mod compare;
mod comparison;
pub mod explain;
mod fail_on;
mod latencies;
mod machine;
pub mod plan;
mod samples;
mod settings;
mod statistics;
#[cfg(test)]
mod testing;
mod verdict;

pub use compare::{compare, compare_runs};
pub use comparison::{
    Caveat, Change, Comparison, Control, ErrorChange, Interval, Measures, Plans, QueryComparison,
    Side,
};
pub use fail_on::{FailOn, Metric, ParseFailOnError, Violation};
pub use latencies::LatencyBins;
pub use machine::MachineLoad;
pub use samples::{ErrorCount, Errors, QueryText, ReadRunError, RunInfo, Samples};
pub use settings::{ChangeFactor, CompareSettings, ParseChangeFactorError};
pub use verdict::{ChangedPart, Overall, QueryVerdict};
