//! Takes and loads images of real servers of several major versions.

#![allow(clippy::panic, clippy::unwrap_used, reason = "test helpers may panic like tests")]

mod dumping;
mod failures;
mod loading;
mod readiness;
mod support;
mod tables;
mod throttling;
mod usage;
