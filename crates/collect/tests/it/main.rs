//! What `collect` says of real servers.

#![allow(clippy::panic, clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod acting;
mod activity;
mod plan;
mod support;
mod views;
