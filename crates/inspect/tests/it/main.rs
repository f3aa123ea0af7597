//! Compares readings from outside with what real servers of several majors report themselves.

#![allow(clippy::panic, clippy::unwrap_used, reason = "test helpers may panic like tests")]

mod discovery;
mod shared_memory;
mod support;
