//! The pooler against real servers.

#![allow(clippy::panic, clippy::unwrap_used, reason = "test helpers may panic")]

mod adaptive;
mod addresses;
mod auth_query;
mod cancel_peers;
mod capture;
mod captured_server;
#[path = "../../../connect/tests/integration/certificates.rs"]
mod certificates;
mod cleartext;
mod client_identity;
mod clients;
mod cluster;
mod connect_query;
mod console;
mod console_set;
mod dialogues;
mod dns;
mod fairness;
mod fan_out;
mod faults;
mod forced_user;
mod hba;
mod idle_pools;
mod idle_servers;
mod limits;
mod listen;
mod local_socket;
mod mirror;
mod outage;
mod parse_settings;
mod pass_through;
mod pgbouncer_ini;
mod pgcat_toml;
mod read_your_writes;
mod reload;
mod replication;
mod restarts;
mod routing;
mod server_login;
mod server_secrets;
mod sessions;
mod shards;
mod shutdown;
mod socket_buffers;
mod startup;
mod startup_limits;
mod support;
mod suspend;
mod tables;
mod takeover;
mod tls;
