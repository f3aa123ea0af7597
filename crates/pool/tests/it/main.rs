//! The pooler against real servers.

#![allow(clippy::panic, clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod clients;
mod dialogues;
mod faults;
mod server_login;
mod sessions;
mod support;
