//! Tests probes on real servers of every major version.

#![allow(
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "test helpers may panic like tests"
)]

mod checkpoints;
mod container;
mod culprits;
mod durations;
mod export;
mod extend;
mod other_binaries;
mod profile;
mod quiet;
mod recorder;
mod relation_names;
mod spins;
mod support;
mod sweep;
mod waits;
