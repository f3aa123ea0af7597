//! Several servers behind one database: which they are, and how clients are spread over them.

use std::{
    num::{NonZeroU32, NonZeroU64},
    time::Duration,
};

use howdah_connect::Endpoint;
use howdah_route::RolePreference;
use serde::{Deserialize, Serialize};

use super::{Database, database::endpoint, durations, toml};
use crate::cluster::Strategy;

/// Most servers of one database, or of one shard: a worker has a bit for each.
pub const SERVERS_MAX: usize = 64;

/// One server of several: an entry of `servers`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ServerEntry {
    /// As in `hosts`: a name, an address or the directory of a unix socket, with `:port` where it
    /// differs from `port`.
    pub host: String,
    /// The port; the database's if none is given.
    pub port: Option<u16>,
    /// What it is.
    #[serde(default)]
    pub role: ConfiguredRole,
    /// Its part of the transactions that any of several could take, for the strategy `weighted`.
    #[serde(default = "one")]
    pub weight: NonZeroU32,
}

fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}

impl ServerEntry {
    /// Where it is.
    ///
    /// # Errors
    ///
    /// A text that names no place.
    pub(super) fn endpoint(&self, port: u16) -> Result<Endpoint, String> {
        endpoint(&self.host, self.port.unwrap_or(port))
    }
}

/// What a server is said to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConfiguredRole {
    /// Whatever it turns out to be, which may change.
    #[default]
    Auto,
    /// The one that takes writes.
    Primary,
    /// One that takes reads.
    Replica,
}

impl ConfiguredRole {
    /// The word that stands for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Primary => "primary",
            Self::Replica => "replica",
        }
    }
}

/// How clients are spread over several servers: `[pool.databases.NAME.cluster]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct ClusterSettings {
    /// Which of those that would do gets the next transaction.
    pub strategy: Strategy,
    /// Which servers a client gets that does not say.
    #[serde(with = "toml::role_wish")]
    pub role: RolePreference,
    /// How long a replica that failed is left alone.
    #[serde(with = "durations::whole")]
    pub ban: Duration,
    /// How long one that is back gets less than its part.
    #[serde(with = "durations::whole")]
    pub slow_start: Duration,
    /// For how long a server may answer no check before what runs there is given up; `None`, written 0, is for
    /// ever.
    #[serde(with = "durations::optional")]
    pub check_failure_timeout: Option<Duration>,
    /// Between two checks of a server.
    #[serde(with = "durations::whole")]
    pub check_interval: Duration,
    /// How long a check may take, its login included.
    #[serde(with = "durations::whole")]
    pub check_timeout: Duration,
    /// Who checks; the database's user, or else one of those who use the database, if none is given.
    pub check_user: Option<String>,
    /// A replica that is further behind gets no reads.
    #[serde(with = "durations::optional")]
    pub max_lag: Option<Duration>,
    /// The same in bytes of WAL; `None`, written 0, is without limit.
    #[serde(with = "toml::limit_bytes")]
    pub max_lag_bytes: Option<NonZeroU64>,
    /// Whether a server whose system identifier is another than the primary's gets nobody: it holds
    /// somebody else's data.
    pub require_same_system_identifier: bool,
    /// For how long a primary that was away is not written to, unless a standby streams from it.
    #[serde(with = "durations::whole")]
    pub primary_rejoin_delay: Duration,
    /// How long a client waits while no server would do.
    #[serde(with = "durations::optional")]
    pub failover_timeout: Option<Duration>,
}

impl Default for ClusterSettings {
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

/// Several servers behind one database, or of one of its shards, as a pool has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterPool {
    /// Each, in the order given; at least one.
    pub servers: Vec<ClusterServer>,
    /// What they call the database, if that is not what they do elsewhere.
    pub dbname: Option<String>,
    /// How clients are spread over them.
    pub settings: ClusterSettings,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterServer {
    /// Where it is.
    pub endpoint: Endpoint,
    /// What it is said to be.
    pub role: ConfiguredRole,
    /// Its part.
    pub weight: NonZeroU32,
}

impl Database {
    /// The servers of each shard; of a database that is not sharded, `servers`. None if it has neither.
    ///
    /// # Errors
    ///
    /// A text that names no place.
    pub(crate) fn clusters(&self) -> Result<Vec<ClusterPool>, String> {
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

    /// The lists of servers that each are of one cluster, by their keys.
    fn server_lists(&self) -> impl Iterator<Item = (String, &[ServerEntry])> {
        let shards = self.shards.iter().enumerate();
        let shards =
            shards.map(|(at, shard)| (format!("shards[{at}].servers"), &shard.servers[..]));
        [("servers".to_owned(), &self.servers[..])].into_iter().chain(shards)
    }

    /// What cannot be of several servers: key below the database, and reason.
    pub(super) fn wrong_cluster(&self) -> Vec<(String, String)> {
        let mut wrong = Vec::new();
        let mut rule = |is_wrong: bool, key: String, why: &str| {
            if is_wrong {
                wrong.push((key, why.to_owned()));
            }
        };
        let both = !self.hosts.is_empty() && !self.servers.is_empty();
        rule(
            both,
            "servers".to_owned(),
            "servers and hosts exclude each other: hosts are places of one server",
        );
        for (key, servers) in self.server_lists() {
            let many = servers.len() > SERVERS_MAX;
            rule(many, key.clone(), "more than 64 servers");
            let is_primary = |entry: &&ServerEntry| entry.role == ConfiguredRole::Primary;
            let primaries = servers.iter().filter(is_primary).count();
            rule(
                primaries > 1,
                key.clone(),
                "only one server can be the primary; auto finds out which it is",
            );
            rule(
                primaries == 1 && servers.iter().any(|entry| entry.role == ConfiguredRole::Auto),
                key.clone(),
                "where one is said to be the primary, the others have to be replicas",
            );
            let mut places = std::collections::BTreeSet::new();
            for (number, entry) in servers.iter().enumerate() {
                match entry.endpoint(self.port) {
                    Err(why) => rule(true, format!("{key}[{number}].host"), &why),
                    Ok(endpoint) => rule(
                        !places.insert(endpoint.to_string()),
                        format!("{key}[{number}].host"),
                        "the same server is there twice",
                    ),
                }
            }
        }
        let settings = &self.cluster;
        let unused = !self.is_routed() && *settings != ClusterSettings::default();
        rule(unused, "cluster".to_owned(), "there are no servers to which it could apply");
        for (key, value) in
            [("check-interval", settings.check_interval), ("check-timeout", settings.check_timeout)]
        {
            let short = value < Duration::from_millis(10);
            rule(short, format!("cluster.{key}"), "must be at least 10ms");
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Config;

    fn wrong(database: &str) -> String {
        let text = format!("[pool.databases.app]\n{database}");
        match Config::read_str(&text, Path::new("h.toml")) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn servers_are_read_in_their_order() {
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
    fn what_cannot_be_names_its_key() {
        for (text, key, why) in [
            ("hosts = ['a']\nservers = [{ host = 'b' }]", "app.servers", "exclude each other"),
            ("servers = [{ host = 'a b' }]", "app.servers[0].host", "is no host"),
            ("servers = [{ host = 'a' }, { host = 'a' }]", "app.servers[1].host", "twice"),
            (
                "servers = [{ host = 'a', role = 'primary' }, { host = 'b', role = 'primary' }]",
                "app.servers",
                "only one",
            ),
            (
                "servers = [{ host = 'a', role = 'primary' }, { host = 'b' }]",
                "app.servers",
                "have to be replicas",
            ),
            ("cluster = { strategy = 'random' }", "app.cluster", "no servers"),
            (
                "servers = [{ host = 'a' }]\ncluster = { check-interval = 0 }",
                "app.cluster.check-interval",
                "at least 10ms",
            ),
        ] {
            let said = wrong(text);
            assert!(said.contains(key) && said.contains(why), "{text}: {said}");
        }
        assert!(wrong("servers = [{ host = 'a', role = 'boss' }]").contains("unknown variant"));
        assert!(wrong("servers = [{ hots = 'a' }]").contains("no such key (did you mean `host`?)"));
    }
}
