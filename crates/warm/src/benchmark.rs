//! Measures the benefit of a warm cache: restarts a server with cold caches, has one client read
//! single rows as fast as it can, and records its throughput per step. The methods compared are no
//! warming, contrib's autoprewarm (if it can be measured), and Howdah's load.
//!
//! ```text
//! data ─► warm cache, client: the steady rate ─► image, autoprewarm.blocks
//!   ┌────────────────────────────────────────────────────┘
//!   └─► in each run, for each method:
//!       stop ─ drop files from the system's cache ─ start ─┬─ warm ─┬─► summary ─► verdict
//!                                                          └ client ┘
//! ```
//!
//! Equal measurements differ, and a busy host makes them differ more. So the methods are measured
//! in several runs in varying order, waits for a processor are measured with the reads, and a
//! method is called faster only if the measurements of all runs say so.
//!
//! The server is a temporary one, or an existing one that the caller can restart. All measurements
//! are made by our own client; no other program is needed. Taking and loading images is implemented
//! in [`crate::dump`] and [`crate::load()`]. The caller presents the results.

mod binding;
mod data;
mod error;
mod experiment;
mod host;
mod interference;
mod method_order;
mod method_summary;
mod read_client;
mod resource_usage;
mod results;
mod row_sequence;
mod server;
mod spread;
mod summary;
mod verdict;
mod warming;

pub use error::BenchmarkError;
pub use experiment::{Benchmark, DropCaches};
pub use host::{HostInfo, StepConditions};
pub use interference::{
    Disturbance, Interference, OTHERS_SHARE_MAX, STEAL_SHARE_MAX, WAIT_SHARE_MAX,
};
pub use method_summary::{MethodSummary, WarmingSummary};
pub use read_client::ThroughputStep;
pub use results::{
    BenchmarkResults, BenchmarkRun, MethodMeasurement, STEADY_MARGIN, WarmMethod, WarmingCost,
};
pub use server::{BenchmarkServer, ExistingServer, TemporaryServer};
pub use spread::RunSpread;
pub use summary::ThroughputSummary;
pub use verdict::{
    BenchmarkObstacle, BenchmarkVerdict, IndecisionReason, MIN_RUNS, MethodComparison,
    WarmingVerdict,
};
