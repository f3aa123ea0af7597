//! Finds the standbys of a primary: from `pg_stat_replication` of the followed servers, and from
//! the list of servers of poolers.
//!
//! `pg_stat_replication` shows where a standby connects from, not the port that it listens on. So
//! the port is that of the server that was queried, or a configured one, or a template describes
//! the whole connection string.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use howdah_connect::{Client, ConnParams, ConnectTarget, Endpoint, Environment};

use crate::{
    daemon::{
        error_chain::error_chain,
        server_access::{RESPONSE_TIMEOUT, pooler_endpoint},
    },
    dump::QueryFailure,
    metrics::server_label,
};

/// How [`follow`](super::follow) finds standbys in addition to the configured servers.
#[derive(Clone, Debug)]
pub struct DiscoverySettings {
    /// Whether to query `pg_stat_replication` of the servers. The role needs `pg_monitor`.
    pub from_replication: bool,
    /// Port of the standbys found there; by default that of the queried server.
    pub port: Option<u16>,
    /// Connection string of the standbys found there; by default that of the queried server with
    /// another host and port.
    pub uri: Option<DiscoveryTemplate>,
    /// Admin consoles whose `SHOW DATABASES` lists servers: those of `howdah pool` or PgBouncer.
    pub poolers: Vec<ConnectTarget>,
    /// Time after which a discovered server is dropped if it is neither listed nor reachable.
    pub timeout: Duration,
}

impl Default for DiscoverySettings {
    fn default() -> Self {
        Self {
            from_replication: false,
            port: None,
            uri: None,
            poolers: Vec::new(),
            timeout: Duration::from_secs(600),
        }
    }
}

impl DiscoverySettings {
    /// Whether any source of servers is configured.
    pub fn is_enabled(&self) -> bool {
        self.from_replication || !self.poolers.is_empty()
    }
}

/// A connection string with `{host}` for a standby's host name or address, and `{name}` for its
/// `application_name`, which many tools set to the name of the host or pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryTemplate(String);

/// The reason why a template is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection string contains neither {{host}} nor {{name}}")]
pub struct TemplateError;

impl DiscoveryTemplate {
    /// Creates a template.
    ///
    /// # Errors
    ///
    /// The text contains neither `{host}` nor `{name}`, so that all standbys would be the same.
    pub fn new(text: &str) -> Result<Self, TemplateError> {
        let is_valid = text.contains("{host}") || text.contains("{name}");
        if is_valid { Ok(Self(text.to_owned())) } else { Err(TemplateError) }
    }

    /// Returns the connection string of a standby; `None` if a value is missing or contains other
    /// characters than those of host names and addresses: an `application_name` may be anything.
    fn fill(&self, standby: &ReplicationClient) -> Option<String> {
        let is_valid = |text: &&String| {
            let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:".contains(&byte);
            !text.is_empty() && text.len() <= 255 && text.bytes().all(is_valid)
        };
        let mut text = self.0.clone();
        for (key, value) in [("{host}", &standby.host), ("{name}", &standby.name)] {
            if text.contains(key) {
                let value = value.as_ref().filter(is_valid)?;
                // An IPv6 address in a URI is in brackets.
                let is_in_uri = value.contains(':') && text.contains("://");
                let value = if is_in_uri { format!("[{value}]") } else { value.clone() };
                text = text.replace(key, &value);
            }
        }
        Some(text)
    }
}

/// A standby in `pg_stat_replication`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ReplicationClient {
    /// Host name or address; `None` over a unix socket.
    host: Option<String>,
    /// `application_name`.
    name: Option<String>,
}

/// A server found by discovery, which may be one of those already followed.
pub(super) struct DiscoveredServer {
    pub(super) name: String,
    pub(super) target: ConnectTarget,
    /// Where it was found, for the log.
    pub(super) origin: String,
}

/// Maximum number of servers that discovery adds.
pub(super) const DISCOVERED_MAX: usize = 64;

/// Standbys, but neither base backups nor receivers of WAL or of logical changes. Without
/// `pg_monitor`, only the process ids of other roles' connections are visible.
const REPLICATION_CLIENTS: &str = "
    SELECT COALESCE(r.client_hostname, host(r.client_addr)), r.application_name, r.state IS NULL
    FROM pg_stat_replication r
    WHERE r.state IS DISTINCT FROM 'backup'
    AND COALESCE(r.application_name NOT IN ('pg_basebackup', 'pg_receivewal', 'pg_recvlogical'), true)
    AND NOT EXISTS (SELECT FROM pg_replication_slots s
                    WHERE s.active_pid = r.pid AND s.slot_type = 'logical')";

/// Queries the standbys that stream from the server of `client`. Returns `None` if the role may not
/// see them.
pub(super) fn query_replication_clients(
    client: &mut Client,
) -> Result<Option<Vec<ReplicationClient>>, QueryFailure> {
    let results = client.query(REPLICATION_CLIENTS)?;
    let mut clients = Vec::new();
    for row in results.iter().flat_map(|result| &result.rows).take(DISCOVERED_MAX) {
        if row.text(2).as_deref() == Some("t") {
            return Ok(None);
        }
        let text = |column| row.text(column).map(std::borrow::Cow::into_owned);
        clients.push(ReplicationClient { host: text(0), name: text(1) });
    }
    Ok(Some(clients))
}

/// Collects candidates, and logs each problem once.
#[derive(Debug, Default)]
pub(super) struct StandbyFinder {
    problems: BTreeMap<String, String>,
}

impl StandbyFinder {
    /// Returns the standbys that were listed by the server at `target`.
    pub(super) fn replication_candidates(
        &mut self,
        settings: &DiscoverySettings,
        target: &ConnectTarget,
        clients: &[ReplicationClient],
    ) -> Vec<DiscoveredServer> {
        let server = server_label(target);
        let mut candidates = Vec::new();
        for client in clients {
            let found = match &settings.uri {
                None => Some(sibling(settings, target, client)),
                Some(template) => match template.fill(client).map(|text| resolve(&text)) {
                    Some(Ok(target)) => Some(target),
                    Some(Err(problem)) => {
                        self.log_problem(&server, &problem);
                        None
                    }
                    None => {
                        self.log_problem(&server, "a standby has no usable host or name");
                        None
                    }
                },
            };
            candidates.extend(found.map(|target| DiscoveredServer {
                name: server_label(&target),
                target,
                origin: format!("pg_stat_replication of {server}"),
            }));
        }
        candidates
    }

    /// Returns the servers that the poolers list. `base` is the connection string used for them,
    /// apart from host and port.
    pub(super) fn pooler_candidates(
        &mut self,
        settings: &DiscoverySettings,
        base: &ConnectTarget,
    ) -> Vec<DiscoveredServer> {
        let mut candidates = Vec::new();
        for pooler in &settings.poolers {
            let label = server_label(pooler);
            match query_pooler(pooler) {
                Ok(endpoints) => {
                    self.problems.remove(&label);
                    candidates.extend(endpoints.iter().map(|endpoint| {
                        let target = base.with_endpoint(endpoint);
                        let origin = format!("pooler {label}");
                        DiscoveredServer { name: server_label(&target), target, origin }
                    }));
                }
                Err(failure) => self.log_problem(&label, &error_chain(&failure)),
            }
        }
        candidates
    }

    /// Logs a problem with a server, unless it is the last one logged for that server.
    pub(super) fn log_problem(&mut self, server: &str, problem: &str) {
        if self.problems.get(server).is_some_and(|last| last == problem) {
            return;
        }
        // Candidates come and go: the list of those ever seen must not grow without limit.
        if self.problems.len() >= 10 * DISCOVERED_MAX {
            self.problems.clear();
        }
        self.problems.insert(server.to_owned(), problem.to_owned());
        tracing::warn!(server, problem, "discovery of servers");
    }

    pub(super) fn clear_problem(&mut self, server: &str) {
        self.problems.remove(server);
    }
}

/// Returns the target of a standby by the rule for connection strings without a template.
fn sibling(
    settings: &DiscoverySettings,
    target: &ConnectTarget,
    client: &ReplicationClient,
) -> ConnectTarget {
    let queried = target.endpoints().first();
    let port = settings.port.or(queried.map(Endpoint::port)).unwrap_or(5432);
    let endpoint = match (&client.host, queried) {
        (Some(host), _) => Endpoint::Tcp { host: host.clone(), hostaddr: None, port },
        // The standby is on the same host.
        (None, Some(Endpoint::Tcp { host, hostaddr, .. })) => {
            Endpoint::Tcp { host: host.clone(), hostaddr: *hostaddr, port }
        }
        (None, Some(unix @ Endpoint::Unix { .. })) => Endpoint::in_directory(&*unix.host(), port),
        (None, None) => Endpoint::Tcp { host: "localhost".to_owned(), hostaddr: None, port },
    };
    target.with_endpoint(&endpoint)
}

fn resolve(conninfo: &str) -> Result<ConnectTarget, String> {
    let params = ConnParams::from_conninfo(conninfo);
    ConnectTarget::resolve(&params, &Environment::from_process())
        .map_err(|error| error_chain(&error))
}

/// Returns the servers that an admin console lists.
fn query_pooler(pooler: &ConnectTarget) -> Result<Vec<Endpoint>, QueryFailure> {
    let timeout = pooler.connect_timeout().unwrap_or(RESPONSE_TIMEOUT);
    let mut client = Client::connect(&pooler.with_connect_timeout(Some(timeout)))?;
    client.set_timeout(Some(RESPONSE_TIMEOUT));
    let results = client.query("SHOW DATABASES")?;
    let result = results.first();
    let column = |name: &'static str| {
        let found = result.and_then(|result| result.column(name));
        found.ok_or(QueryFailure::UnexpectedResult { what: name, found: String::new() })
    };
    let (host, port) = (column("host")?, column("port")?);
    let mut seen = BTreeSet::new();
    let mut endpoints = Vec::new();
    for row in result.into_iter().flat_map(|result| &result.rows) {
        // The console itself has no host, nor has a server at the default socket.
        let Some(hosts) = row.text(host).filter(|hosts| !hosts.is_empty()) else { continue };
        let port = row.text(port).and_then(|port| port.parse().ok()).unwrap_or(5432);
        for host in hosts.split(',') {
            let endpoint = pooler_endpoint(host.trim(), port);
            if endpoints.len() < DISCOVERED_MAX && seen.insert(endpoint.to_string()) {
                endpoints.push(endpoint);
            }
        }
    }
    Ok(endpoints)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(host: Option<&str>, name: &str) -> ReplicationClient {
        ReplicationClient { host: host.map(str::to_owned), name: Some(name.to_owned()) }
    }

    fn target(conninfo: &str) -> ConnectTarget {
        ConnectTarget::resolve(&ConnParams::from_conninfo(conninfo), &Environment::empty()).unwrap()
    }

    #[test]
    fn template_values_are_restricted_to_host_characters() {
        let template = DiscoveryTemplate::new("postgresql://w@{host}:5433/shop?x={name}").unwrap();
        let fill = |host, name| template.fill(&client(host, name));
        let expected = "postgresql://w@10.0.0.2:5433/shop?x=db-2";
        assert_eq!(fill(Some("10.0.0.2"), "db-2").as_deref(), Some(expected));
        let expected = "postgresql://w@[fd00::2]:5433/shop?x=db-2";
        assert_eq!(fill(Some("fd00::2"), "db-2").as_deref(), Some(expected));
        assert_eq!(fill(None, "db-2"), None);
        for name in ["evil@host", "a/b", "a&sslmode=disable", "", "a b", "ä"] {
            assert_eq!(fill(Some("db2"), name), None, "{name}");
        }
        assert_eq!(DiscoveryTemplate::new("postgresql://db2/shop"), Err(TemplateError));
    }

    #[test]
    fn port_and_host_default_to_those_of_the_queried_server() {
        let label = |settings: &DiscoverySettings, primary: &str, host| {
            server_label(&sibling(settings, &target(primary), &client(host, "db2")))
        };
        let settings = DiscoverySettings::default();
        let primary = "host=db1 port=5433 user=w dbname=shop";
        assert_eq!(label(&settings, primary, Some("10.0.0.2")), "10.0.0.2:5433");
        assert_eq!(label(&settings, primary, None), "db1:5433");
        let settings = DiscoverySettings { port: Some(5444), ..settings };
        assert_eq!(label(&settings, primary, None), "db1:5444");
        assert_eq!(label(&settings, "host=/run/pg user=w dbname=shop", None), "/run/pg:5444");
    }
}
