//! Looks up names of relations, and caches them.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use howdah_collect::{OWN_COMMENT, sanitized_line};
use howdah_connect::{Client, ConnectTarget, QueryError};

/// Looks up names of relations, if a session is available.
#[derive(Debug, Default)]
pub struct RelationNames {
    session: Option<FirstSession>,
    /// Sessions in the databases, by oid.
    databases: HashMap<u32, DatabaseSession>,
    known: HashMap<RelationId, CachedName>,
    files: HashMap<FileId, CachedName>,
}

/// The session that finds the names of databases, with the address to open others.
#[derive(Debug)]
struct FirstSession {
    target: ConnectTarget,
    /// `None` after it was lost.
    client: Option<Client>,
}

/// A session in a database, or the time until which none is tried after an error.
#[derive(Debug, Default)]
struct DatabaseSession {
    /// The database's name, and the session.
    session: Option<(String, Client)>,
    /// Number of lookups that failed since the last that did not.
    failures: u32,
    retry_at: Option<Instant>,
}

/// The name cannot be looked up now: the server does not respond, or refuses the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LookupFailed;

/// The result of a lookup.
#[derive(Debug)]
struct CachedName {
    name: String,
    /// Time at which to look the name up again: it was not found, for example because the
    /// transaction that created the relation had not committed. `None` if it was found.
    retry_at: Option<Instant>,
}

/// Timeout of a query for a name: the server may be busy, and a name is not worth the wait.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);
/// Time from a lookup that found no name to the next one.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Time from a lookup that failed to the next one in the same database. It doubles with each
/// further failure, up to the maximum: each may take as long as [`QUERY_TIMEOUT`].
const FAILURE_INTERVAL: Duration = Duration::from_secs(5);
const FAILURE_INTERVAL_MAX: Duration = Duration::from_secs(60);

impl RelationNames {
    /// Creates a lookup that finds the names of databases in this session, and opens another
    /// session in each database as needed.
    pub fn new(session: Option<(ConnectTarget, Client)>) -> Self {
        let session = session.map(|(target, mut client)| {
            client.set_timeout(Some(QUERY_TIMEOUT));
            FirstSession { target, client: Some(client) }
        });
        Self { session, ..Self::default() }
    }

    /// Returns the address of the server, if a session is available.
    pub fn target(&self) -> Option<&ConnectTarget> {
        self.session.as_ref().map(|session| &session.target)
    }

    /// Returns the name of a relation, such as `shop.public.orders`, of a shared catalog, such as
    /// `pg_catalog.pg_authid`, or its oids, such as `16384/16385`, if the lookup fails.
    pub fn name(&mut self, database: u32, relation: u32) -> String {
        let id = (database, relation);
        if let Some(known) = self.known.get(&id).and_then(CachedName::current) {
            return known;
        }
        let name = self.find_name(database, |client| relation_name(client, relation));
        let cached = self.cached(database, name, || format!("{database}/{relation}"));
        let name = cached.name.clone();
        self.known.insert(id, cached);
        name
    }

    /// Returns the name of the relation of a file; if the lookup fails, oids such as `16384/file
    /// 16390`.
    pub fn name_of_file(&mut self, tablespace: u32, database: u32, filenode: u32) -> String {
        let id = (tablespace, database, filenode);
        if let Some(known) = self.files.get(&id).and_then(CachedName::current) {
            return known;
        }
        // The database's default tablespace is passed as 0. Relations of the session's own and of
        // other sessions' temporary schemas are found by their filenode only.
        let sql = format!(
            "SELECT coalesce(nullif(pg_catalog.pg_filenode_relation(\
               CASE WHEN dattablespace = {tablespace} THEN 0 ELSE {tablespace} END, \
               {filenode})::oid, 0), (SELECT min(oid::int8)::oid FROM pg_catalog.pg_class \
               WHERE relfilenode = {filenode} AND relpersistence = 't')) \
             FROM pg_catalog.pg_database WHERE datname = current_database(){OWN_COMMENT}"
        );
        let name = self.find_name(database, |client| {
            let oid = client.one_value(&sql)?.and_then(|oid| oid.parse::<u32>().ok());
            oid.map_or(Ok(None), |oid| relation_name(client, oid))
        });
        let cached = self.cached(database, name, || format!("{database}/file {filenode}"));
        let name = cached.name.clone();
        self.files.insert(id, cached);
        name
    }

    /// Runs a lookup in a database, unless one has failed there recently, and returns the qualified
    /// name; `None` if the relation does not exist.
    fn find_name(
        &mut self,
        database: u32,
        query: impl FnOnce(&mut Client) -> Result<Option<String>, QueryError>,
    ) -> Result<Option<String>, LookupFailed> {
        let entry = self.databases.entry(database).or_default();
        if entry.retry_at.is_some_and(|due| Instant::now() < due) {
            return Err(LookupFailed);
        }
        let found = match &mut entry.session {
            Some(session) => Ok(session),
            none => {
                let opened = self.session.as_mut().map(|session| session.open(database));
                opened.unwrap_or(Err(LookupFailed)).map(|session| none.insert(session))
            }
        };
        let found = found.and_then(|(name, client)| match query(client) {
            Ok(relation) if database == 0 => Ok(relation),
            Ok(relation) => Ok(relation.map(|relation| format!("{name}.{relation}"))),
            Err(_) => Err(LookupFailed),
        });
        if found.is_ok() {
            (entry.failures, entry.retry_at) = (0, None);
        } else {
            // Whatever the error, a new session has the best prospects.
            entry.session = None;
            let interval = FAILURE_INTERVAL.saturating_mul(1 << entry.failures.min(10));
            entry.failures += 1;
            entry.retry_at = Some(Instant::now() + interval.min(FAILURE_INTERVAL_MAX));
        }
        found
    }

    /// Creates an entry from the result of a lookup, with a substitute if that found no name.
    fn cached(
        &self,
        database: u32,
        found: Result<Option<String>, LookupFailed>,
        substitute: impl FnOnce() -> String,
    ) -> CachedName {
        let retry_at = match &found {
            Ok(Some(_)) => None,
            Ok(None) => Some(Instant::now() + RETRY_INTERVAL),
            Err(LookupFailed) => self.databases.get(&database).and_then(|entry| entry.retry_at),
        };
        CachedName { name: found.ok().flatten().unwrap_or_else(substitute), retry_at }
    }
}

impl FirstSession {
    /// Opens a session in a database, and returns the database's name with it.
    fn open(&mut self, database: u32) -> Result<(String, Client), LookupFailed> {
        let connect = |target: &ConnectTarget| {
            let target = target.with_connect_timeout(Some(QUERY_TIMEOUT));
            let mut client = Client::connect(&target).map_err(|_| LookupFailed)?;
            client.set_timeout(Some(QUERY_TIMEOUT));
            Ok(client)
        };
        let client = match &mut self.client {
            Some(client) => client,
            none => none.insert(connect(&self.target)?),
        };
        // Shared catalogs have no database, and are in the catalog of each.
        let sql = match database {
            0 => format!("SELECT current_database(){OWN_COMMENT}"),
            oid => format!("SELECT datname FROM pg_database WHERE oid = {oid}{OWN_COMMENT}"),
        };
        let name = match client.one_value(&sql) {
            Ok(name) => sanitized_line(&name.ok_or(LookupFailed)?).into_owned(),
            Err(_) => {
                self.client = None;
                return Err(LookupFailed);
            }
        };
        Ok((name.clone(), connect(&self.target.with_database(&name))?))
    }
}

/// Returns the name of a relation with its schema; `None` if there is none with this oid.
fn relation_name(client: &mut Client, relation: u32) -> Result<Option<String>, QueryError> {
    client.one_value(&format!(
        "SELECT n.nspname || '.' || c.relname FROM pg_catalog.pg_class c \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = {relation}{OWN_COMMENT}"
    ))
}

impl CachedName {
    /// Returns the name, unless it is to be looked up again.
    fn current(&self) -> Option<String> {
        let is_due = self.retry_at.is_some_and(|due| Instant::now() >= due);
        (!is_due).then(|| self.name.clone())
    }
}

/// Looks up names in a separate thread, because a stalled server may not respond.
#[derive(Debug)]
pub struct RelationNamer {
    requests: Sender<NameRequest>,
    names: Receiver<(RelationId, String)>,
    file_names: Receiver<(FileId, String)>,
}

/// Oids of a database and of a relation in it.
pub type RelationId = (u32, u32);

/// Oids of a tablespace and of a database, and a relation's filenode.
pub type FileId = (u32, u32, u32);

/// An object whose name is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NameRequest {
    Relation(RelationId),
    File(FileId),
}

impl RelationNamer {
    /// Starts the thread, which ends when the namer is dropped.
    ///
    /// # Errors
    ///
    /// No thread can be started.
    pub fn start(session: (ConnectTarget, Client)) -> io::Result<Self> {
        let (requests, requested) = channel::<NameRequest>();
        let (found, names) = channel();
        let (found_file, file_names) = channel();
        thread::Builder::new().name("names".to_owned()).spawn(move || {
            let mut names = RelationNames::new(Some(session));
            let mut known = BTreeSet::new();
            for request in requested {
                if !known.insert(request) {
                    continue;
                }
                // Sending fails only after the namer was dropped.
                match request {
                    NameRequest::Relation((database, relation)) => {
                        let name = names.name(database, relation);
                        let _ = found.send(((database, relation), name));
                    }
                    NameRequest::File((tablespace, database, filenode)) => {
                        let name = names.name_of_file(tablespace, database, filenode);
                        let _ = found_file.send(((tablespace, database, filenode), name));
                    }
                }
            }
        })?;
        Ok(Self { requests, names, file_names })
    }

    /// Requests the name of a relation, which [`drain_names`](Self::drain_names) returns later.
    pub fn request(&self, relation: RelationId) {
        // Fails only if the thread has ended.
        let _ = self.requests.send(NameRequest::Relation(relation));
    }

    /// Requests the name of a file's relation, which [`drain_file_names`](Self::drain_file_names)
    /// returns later.
    pub fn request_file(&self, file: FileId) {
        // Fails only if the thread has ended.
        let _ = self.requests.send(NameRequest::File(file));
    }

    /// Returns the names found since the last call, or the oids as text where the lookup failed.
    pub fn drain_names(&self) -> impl Iterator<Item = (RelationId, String)> {
        self.names.try_iter()
    }

    /// Returns the names of files' relations found since the last call, or numbers as text where
    /// the lookup failed.
    pub fn drain_file_names(&self) -> impl Iterator<Item = (FileId, String)> {
        self.file_names.try_iter()
    }
}
