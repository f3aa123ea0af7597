//! `howdah replay` with real servers: the statements sent, their timing, and the reports.
//!
//! Most logs are synthetic with exact times, so that the schedule can be checked against them;
//! those of pgbench come from a server. No test depends on wall time: they compare orders and sums,
//! and the schedule error and dependency lag that a run records.

#![allow(clippy::panic, clippy::unwrap_used, reason = "helpers of tests are test code")]

mod encoding;
mod faults;
mod guard;
mod interrupt;
mod log_pipelines;
mod logged_session;
mod login_settings;
mod logins;
mod logs;
mod machine;
mod messages;
mod metrics;
mod open_transactions;
mod order;
mod pace;
mod pgbench;
mod pooler_capture;
mod protocol;
mod read_only;
mod results;
mod schedule;
mod stores;
mod streaming;
mod support;
mod targets;
mod types;
