//! Tests with real servers.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests are test code")]

mod access;
mod clusters;
mod labs;
mod majors;
mod orphans;
mod standbys;
mod support;
