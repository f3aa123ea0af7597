//! Keepers of real servers of several majors. What is in a cache is what `pg_buffercache` says.

#![allow(clippy::panic, clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod following;
mod support;
mod trouble;
mod watching;
