//! Measures the benefit of a warm cache: restarts a server with cold caches, has one client read
//! single rows as fast as it can, and records its throughput per step. The methods compared are no
//! warming, contrib's autoprewarm (if it can be measured), and Howdah's load.
//!
//! ```text
//! data ─► warm cache, client: the steady rate ─► image, autoprewarm.blocks
//!   ┌────────────────────────────────────────────────────┘
//!   └─► for each method: stop ─ drop files from the system's cache ─ start ─┬─ warm ─┬─► summary
//!                                                                           └ client ┘
//! ```
//!
//! The server is a temporary one, or an existing one that the caller can restart. All measurements
//! are made by our own client; no other program is needed. Taking and loading images is implemented
//! in [`crate::dump`] and [`crate::load()`]. The caller presents the results.

mod data;
mod error;
mod experiment;
mod read_client;
mod resource_usage;
mod row_sequence;
mod server;
mod summary;

pub use error::BenchmarkError;
pub use experiment::{
    Benchmark, BenchmarkResults, BenchmarkRun, DropCaches, WarmMethod, WarmingCost,
};
pub use read_client::ThroughputStep;
pub use server::{BenchmarkServer, ExistingServer, TemporaryServer};
pub use summary::ThroughputSummary;
