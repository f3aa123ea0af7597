//! Refuses targets that may be in production: a replay executes captured statements.
//!
//! A target is refused if it seems to be the captured server, or if other clients are active on it.
//! The user can allow it by repeating the name of its database. [`check_target`] decides;
//! [`TargetFacts::query`] asks the target.

use std::{fmt, net::IpAddr};

use howdah_collect::PhysicalIdentity;
use howdah_connect::{Client, QueryError};
use howdah_dataset::CapturedServer;

/// The facts of a target by which it is recognized as being in production.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetFacts {
    /// The database of the connection.
    pub database: String,
    /// The facts that distinguish the server from its physical copies.
    pub identity: PhysicalIdentity,
    /// The address of the connection: `host:port`, or the path of a unix socket.
    pub address: String,
    /// The other clients that are active on the server, in any database.
    pub clients: ActiveClients,
}

/// The other clients that were active on a server within the last minute, in any database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActiveClients {
    /// Number of sessions of these clients.
    pub sessions: u64,
    /// Number of these sessions whose state the role may not see. They may be idle.
    pub hidden: u64,
    /// The clients with the most sessions, each as application, role and database; `…` if there
    /// are more.
    pub names: Vec<String>,
}

/// Maximum number of clients that an error names.
const NAMES_MAX: usize = 3;

/// Counts other sessions that are not idle, or became idle within the last minute, by client. A
/// role without `pg_read_all_stats` cannot see the state of other roles' sessions; these count too.
///
/// These do not count: Howdah's own control connections, by their `application_name`; sessions that
/// are not clients, such as workers, parallel workers and walsenders; the service roles of managed
/// servers, which are always connected. To a role that may not see `backend_type`, background
/// processes differ from clients by having no role.
const ACTIVE_CLIENTS_SQL: &str = "\
    select coalesce(nullif(application_name, ''), 'a client without application_name'),
           coalesce(usename::text, ''), coalesce(datname::text, ''),
           pg_catalog.count(*), pg_catalog.count(*) filter (where state is null)
    from pg_catalog.pg_stat_activity
    where datid is not null and usesysid is not null and pid <> pg_catalog.pg_backend_pid()
      and coalesce(backend_type, 'client backend') = 'client backend'
      and coalesce(application_name, '') !~ '^howdah($|[ -])'
      and coalesce(usename::text, '') not in ('rdsadmin', 'cloudsqladmin', 'cloudsqlagent',
                                              'alloydbadmin', 'azuresu')
      and (state is null or state <> 'idle'
           or state_change > pg_catalog.now() - interval '1 minute')
    group by 1, 2, 3 order by 4 desc, 1, 2, 3";

impl ActiveClients {
    /// Queries the other clients that are active on a server.
    ///
    /// # Errors
    ///
    /// The server refused the query, which needs no privilege, or the connection is lost.
    pub fn query(client: &mut Client) -> Result<Self, QueryError> {
        let mut clients = Self::default();
        for row in client.query(ACTIVE_CLIENTS_SQL)?.iter().flat_map(|result| &result.rows) {
            let text = |at: usize| {
                let text = row.text(at).unwrap_or_default();
                text.replace(char::is_control, "?")
            };
            let number = |at: usize| text(at).parse::<u64>().unwrap_or(0);
            clients.sessions += number(3);
            clients.hidden += number(4);
            match clients.names.len() {
                ..NAMES_MAX => {
                    let (application, role, database) = (text(0), text(1), text(2));
                    clients.names.push(format!("{application} (role {role}, database {database})"));
                }
                NAMES_MAX => clients.names.push("…".to_owned()),
                _ => {}
            }
        }
        Ok(clients)
    }
}

impl TargetFacts {
    /// Queries the server at the other end of a connection.
    ///
    /// # Errors
    ///
    /// The server refused a query that needs no privilege, or the connection is lost.
    pub fn query(client: &mut Client) -> Result<Self, QueryError> {
        Ok(Self {
            database: client.one_value("select pg_catalog.current_database()")?.unwrap_or_default(),
            identity: PhysicalIdentity::query(client)?,
            address: client.endpoint().to_string(),
            clients: ActiveClients::query(client)?,
        })
    }
}

/// The reason why a server is refused: it may be in production.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GuardError {
    /// The server seems to be the one that was captured.
    #[error("the {server} is the one that was captured: {evidence}")]
    CapturedServer {
        /// The refused server, such as `target`.
        server: &'static str,
        /// The evidence that the server is the captured one.
        evidence: CapturedEvidence,
        /// The database that the user must name to allow the server anyway.
        database: String,
        /// The name that the user gave instead, if any.
        given: Option<String>,
    },
    /// Other clients are active on the server.
    #[error(
        "{} active on the {server} within the last minute: {}",
        counted(clients.sessions),
        clients.names.join(", ")
    )]
    ActiveClients {
        /// The refused server, such as `target`.
        server: &'static str,
        /// The other clients that are active on the server.
        clients: ActiveClients,
        /// The database that the user must name to allow the server anyway.
        database: String,
        /// The name that the user gave instead, if any.
        given: Option<String>,
    },
}

fn counted(sessions: u64) -> String {
    match sessions {
        1 => "1 other client was".to_owned(),
        sessions => format!("{sessions} other clients were"),
    }
}

/// The evidence by which a server was recognized as the captured one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CapturedEvidence {
    /// Its postmaster started at the captured time, so it has not been restarted since.
    PostmasterStart,
    /// It has the captured system identifier, and neither its timeline nor its address is known to
    /// differ.
    SystemIdentifier(String),
    /// It has the captured address, and its system identifier or the captured one is not known.
    Address(String),
}

impl fmt::Display for CapturedEvidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PostmasterStart => f.write_str("its postmaster started at the same microsecond"),
            Self::SystemIdentifier(identifier) => write!(
                f,
                "its system identifier is {identifier}, and it has the same timeline and address, \
                 as far as they are known"
            ),
            Self::Address(address) => write!(
                f,
                "its address is {address}, and its system identifier could not be compared"
            ),
        }
    }
}

impl GuardError {
    /// Returns advice for the user.
    pub fn hint(&self) -> String {
        let (Self::CapturedServer { database, given, .. }
        | Self::ActiveClients { database, given, .. }) = self;
        let mut hint = format!(
            "captured statements are executed: name a copy, or add --allow-production {database} \
             if a replay may use this server"
        );
        if let Some(given) = given {
            hint = format!("--allow-production names {given}, not {database}; {hint}");
        }
        match self {
            Self::ActiveClients { clients, .. } if clients.hidden > 0 => format!(
                "{hint}; this role cannot see the state of some sessions ({}), which may be idle: \
                 GRANT pg_read_all_stats shows it",
                clients.hidden
            ),
            _ => hint,
        }
    }
}

/// Checks that a server is not in production. Errors name it `server`, such as `target` or `base
/// server`.
///
/// # Errors
///
/// The server may be in production, and `allowed` is not the name of its database.
pub fn check_target(
    server: &'static str,
    facts: &TargetFacts,
    captured: Option<&CapturedServer>,
    allowed: Option<&str>,
) -> Result<(), GuardError> {
    if allowed == Some(facts.database.as_str()) {
        return Ok(());
    }
    let (database, given) = (facts.database.clone(), allowed.map(str::to_owned));
    if let Some(evidence) = captured.and_then(|captured| evidence(facts, captured)) {
        return Err(GuardError::CapturedServer { server, evidence, database, given });
    }
    match facts.clients.sessions {
        0 => Ok(()),
        _ => {
            let clients = facts.clients.clone();
            Err(GuardError::ActiveClients { server, clients, database, given })
        }
    }
}

/// Returns the evidence that a server is the captured one, if there is any.
///
/// A server with the captured system identifier may be a physical copy. It counts as the captured
/// server unless its timeline or its address differs: a copy has a new timeline after promotion, or
/// another address if restored elsewhere. The captured server can have another address, too: it may
/// be reached by another name, or through a pooler. Until it is restarted, the time at which its
/// postmaster started shows that.
fn evidence(facts: &TargetFacts, captured: &CapturedServer) -> Option<CapturedEvidence> {
    let TargetFacts { identity, address, .. } = facts;
    let identifiers = (identity.system_identifier.as_ref(), captured.system_identifier.as_ref());
    if are_different(identifiers) {
        return None;
    }
    let started = captured.postmaster_start.map(howdah_traffic::Timestamp::as_micros);
    if started.is_some() && started == identity.postmaster_start_us {
        return Some(CapturedEvidence::PostmasterStart);
    }
    let is_elsewhere =
        captured.address.as_ref().is_some_and(|captured| !is_same_address(address, captured));
    let timelines = (identity.timeline.as_ref(), captured.timeline.as_ref());
    if are_different(timelines) || is_elsewhere {
        return None;
    }
    match identifiers {
        (Some(identifier), Some(_)) => Some(CapturedEvidence::SystemIdentifier(identifier.clone())),
        _ => captured.address.is_some().then(|| CapturedEvidence::Address(address.clone())),
    }
}

/// Whether two values are known to differ.
fn are_different<T: PartialEq>(values: (Option<&T>, Option<&T>)) -> bool {
    matches!(values, (Some(left), Some(right)) if left != right)
}

/// Whether two addresses may be those of one server. A unix socket and a loopback address with its
/// port may be; two sockets in different directories may not.
fn is_same_address(left: &str, right: &str) -> bool {
    let socket_port = |address: &str| Some(address.rsplit_once("/.s.PGSQL.")?.1.to_owned());
    match (socket_port(left), socket_port(right)) {
        (Some(port), None) => comparable(right) == format!("localhost:{port}"),
        (None, Some(port)) => comparable(left) == format!("localhost:{port}"),
        _ => comparable(left) == comparable(right),
    }
}

/// Returns an address in the form in which addresses are compared: all loopback addresses are one.
fn comparable(address: &str) -> String {
    let Some((host, port)) = address.rsplit_once(':').filter(|_| !address.starts_with('/')) else {
        return address.to_owned();
    };
    let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    let is_loopback = host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
    let host = if is_loopback { "localhost" } else { host.as_str() };
    format!("{host}:{port}")
}

#[cfg(test)]
mod tests {
    use howdah_traffic::Timestamp;

    use super::*;

    fn facts() -> TargetFacts {
        TargetFacts {
            database: "shop".to_owned(),
            identity: PhysicalIdentity {
                system_identifier: Some("7".to_owned()),
                timeline: Some(1),
                postmaster_start_us: Some(1_000),
                ..PhysicalIdentity::default()
            },
            address: "db:5432".to_owned(),
            clients: ActiveClients::default(),
        }
    }

    fn captured() -> CapturedServer {
        CapturedServer {
            system_identifier: Some("7".to_owned()),
            timeline: Some(1),
            address: Some("db:5432".to_owned()),
            ..CapturedServer::default()
        }
    }

    fn check(facts: &TargetFacts, captured: &CapturedServer) -> Result<(), GuardError> {
        check_target("target", facts, Some(captured), None)
    }

    fn with_identity(change: impl FnOnce(&mut PhysicalIdentity)) -> TargetFacts {
        let mut facts = facts();
        change(&mut facts.identity);
        facts
    }

    #[test]
    fn captured_server_is_refused() {
        let error = check(&facts(), &captured()).unwrap_err();
        assert!(error.hint().contains("--allow-production shop"), "{}", error.hint());
        let unknown = CapturedServer { timeline: None, address: None, ..captured() };
        assert!(check(&facts(), &unknown).is_err());
        let allowed = |name| check_target("target", &facts(), Some(&captured()), Some(name));
        assert_eq!(allowed("shop"), Ok(()));
        let hint = allowed("other").unwrap_err().hint();
        assert!(hint.starts_with("--allow-production names other, not shop"), "{hint}");
    }

    #[test]
    fn copy_of_captured_server_is_accepted() {
        let elsewhere = TargetFacts { address: "copy:5432".to_owned(), ..facts() };
        assert_eq!(check(&elsewhere, &captured()), Ok(()));
        let promoted = with_identity(|identity| identity.timeline = Some(2));
        assert_eq!(check(&promoted, &captured()), Ok(()));
        let logical = with_identity(|identity| identity.system_identifier = Some("8".to_owned()));
        assert_eq!(check(&logical, &captured()), Ok(()));
    }

    #[test]
    fn captured_server_is_recognized_at_another_address() {
        let started = Some(Timestamp::from_micros(1_000));
        let captured = CapturedServer { postmaster_start: started, ..captured() };
        let pooler = TargetFacts { address: "pooler:6432".to_owned(), ..facts() };
        let error = check(&pooler, &captured).unwrap_err();
        assert!(error.to_string().contains("postmaster"), "{error}");
        let copy = TargetFacts {
            address: "copy:5432".to_owned(),
            ..with_identity(|identity| identity.postmaster_start_us = Some(2_000))
        };
        assert_eq!(check(&copy, &captured), Ok(()));
    }

    #[test]
    fn address_decides_if_identity_is_unknown() {
        let unknown = with_identity(|identity| identity.system_identifier = None);
        let error = check(&unknown, &captured()).unwrap_err();
        assert!(error.to_string().contains("could not be compared"), "{error}");
        let elsewhere = TargetFacts { address: "copy:5432".to_owned(), ..unknown };
        assert_eq!(check(&elsewhere, &captured()), Ok(()));
        assert_eq!(check(&facts(), &CapturedServer::default()), Ok(()));
    }

    #[test]
    fn loopback_addresses_are_equal() {
        let same = ["localhost:5432", "127.0.0.1:5432", "[::1]:5432", "LocalHost:5432"];
        assert!(same.iter().all(|address| comparable(address) == "localhost:5432"));
        assert_ne!(comparable("127.0.0.1:5433"), comparable("127.0.0.1:5432"));
        assert_eq!(comparable("/tmp/a:b/.s.PGSQL.5432"), "/tmp/a:b/.s.PGSQL.5432");
        assert!(is_same_address("/tmp/.s.PGSQL.5432", "127.0.0.1:5432"));
        assert!(is_same_address("localhost:5432", "/tmp/.s.PGSQL.5432"));
        assert!(!is_same_address("/tmp/.s.PGSQL.5432", "127.0.0.1:5433"));
        assert!(!is_same_address("/tmp/.s.PGSQL.5432", "db:5432"));
        assert!(!is_same_address("/tmp/.s.PGSQL.5432", "/run/.s.PGSQL.5432"));
    }

    #[test]
    fn server_with_active_clients_is_refused() {
        let clients = ActiveClients {
            sessions: 4,
            hidden: 1,
            names: vec!["app (role app, database shop)".to_owned(), "…".to_owned()],
        };
        let busy = TargetFacts { clients, ..facts() };
        let error = check_target("change server", &busy, None, None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "4 other clients were active on the change server within the last minute: \
             app (role app, database shop), …"
        );
        assert!(error.hint().contains("pg_read_all_stats"), "{}", error.hint());
        assert_eq!(check_target("change server", &busy, None, Some("shop")), Ok(()));
    }
}
