//! `howdah replay` against real servers: what arrives there, when, and what is said about it.
//!
//! Logs that a test writes itself are synthetic down to the millisecond, so that a schedule can be
//! checked against them; logs of pgbench come from a server. Nothing here judges wall time: orders
//! and sums are compared, and the two clocks that a run records.

#![allow(clippy::panic, clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod encoding;
mod ends;
mod faults;
mod interrupt;
mod log_pipelines;
mod login_settings;
mod logs;
mod messages;
mod metrics;
mod pace;
mod pgbench;
mod protocol;
mod read_only;
mod streaming;
mod support;
mod targets;
mod types;
mod who;
mod wire;
