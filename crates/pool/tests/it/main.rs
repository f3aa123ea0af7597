//! The pooler against real servers.

#![allow(clippy::panic, clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod auth_query;
mod capture;
#[path = "../../../connect/tests/integration/certificates.rs"]
mod certificates;
mod cleartext;
mod clients;
mod cluster;
mod connect_query;
mod console;
mod dialogues;
mod entrance;
mod fairness;
mod faults;
mod forced_user;
mod hba;
mod limits;
mod listen;
mod mirror;
mod names;
mod outage;
mod own_writes;
mod parse_settings;
mod pgbouncer_ini;
mod pgcat_toml;
mod places;
mod reload;
mod replication;
mod route;
mod server_login;
mod sessions;
mod set;
mod shards;
mod shutdown;
mod socket_buffers;
mod spread;
mod startup;
mod startup_limits;
mod support;
mod suspend;
mod tables;
mod takeover;
mod tls;
mod unused;
