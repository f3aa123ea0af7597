//! Tests against real servers.

#![allow(clippy::panic, clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod activity;
mod plan;
mod signals;
mod support;
mod views;
mod vitals;
