//! Connections to real servers, and to servers that only pretend.
//!
//! Those that need PostgreSQL share one throw-away cluster; where there is none they say so and
//! pass. Those that need certificates make them with the `openssl` program.

#![allow(clippy::panic, clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod certificates;
mod cluster;
mod handshake;
mod hosts;
mod login;
mod pretenders;
mod query;

use howdah_connect::{Client, ConnectError, ConnectFailure, Environment, Target, Words};

/// Resolves a connection string in an environment of its own.
fn target(conninfo: &str) -> Target {
    let environment = Environment::empty().with_os_user("nobody");
    Target::resolve(&Words::from_conninfo(conninfo), &environment).unwrap()
}

fn connect(conninfo: &str) -> Result<Client, ConnectError> {
    Client::connect(&target(conninfo))
}

/// What each attempt met with.
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

/// What the only attempt met with.
#[track_caller]
fn failure(result: Result<Client, ConnectError>) -> ConnectFailure {
    let mut failures = failures(result);
    assert_eq!(failures.len(), 1, "{failures:?}");
    failures.remove(0)
}
