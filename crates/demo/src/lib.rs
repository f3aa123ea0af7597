//! `howdah demo`: drops an index in a copy of a database and finds the slower query by replaying
//! captured traffic.
//!
//! ```text
//! dataset ──► production ── traffic, logged ─► capture ─┬─► base (unchanged) ───┬─ compare: slower
//! (built ───► base                                     ├─► control (unchanged)─┤  compare: equal
//!  once,  ──► control                                  └─► changed (no index) ─┘
//!  copied) ─► changed
//! ```
//!
//! Servers, log, replay and statistics are real; only the data and its clients are invented.

mod dataset;
mod error;
mod servers;
mod steps;
mod workload;

pub use error::DemoError;
pub use steps::{Demo, DemoOutcome};
