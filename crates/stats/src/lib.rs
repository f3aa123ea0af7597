//! Metrics: one table of what is counted, cheap handles to count with, Prometheus text to read and
//! statsd packets to send.
//!
//! A tool describes each metric once, as a constant [`Description`]; registering it gives a handle
//! that hot paths can keep and update without a lock. Who asks for the numbers, over what protocol,
//! is not said here.
//!
//! ```
//! use howdah_stats::{Description, Registry, Unit};
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
mod percentiles;
mod prometheus;
mod registry;
pub mod statsd;

pub use description::{Description, Kind, LATENCY_BOUNDS_US, Unit};
pub use handles::{Counter, Gauge, Histogram};
pub use percentiles::{Percentiles, Summary};
pub use registry::{OVERFLOW, Registry, SERIES_MAX};
