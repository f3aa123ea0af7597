//! Images of real servers of several majors.

#![allow(clippy::panic, clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod dumping;
mod loading;
mod pace;
mod readiness;
mod support;
mod tables;
mod trouble;
