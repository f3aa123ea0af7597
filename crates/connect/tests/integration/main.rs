//! Connections to real servers, and to servers that misbehave.
//!
//! Tests that need PostgreSQL share one temporary cluster; without PostgreSQL they print a message
//! and pass. Tests that need certificates create them with the `openssl` program.

#![allow(clippy::panic, clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod certificates;
mod cluster;
mod fake_servers;
mod handshake;
mod hosts;
mod login;
mod query;

use howdah_connect::{
    Client, ConnParams, ConnectError, ConnectFailure, ConnectTarget, Environment,
};

/// Resolves a connection string in an empty environment.
fn target(conninfo: &str) -> ConnectTarget {
    let environment = Environment::empty().with_os_user("nobody");
    ConnectTarget::resolve(&ConnParams::from_conninfo(conninfo), &environment).unwrap()
}

fn connect(conninfo: &str) -> Result<Client, ConnectError> {
    Client::connect(&target(conninfo))
}

/// The failure of each attempt.
#[track_caller]
fn failures(result: Result<Client, ConnectError>) -> Vec<ConnectFailure> {
    match result {
        Ok(client) => panic!("connected: {client:?}"),
        Err(ConnectError::Failed { failures }) => {
            failures.into_iter().map(|failure| failure.cause).collect()
        }
        Err(other) => panic!("failed before any attempt: {other}"),
    }
}

/// The failure of the only attempt.
#[track_caller]
fn only_failure(result: Result<Client, ConnectError>) -> ConnectFailure {
    let mut failures = failures(result);
    assert_eq!(failures.len(), 1, "{failures:?}");
    failures.remove(0)
}
