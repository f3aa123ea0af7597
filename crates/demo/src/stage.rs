//! The servers: one shop, built once, and copies of it.

use howdah_connect::{Client, Environment, Target, Words};
use howdah_lab::{Builder, Cluster, Search};

use crate::{Error, shop};

/// Where the shop's data is, and as whom its clients log in.
const DATABASE: &str = "shop";
const ROLE: &str = "shop";

/// Settings of every server. Nothing may run by itself that would disturb one replay and not the
/// other.
const QUIET: &[(&str, &str)] = &[
    ("autovacuum", "off"),
    ("checkpoint_timeout", "1h"),
    ("max_wal_size", "4GB"),
    ("shared_buffers", "64MB"),
    ("jit", "off"),
];

/// Settings that put everything a replay needs into the log, each statement once: its text when it
/// begins, its duration when it ends.
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

/// The shop as it was built. All others are copies of it.
pub(crate) struct Original(Cluster);

/// One server with a copy of the shop.
pub(crate) struct Copy {
    pub(crate) cluster: Cluster,
    pub(crate) target: Target,
}

impl Original {
    /// Builds the shop.
    pub(crate) fn build(search: Search) -> Result<Self, Error> {
        let mut builder = Builder::new().search(search).name("demo-original");
        for (name, value) in QUIET {
            builder = builder.setting(*name, *value);
        }
        let cluster = builder.start()?;
        let mut client = Client::connect(&target(&cluster, "postgres", "postgres")?)?;
        client.query(&format!("create role {ROLE} login"))?;
        client.query(&format!("create database {DATABASE} owner {ROLE}"))?;
        drop(client);
        let mut client = Client::connect(&target(&cluster, ROLE, DATABASE)?)?;
        client.query(&shop::schema())?;
        client.query("vacuum analyze customers, products, orders")?;
        Ok(Self(cluster))
    }

    /// What it runs, for people: `PostgreSQL 17.5`.
    pub(crate) fn version(&self) -> String {
        format!("PostgreSQL {}", self.0.binaries().version())
    }

    /// A copy that logs what its clients do.
    pub(crate) fn production(&mut self) -> Result<Copy, Error> {
        self.copy("demo-production", LOGGING)
    }

    /// A copy to replay against.
    pub(crate) fn stand_in(&mut self, name: &str) -> Result<Copy, Error> {
        self.copy(name, &[])
    }

    fn copy(&mut self, name: &str, settings: &[(&str, &str)]) -> Result<Copy, Error> {
        self.0.stop()?;
        let mut builder = Builder::new().name(name);
        for (name, value) in settings {
            builder = builder.setting(*name, *value);
        }
        let cluster = self.0.clone_stopped(builder)?;
        let target = target(&cluster, ROLE, DATABASE)?;
        // Equal caches: nobody is to measure whose pages were read from disk.
        Client::connect(&target)?.query(shop::WARM_UP)?;
        Ok(Copy { cluster, target })
    }
}

impl Copy {
    /// Runs one statement.
    pub(crate) fn run(&self, sql: &str) -> Result<(), Error> {
        Client::connect(&self.target)?.query(sql)?;
        Ok(())
    }
}

fn target(cluster: &Cluster, user: &str, database: &str) -> Result<Target, Error> {
    let words = Words { conninfo: Some(cluster.uri(database)), ..Words::default() };
    // The demo's servers are its own: PGHOST and the like are about others.
    let target = Target::resolve(&words, &Environment::empty())?;
    Ok(target.with_user(user))
}
