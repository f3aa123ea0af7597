//! The demo's servers: production, and copies of its data.

use std::sync::atomic::AtomicBool;

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_lab::{BinariesSearch, Builder, Cluster};

use crate::{dataset, error::DemoError, steps::check_interrupted};

/// The database of the dataset, and the role of its clients.
pub(crate) const DATABASE: &str = "shop";
pub(crate) const ROLE: &str = "shop";

/// The superuser, as whom the rehearsal prepares and checks the copies.
const SUPERUSER: &str = "postgres";

/// Settings of every server. They disable background work that could disturb one replay and not
/// another, and give the planted query the same plan on every machine.
const SETTINGS: &[(&str, &str)] = &[
    ("autovacuum", "off"),
    ("checkpoint_timeout", "1h"),
    ("max_wal_size", "4GB"),
    ("shared_buffers", "128MB"),
    ("max_parallel_workers_per_gather", "0"),
    ("jit", "off"),
];

/// A server with the dataset. It listens only on its unix socket.
#[derive(Debug)]
pub(crate) struct ShopServer(Cluster);

impl ShopServer {
    /// Starts a server and builds the dataset.
    pub(crate) fn build(
        name: &str,
        search: BinariesSearch,
        stop: &AtomicBool,
    ) -> Result<Self, DemoError> {
        let mut builder = Builder::new().search(search).name(name);
        for (name, value) in SETTINGS {
            builder = builder.setting(*name, *value);
        }
        let server = Self(builder.start()?);
        let mut client = Client::connect(&server.admin()?.with_database("postgres"))?;
        client.query(&format!("create role {ROLE} login"))?;
        client.query(&format!("create database {DATABASE} owner {ROLE}"))?;
        drop(client);
        let mut client = Client::connect(&server.admin()?.with_user(ROLE))?;
        for statements in dataset::schema() {
            check_interrupted(stop)?;
            client.query(&statements)?;
        }
        Ok(server)
    }

    /// Starts a server with a copy of the data. This server is stopped while its data is copied,
    /// and then started again.
    pub(crate) fn copy(&mut self, name: &str) -> Result<Self, DemoError> {
        Ok(Self(self.0.clone_stopped(Builder::new().name(name))?))
    }

    /// Returns the server's version for display: `PostgreSQL 17.5`.
    pub(crate) fn version(&self) -> String {
        format!("PostgreSQL {}", self.0.binaries().version())
    }

    /// Returns the cluster that the server runs on.
    pub(crate) fn cluster(&self) -> &Cluster {
        &self.0
    }

    /// Returns a target that connects to the dataset's database as the superuser.
    pub(crate) fn admin(&self) -> Result<ConnectTarget, DemoError> {
        let conninfo = self.0.socket_uri(DATABASE);
        resolve(&ConnParams::from_conninfo(conninfo)).map(|target| target.with_user(SUPERUSER))
    }

    /// Runs statements as the superuser.
    pub(crate) fn run(&self, sql: &str) -> Result<(), DemoError> {
        Client::connect(&self.admin()?)?.query(sql)?;
        Ok(())
    }
}

/// Resolves an address. The process environment is ignored, because `PGHOST` and similar variables
/// refer to other servers.
pub(crate) fn resolve(params: &ConnParams) -> Result<ConnectTarget, DemoError> {
    Ok(ConnectTarget::resolve(params, &Environment::empty())?)
}
