//! Takes and loads images of real servers of several major versions.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "test helpers may panic like tests"
)]

mod dumping;
mod failures;
mod loading;
mod managed;
mod os_cache;
mod readiness;
mod rewritten;
mod selecting;
mod support;
mod tables;
mod throttling;
mod usage;
