//! Servers, and sessions on them.

use howdah_connect::{Client, Environment, Target, Words};
use howdah_lab::{Builder, Cluster, or_say_why_not};

pub(crate) fn start(test: &str, how: Builder) -> Option<Cluster> {
    or_say_why_not(test, how.start())
}

/// A superuser's connection words for a database.
pub(crate) fn target(cluster: &Cluster, database: &str) -> Target {
    Target::resolve(&Words::from_conninfo(cluster.uri(database)), &Environment::empty()).unwrap()
}

pub(crate) fn session(target: &Target) -> Client {
    Client::connect(target).unwrap()
}
