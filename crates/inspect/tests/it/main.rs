//! What is read from outside, beside what real servers of several majors say themselves.

#![allow(clippy::panic, clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod finding;
mod reading;
mod support;
