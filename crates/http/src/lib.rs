//! HTTP/1.1 for the other crates.

pub mod client;
