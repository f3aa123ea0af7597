//! The whole server against receivers as people run them: samples go in by UDP, values are read back
//! from Carbon, Prometheus, InfluxDB and an OpenTelemetry collector. (PostgreSQL has its tests beside
//! its backend.)
//!
//! `scripts/setup` brings Carbon, Prometheus and InfluxDB, `make receivers` the collector. A receiver
//! that is not there makes its test say so and pass; with `HOWDAH_RECEIVERS_REQUIRED=1` it fails.

#![allow(clippy::panic, clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod carbon;
mod influx;
mod otlp;
mod prometheus;
mod support;
mod tls;
