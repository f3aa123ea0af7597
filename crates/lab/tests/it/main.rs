//! Clusters with real servers.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests are tests")]

mod clusters;
mod labs;
mod majors;
mod orphans;
mod standbys;
mod support;
