//! Metrics: descriptions in one table, cheap handles for counting, and rendering as Prometheus text
//! or statsd packets.
//!
//! A tool describes each metric once, as a constant [`Description`]. Registering it returns a
//! handle that hot paths can store and update without a lock. Serving or sending the values is up
//! to the caller.
//!
//! ```
//! use howdah_stats::{Description, Registry};
//!
//! const STATEMENTS: Description =
//!     Description::counter("howdah_replay_statements_total", "Statements sent.");
//! const ERRORS: Description =
//!     Description::counter("howdah_replay_errors_total", "Statements that failed.")
//!         .labels(&["sqlstate"]);
//!
//! let registry = Registry::new();
//! registry.counter(&STATEMENTS).add(2);
//! registry.counter_with(&ERRORS, &[("sqlstate", "23505")]).add(1);
//! assert!(registry.prometheus().contains("howdah_replay_errors_total{sqlstate=\"23505\"} 1\n"));
//! ```

mod description;
mod handles;
pub mod otlp;
mod percentiles;
pub mod prometheus;
mod registry;
pub mod statsd;

pub use description::{Description, LATENCY_BOUNDS_US, MetricKind, MetricUnit};
pub use handles::{Counter, Gauge, Histogram};
pub use percentiles::{PercentileSummary, Percentiles};
pub use registry::{MetricFamily, MetricHandle, OVERFLOW, Registry, SERIES_MAX};
