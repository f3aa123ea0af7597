//! `howdah demo`: rehearses a change that drops an index, on throw-away servers.
//!
//! ```text
//! clients ──► pooler ──► production ── copied before the traffic ──► base, change
//!                │           │                                          │
//!             capture   cache image                             drop an index on change
//!                └───────────┴──────────► rehearsal ◄───────────────────┘
//! ```
//!
//! Servers, pooler, capture and [rehearsal](howdah_rehearse) are real; only the data and its
//! clients are invented. This crate only sets these up and starts them: it does not replay, compare
//! or render reports.

mod dataset;
mod error;
mod folder;
mod pooler;
mod servers;
mod steps;
mod workload;

pub use error::DemoError;
pub use steps::{Demo, DemoOutcome};
