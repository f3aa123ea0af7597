//! Databases with several servers: the list of servers and how load is balanced over them.

use std::{
    num::{NonZeroU32, NonZeroU64},
    time::Duration,
};

use howdah_connect::Endpoint;
use howdah_route::RolePreference;
use serde::{Deserialize, Serialize};

use super::{DatabaseConfig, database::endpoint};

/// Maximum number of servers of a database or shard: workers keep one bit per server in a `u64`.
pub const SERVERS_MAX: usize = 64;

/// A server of a database or shard: an entry of `servers`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ServerEntry {
    /// A name, an address or the directory of a unix socket, as in `hosts`, optionally with
    /// `:port`, which overrides `port`.
    pub host: String,
    /// The server's port; the database's `port` if `None`.
    pub port: Option<u16>,
    /// The role of this server; [`ConfiguredRole::Auto`] if health checks detect it.
    #[serde(default)]
    pub role: ConfiguredRole,
    /// The server's share of the load relative to the other servers, for the strategy `weighted`.
    #[serde(default = "default_weight")]
    pub weight: NonZeroU32,
}

fn default_weight() -> NonZeroU32 {
    NonZeroU32::MIN
}

impl ServerEntry {
    /// Returns the server's endpoint.
    ///
    /// # Errors
    ///
    /// `host` cannot be parsed as a host.
    pub(super) fn endpoint(&self, port: u16) -> Result<Endpoint, String> {
        endpoint(&self.host, self.port.unwrap_or(port))
    }
}

/// A load-balancing strategy: the method of selecting one of the eligible servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// The eligible members take turns.
    #[default]
    RoundRobin,
    /// Selects a random member, with equal probability.
    Random,
    /// Selects the member with the fewest busy connections and waiting clients in the worker.
    LeastOutstanding,
    /// Members take turns in proportion to their weight.
    Weighted,
    /// Picks two members at random and uses the one expected to reply sooner under its load. A much
    /// slower member gets only occasional requests, which show whether it is still slow.
    Latency,
}

impl Strategy {
    /// Returns the strategy's keyword in configuration files and in SHOW.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RoundRobin => "round-robin",
            Self::Random => "random",
            Self::LeastOutstanding => "least-outstanding",
            Self::Weighted => "weighted",
            Self::Latency => "latency",
        }
    }
}

/// The role that the configuration assigns to a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConfiguredRole {
    /// Health checks detect the role, which may change.
    #[default]
    Auto,
    /// The server that accepts writes.
    Primary,
    /// A server that is used only for reads.
    Replica,
}

impl ConfiguredRole {
    /// Returns the role's keyword in configuration files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Primary => "primary",
            Self::Replica => "replica",
        }
    }
}

/// Settings of load balancing, health checks and failover: `[pool.databases.NAME.cluster]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct ClusterConfig {
    /// The method of selecting the server for a transaction from the eligible ones.
    pub strategy: Strategy,
    /// The role preference of clients that do not state one.
    #[serde(with = "role_preference")]
    pub role: RolePreference,
    /// Time for which a failed replica is banned.
    #[serde(with = "howdah_settings::duration")]
    pub ban: Duration,
    /// Time for which a recovered server gets a reduced, growing share of the load.
    #[serde(with = "howdah_settings::duration")]
    pub slow_start: Duration,
    /// Time for which health checks may fail before requests running on the server are aborted;
    /// `None`, written 0, means no limit.
    #[serde(with = "howdah_settings::timeout")]
    pub check_failure_timeout: Option<Duration>,
    /// Interval between two health checks of a server, unless one is needed sooner.
    #[serde(with = "howdah_settings::duration")]
    pub check_interval: Duration,
    /// Timeout of one health check, including the login.
    #[serde(with = "howdah_settings::duration")]
    pub check_timeout: Duration,
    /// The role that health checks log in as. If `None`, the database's forced user, or else users
    /// that clients have logged in as, in turn.
    pub check_user: Option<String>,
    /// Maximum replication lag of a replica that serves reads; `None`, written 0, means no limit.
    #[serde(with = "howdah_settings::timeout")]
    pub max_lag: Option<Duration>,
    /// Maximum replication lag in bytes of WAL; `None`, written 0, means no limit.
    #[serde(with = "howdah_settings::limit")]
    pub max_lag_bytes: Option<NonZeroU64>,
    /// Whether a server whose system identifier differs from the primary's is excluded: it belongs
    /// to another database cluster.
    pub require_same_system_identifier: bool,
    /// Time for which a primary that was unreachable gets no writes, unless a standby streams from
    /// it.
    #[serde(with = "howdah_settings::duration")]
    pub primary_rejoin_delay: Duration,
    /// Maximum time that a client waits while no server is eligible; with `None`, written 0, only
    /// `timeouts.query-wait` applies.
    #[serde(with = "howdah_settings::timeout")]
    pub failover_timeout: Option<Duration>,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            strategy: Strategy::default(),
            role: RolePreference::default(),
            ban: Duration::from_secs(60),
            slow_start: Duration::from_secs(10),
            check_failure_timeout: Some(Duration::from_secs(60)),
            check_interval: Duration::from_secs(1),
            check_timeout: Duration::from_secs(3),
            check_user: None,
            max_lag: None,
            max_lag_bytes: None,
            require_same_system_identifier: true,
            primary_rejoin_delay: Duration::from_secs(10),
            failover_timeout: Some(Duration::from_secs(30)),
        }
    }
}

/// Serde module for a role preference, written as its keyword.
mod role_preference {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error};

    use super::RolePreference;

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<RolePreference, D::Error> {
        let keyword = String::deserialize(from)?;
        let valid = "any, primary, replica, prefer-replica or auto";
        RolePreference::parse(&keyword).ok_or_else(|| D::Error::custom(format!("must be {valid}")))
    }

    pub(crate) fn serialize<S: Serializer>(it: &RolePreference, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(it.as_str())
    }
}

/// The servers of a database or of one of its shards, as resolved for a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterPool {
    /// The servers in configured order; at least one.
    pub servers: Vec<ClusterServer>,
    /// Name of the database on these servers; the pool's own database name if `None`.
    pub dbname: Option<String>,
    /// Load balancing, health checks and failover.
    pub settings: ClusterConfig,
}

/// A server of a [`ClusterPool`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterServer {
    /// Address of the server: host and port, or unix socket.
    pub endpoint: Endpoint,
    /// The role of this server; [`ConfiguredRole::Auto`] if health checks detect it.
    pub role: ConfiguredRole,
    /// The server's share of the load, for the strategy `weighted`.
    pub weight: NonZeroU32,
}

impl DatabaseConfig {
    /// Returns one cluster per shard, or one cluster of `servers` if the database is not sharded;
    /// an empty list if it has neither.
    ///
    /// # Errors
    ///
    /// The `host` of a server cannot be parsed.
    pub fn clusters(&self) -> Result<Vec<ClusterPool>, String> {
        let server = |entry: &ServerEntry| {
            let endpoint = entry.endpoint(self.port)?;
            Ok(ClusterServer { endpoint, role: entry.role, weight: entry.weight })
        };
        let cluster = |servers: &[ServerEntry], dbname: Option<String>| {
            let servers = servers.iter().map(server).collect::<Result<Vec<_>, String>>()?;
            Ok(ClusterPool { servers, dbname, settings: self.cluster.clone() })
        };
        let shards = self.shards.iter().map(|it| cluster(&it.servers, it.dbname.clone()));
        let own = (!self.servers.is_empty()).then(|| cluster(&self.servers, None));
        shards.chain(own).collect()
    }

    /// Returns the server list of each cluster, with the list's key below the database.
    fn server_lists(&self) -> impl Iterator<Item = (String, &[ServerEntry])> {
        let shards = self.shards.iter().enumerate();
        let shards =
            shards.map(|(at, shard)| (format!("shards[{at}].servers"), &shard.servers[..]));
        [("servers".to_owned(), &self.servers[..])].into_iter().chain(shards)
    }

    /// Returns violated rules about servers: the key below the database, and the reason.
    pub(super) fn cluster_errors(&self) -> Vec<(String, String)> {
        let mut errors = Vec::new();
        let mut rule = |is_violated: bool, key: String, why: &str| {
            if is_violated {
                errors.push((key, why.to_owned()));
            }
        };
        let both = !self.hosts.is_empty() && !self.servers.is_empty();
        rule(
            both,
            "servers".to_owned(),
            "servers and hosts exclude each other: hosts are addresses of one server",
        );
        for (key, servers) in self.server_lists() {
            let too_many = servers.len() > SERVERS_MAX;
            rule(too_many, key.clone(), "more than 64 servers");
            let is_primary = |entry: &&ServerEntry| entry.role == ConfiguredRole::Primary;
            let primaries = servers.iter().filter(is_primary).count();
            rule(
                primaries > 1,
                key.clone(),
                "only one server can be the primary; role auto detects which one it is",
            );
            rule(
                primaries == 1 && servers.iter().any(|entry| entry.role == ConfiguredRole::Auto),
                key.clone(),
                "if one server has role primary, all others must have role replica",
            );
            let mut endpoints = std::collections::BTreeSet::new();
            for (number, entry) in servers.iter().enumerate() {
                match entry.endpoint(self.port) {
                    Err(why) => rule(true, format!("{key}[{number}].host"), &why),
                    Ok(endpoint) => rule(
                        !endpoints.insert(endpoint.to_string()),
                        format!("{key}[{number}].host"),
                        "the server is listed twice",
                    ),
                }
            }
        }
        let settings = &self.cluster;
        let unused = !self.is_routed() && *settings != ClusterConfig::default();
        rule(unused, "cluster".to_owned(), "has no effect: the database has no servers or shards");
        for (key, value) in
            [("check-interval", settings.check_interval), ("check-timeout", settings.check_timeout)]
        {
            let too_short = value < Duration::from_millis(10);
            rule(too_short, format!("cluster.{key}"), "must be at least 10ms");
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Config;

    fn errors(database: &str) -> String {
        let text = format!("[pool.databases.app]\n{database}");
        match Config::read_str(&text, Path::new("h.toml")) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn servers_keep_configured_order() {
        let text = r#"
            [pool.databases.app]
            port = 5433
            servers = [{ host = "db1" }, { host = "db2:6000", role = "replica", weight = 3 }]
            [pool.databases.app.cluster]
            strategy = "least-outstanding"
            role = "replica"
            max-lag = "5s"
            max-lag-bytes = 1000
        "#;
        let config = Config::read_str(text, Path::new("h.toml")).unwrap().config;
        let cluster = config.pool("app", "me").unwrap().clusters.remove(0);
        let shown: Vec<_> = cluster
            .servers
            .iter()
            .map(|it| format!("{} {} {}", it.endpoint, it.role.as_str(), it.weight))
            .collect();
        assert_eq!(shown, ["db1:5433 auto 1", "db2:6000 replica 3"]);
        let again = Config::read_str(&config.to_toml(), Path::new("h.toml")).unwrap().config;
        assert_eq!(again, config, "{}", config.to_toml());
    }

    #[test]
    fn invalid_servers_are_reported_with_key() {
        for (text, key, why) in [
            ("hosts = ['a']\nservers = [{ host = 'b' }]", "app.servers", "exclude each other"),
            ("servers = [{ host = 'a b' }]", "app.servers[0].host", "is not a host"),
            ("servers = [{ host = 'a' }, { host = 'a' }]", "app.servers[1].host", "twice"),
            (
                "servers = [{ host = 'a', role = 'primary' }, { host = 'b', role = 'primary' }]",
                "app.servers",
                "only one",
            ),
            (
                "servers = [{ host = 'a', role = 'primary' }, { host = 'b' }]",
                "app.servers",
                "must have role replica",
            ),
            ("cluster = { strategy = 'random' }", "app.cluster", "no servers"),
            (
                "servers = [{ host = 'a' }]\ncluster = { check-interval = 0 }",
                "app.cluster.check-interval",
                "at least 10ms",
            ),
        ] {
            let errors = errors(text);
            assert!(errors.contains(key) && errors.contains(why), "{text}: {errors}");
        }
        assert!(errors("servers = [{ host = 'a', role = 'boss' }]").contains("unknown variant"));
        assert!(
            errors("servers = [{ hots = 'a' }]").contains("unknown key (did you mean `host`?)")
        );
    }
}
