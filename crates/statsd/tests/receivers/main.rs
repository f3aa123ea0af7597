//! The complete server with real receivers: samples are sent by UDP, and values are read back from
//! Carbon, Prometheus, InfluxDB, an OpenTelemetry collector and, with the feature `kafka`, Apache
//! Kafka. (PostgreSQL is tested next to its backend.)
//!
//! `scripts/setup` installs Carbon, Prometheus and InfluxDB, `make receivers` the others. If a
//! receiver is missing, its test prints a message and passes; with `HOWDAH_RECEIVERS_REQUIRED=1` it
//! fails.

#![allow(clippy::panic, clippy::unwrap_used, reason = "test code")]

mod carbon;
mod influx;
#[cfg(feature = "kafka")]
mod kafka;
mod otlp;
mod prometheus;
mod support;
mod tls;
