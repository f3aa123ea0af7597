//! Looks up names of relations, and caches them.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use howdah_collect::sanitized_line;
use howdah_connect::{Client, ConnectTarget};

/// Looks up names of relations, if a session is available.
#[derive(Debug, Default)]
pub struct RelationNames {
    session: Option<(ConnectTarget, Client)>,
    /// Each database's name and a session in it, by oid; `None` if no session could be opened.
    databases: HashMap<u32, Option<(String, Client)>>,
    known: HashMap<RelationId, CachedName>,
    files: HashMap<FileId, CachedName>,
}

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

impl RelationNames {
    /// Creates a lookup that finds the names of databases in this session, and opens another
    /// session in each database as needed.
    pub fn new(session: Option<(ConnectTarget, Client)>) -> Self {
        Self { session, ..Self::default() }
    }

    /// Returns the address of the server, if a session is available.
    pub fn target(&self) -> Option<&ConnectTarget> {
        self.session.as_ref().map(|(target, _)| target)
    }

    /// Returns the name of a relation, such as `shop.public.orders`, of a shared catalog, such as
    /// `pg_catalog.pg_authid`, or its oids, such as `16384/16385`, if the lookup fails.
    pub fn name(&mut self, database: u32, relation: u32) -> String {
        let id = (database, relation);
        if let Some(known) = self.known.get(&id).and_then(CachedName::current) {
            return known;
        }
        let name = self.query(database, relation);
        let cached = CachedName::new(name, || format!("{database}/{relation}"));
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
             FROM pg_catalog.pg_database WHERE datname = current_database()"
        );
        let relation = self.database(database).and_then(|(_, client)| {
            client.one_value(&sql).ok()??.parse::<u32>().ok().filter(|oid| *oid != 0)
        });
        let name = relation.and_then(|relation| self.query(database, relation));
        let cached = CachedName::new(name, || format!("{database}/file {filenode}"));
        let name = cached.name.clone();
        self.files.insert(id, cached);
        name
    }

    /// Returns a session in a database, which is opened on first use; `None` if that failed.
    fn database(&mut self, database: u32) -> Option<&mut (String, Client)> {
        let session = &mut self.session;
        self.databases
            .entry(database)
            .or_insert_with(|| {
                let (target, client) = session.as_mut()?;
                // Shared catalogs have no database, and are in the catalog of each.
                let sql = match database {
                    0 => "SELECT current_database()".to_owned(),
                    oid => format!("SELECT datname FROM pg_database WHERE oid = {oid}"),
                };
                let name = sanitized_line(&client.one_value(&sql).ok()??).into_owned();
                let mut client = Client::connect(&target.with_database(&name)).ok()?;
                client.set_timeout(Some(QUERY_TIMEOUT));
                Some((name, client))
            })
            .as_mut()
    }

    fn query(&mut self, database: u32, relation: u32) -> Option<String> {
        let (database_name, client) = self.database(database)?;
        let sql = format!(
            "SELECT n.nspname || '.' || c.relname FROM pg_catalog.pg_class c \
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = {relation}"
        );
        let name = client.one_value(&sql).ok()??;
        Some(if database == 0 { name } else { format!("{database_name}.{name}") })
    }
}

impl CachedName {
    /// Creates an entry from the result of a lookup, with a substitute if that found no name.
    fn new(found: Option<String>, substitute: impl FnOnce() -> String) -> Self {
        let retry_at = found.is_none().then(|| Instant::now() + RETRY_INTERVAL);
        Self { name: found.unwrap_or_else(substitute), retry_at }
    }

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
