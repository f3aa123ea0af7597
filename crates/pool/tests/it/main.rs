//! The pooler against real servers.

#![allow(clippy::panic, clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod auth_query;
mod capture;
#[path = "../../../connect/tests/integration/certificates.rs"]
mod certificates;
mod clients;
mod cluster;
mod console;
mod dialogues;
mod entrance;
mod fairness;
mod faults;
mod hba;
mod limits;
mod listen;
mod mirror;
mod own_writes;
mod pgbouncer_ini;
mod pgcat_toml;
mod places;
mod reload;
mod route;
mod server_login;
mod sessions;
mod shards;
mod spread;
mod startup;
mod support;
mod suspend;
mod tables;
mod takeover;
mod tls;
mod unused;
