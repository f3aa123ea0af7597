//! Looks up names of relations, and caches them.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::Duration,
};

use howdah_connect::{Client, ConnectTarget};

/// Looks up names of relations, if a session is available.
#[derive(Debug, Default)]
pub struct RelationNames {
    session: Option<(ConnectTarget, Client)>,
    /// Each database's name and a session in it, by oid; `None` if no session could be opened.
    databases: HashMap<u32, Option<(String, Client)>>,
    known: HashMap<(u32, u32), String>,
    files: HashMap<(u32, u32, u32), String>,
}

/// Timeout of a query for a name: the server may be busy, and a name is not worth the wait.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

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

    /// Returns the name of a relation, such as `shop.public.orders`, or its oids, such as
    /// `16384/16385`, if the lookup fails.
    pub fn name(&mut self, database: u32, relation: u32) -> String {
        if let Some(known) = self.known.get(&(database, relation)) {
            return known.clone();
        }
        let name = self.query(database, relation);
        let name = name.unwrap_or_else(|| format!("{database}/{relation}"));
        self.known.insert((database, relation), name.clone());
        name
    }

    /// Returns the name of the relation of a file; if the lookup fails, oids such as `16384/file
    /// 16390`.
    pub fn name_of_file(&mut self, tablespace: u32, database: u32, filenode: u32) -> String {
        if let Some(known) = self.files.get(&(tablespace, database, filenode)) {
            return known.clone();
        }
        // The database's default tablespace is passed as 0.
        let sql = format!(
            "SELECT pg_catalog.pg_filenode_relation(\
               CASE WHEN dattablespace = {tablespace} THEN 0 ELSE {tablespace} END, {filenode})::oid \
             FROM pg_catalog.pg_database WHERE datname = current_database()"
        );
        let relation = self.database(database).and_then(|(_, client)| {
            client.one_value(&sql).ok()??.parse::<u32>().ok().filter(|oid| *oid != 0)
        });
        let name = match relation {
            Some(relation) => self.name(database, relation),
            None => format!("{database}/file {filenode}"),
        };
        self.files.insert((tablespace, database, filenode), name.clone());
        name
    }

    /// Returns a session in a database, which is opened on first use; `None` if that failed.
    fn database(&mut self, database: u32) -> Option<&mut (String, Client)> {
        let session = &mut self.session;
        self.databases
            .entry(database)
            .or_insert_with(|| {
                let (target, client) = session.as_mut()?;
                let sql = format!("SELECT datname FROM pg_database WHERE oid = {database}");
                let name = client.one_value(&sql).ok()??;
                let mut client = Client::connect(&target.with_database(&name)).ok()?;
                client.set_timeout(Some(QUERY_TIMEOUT));
                Some((name, client))
            })
            .as_mut()
    }

    fn query(&mut self, database: u32, relation: u32) -> Option<String> {
        let (database, client) = self.database(database)?;
        let sql = format!(
            "SELECT n.nspname || '.' || c.relname FROM pg_catalog.pg_class c \
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = {relation}"
        );
        let name = client.one_value(&sql).ok()??;
        Some(format!("{database}.{name}"))
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
