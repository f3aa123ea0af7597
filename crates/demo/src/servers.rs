//! The demo's servers: the original, built once, and copies of it.

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_lab::{BinariesSearch, Builder, Cluster};

use crate::{dataset, error::DemoError};

/// The database of the dataset, and the role of its clients.
const DATABASE: &str = "shop";
const ROLE: &str = "shop";

/// Settings of every server. They disable background work that could disturb one replay and not the
/// other.
const BASE_SETTINGS: &[(&str, &str)] = &[
    ("autovacuum", "off"),
    ("checkpoint_timeout", "1h"),
    ("max_wal_size", "4GB"),
    ("shared_buffers", "64MB"),
    ("jit", "off"),
];

/// Settings that log everything a replay needs, each statement once: its text at the start, its
/// duration at the end.
const LOGGING: &[(&str, &str)] = &[
    ("logging_collector", "on"),
    ("log_destination", "csvlog"),
    ("log_statement", "all"),
    ("log_duration", "on"),
    ("log_min_duration_statement", "-1"),
    ("log_min_error_statement", "error"),
    ("log_connections", "on"),
    ("log_disconnections", "on"),
    ("log_timezone", "UTC"),
];

/// The server on which the dataset is built. All other servers are copies of it.
pub(crate) struct OriginalServer(Cluster);

/// One server with a copy of the dataset.
pub(crate) struct ServerCopy {
    pub(crate) cluster: Cluster,
    pub(crate) target: ConnectTarget,
}

impl OriginalServer {
    /// Starts a server and builds the dataset.
    pub(crate) fn build(search: BinariesSearch) -> Result<Self, DemoError> {
        let mut builder = Builder::new().search(search).name("demo-original");
        for (name, value) in BASE_SETTINGS {
            builder = builder.setting(*name, *value);
        }
        let cluster = builder.start()?;
        let mut client = Client::connect(&target(&cluster, "postgres", "postgres")?)?;
        client.query(&format!("create role {ROLE} login"))?;
        client.query(&format!("create database {DATABASE} owner {ROLE}"))?;
        drop(client);
        let mut client = Client::connect(&target(&cluster, ROLE, DATABASE)?)?;
        client.query(&dataset::schema())?;
        client.query("vacuum analyze customers, products, orders")?;
        Ok(Self(cluster))
    }

    /// The server's version for display: `PostgreSQL 17.5`.
    pub(crate) fn version(&self) -> String {
        format!("PostgreSQL {}", self.0.binaries().version())
    }

    /// Starts a copy that logs its clients' statements.
    pub(crate) fn start_production(&mut self) -> Result<ServerCopy, DemoError> {
        self.start_copy("demo-production", LOGGING)
    }

    /// Starts a copy to replay against.
    pub(crate) fn replay_target(&mut self, name: &str) -> Result<ServerCopy, DemoError> {
        self.start_copy(name, &[])
    }

    fn start_copy(
        &mut self,
        name: &str,
        settings: &[(&str, &str)],
    ) -> Result<ServerCopy, DemoError> {
        self.0.stop()?;
        let mut builder = Builder::new().name(name);
        for (name, value) in settings {
            builder = builder.setting(*name, *value);
        }
        let cluster = self.0.clone_stopped(builder)?;
        let target = target(&cluster, ROLE, DATABASE)?;
        // Warms all caches equally, so that no replay measures disk reads.
        Client::connect(&target)?.query(dataset::WARM_UP)?;
        Ok(ServerCopy { cluster, target })
    }
}

impl ServerCopy {
    /// Runs one statement.
    pub(crate) fn run(&self, sql: &str) -> Result<(), DemoError> {
        Client::connect(&self.target)?.query(sql)?;
        Ok(())
    }
}

fn target(cluster: &Cluster, user: &str, database: &str) -> Result<ConnectTarget, DemoError> {
    let words = ConnParams { conninfo: Some(cluster.uri(database)), ..ConnParams::default() };
    // The process environment is ignored, because `PGHOST` and similar variables refer to other
    // servers.
    let target = ConnectTarget::resolve(&words, &Environment::empty())?;
    Ok(target.with_user(user))
}
