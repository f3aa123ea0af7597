//! Probes in real servers of every major.

#![allow(
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "the helpers of tests are tests, too"
)]

mod checkpoints;
mod container;
mod durations;
mod export;
mod extend;
mod other_binaries;
mod recorder;
mod support;
mod sweep;
mod waits;
