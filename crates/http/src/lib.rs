//! HTTP/1.1 for the other crates: [`client`] sends requests, [`server`] serves metrics, health
//! checks, pages and readings.
//!
//! The protocol itself is implemented by `ureq` and `axum`. This crate adds deadlines, limits, the
//! workspace's TLS settings, and errors that reveal no secrets.

pub mod client;
pub mod server;
