//! The warm daemons with real servers of several majors. `pg_buffercache` shows what is cached.

#![allow(clippy::panic, clippy::unwrap_used, reason = "test helpers count as tests")]

mod failures;
mod follow;
mod readiness;
mod support;
mod watch;
