//! The complete server with real receivers: samples are sent by UDP, and values are read back from
//! Carbon, Prometheus, InfluxDB and an OpenTelemetry collector. (PostgreSQL is tested next to its
//! backend.)
//!
//! `scripts/setup` installs Carbon, Prometheus and InfluxDB, `make receivers` the collector. If a
//! receiver is missing, its test prints a message and passes; with `HOWDAH_RECEIVERS_REQUIRED=1` it
//! fails.

#![allow(clippy::panic, clippy::unwrap_used, reason = "test code")]

mod carbon;
mod influx;
mod otlp;
mod prometheus;
mod support;
mod tls;
