//! An image taken from a running server: which pages its buffers hold, and what their relations are
//! called.
//!
//! Pages come from the server's memory, where this process runs on the server's host and may read it
//! (no lock, no work for the server); else from the extension `pg_buffercache`. Names come from the
//! catalogs of each database with pages in the cache.

mod by_sql;
mod from_memory;
mod names;

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use howdah_connect::{Client, ConnectError, QueryError, Target};
use howdah_inspect::Server;

use crate::image::{CacheImage, CachedFork, Fork, Origin, Page, Relation, RelationFile, Source};

pub use from_memory::{NotLocal, local_server};
use names::Named;

/// Where pages are taken from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// From memory if that can be, else from `pg_buffercache`.
    #[default]
    Best,
    /// From memory or not at all.
    Memory,
    /// From `pg_buffercache`.
    PgBuffercache,
}

/// An image, and what could not be had for it.
#[derive(Debug)]
pub struct Dumped {
    /// The image.
    pub image: CacheImage,
    /// Why the server's memory was not read, where it was tried first.
    pub not_from_memory: Option<NotLocal>,
    /// Databases whose catalogs could not be asked, so their relations have no names, and why.
    pub unnamed: Vec<(String, QueryFailure)>,
    /// Buffers that were just changing hands and were left out.
    pub unfinished: u32,
}

/// Why no image could be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DumpError {
    /// The server could not be asked about itself.
    #[error("the server could not be asked about its cache")]
    Server(#[source] QueryFailure),
    /// It stopped, crashed or was restarted meanwhile: what was read is of a cache that is gone.
    #[error("the server went away while its cache was read")]
    WentAway(#[source] QueryFailure),
    /// The server's memory was asked for and cannot be read.
    #[error("the server's memory cannot be read")]
    Memory(#[source] NotLocal),
    /// `pg_buffercache` cannot be read.
    #[error("pg_buffercache cannot be read in database {database}")]
    PgBuffercache {
        /// Where it was tried.
        database: String,
        /// Why the server's memory was not read either, if that was tried.
        not_from_memory: Option<Box<NotLocal>>,
        /// What the server said.
        source: Box<QueryFailure>,
    },
}

/// Why a server did not answer a question.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueryFailure {
    /// It could not be reached, or did not let us in.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// It answered with an error, or not to the end.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// It answered something else than what it was asked for.
    #[error("{what} came back as {found:?}")]
    Answer {
        /// What was asked for.
        what: &'static str,
        /// What came.
        found: String,
    },
}

impl QueryFailure {
    /// The SQLSTATE, if the server sent one.
    #[must_use]
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            Self::Connect(error) => error.sqlstate(),
            Self::Query(error) => error.sqlstate(),
            Self::Answer { .. } => None,
        }
    }
}

/// Takes an image of the server at `target`.
///
/// # Errors
///
/// The server cannot be asked, or neither way to its buffers is open. A database whose catalogs cannot
/// be asked is no error: its relations then go without names.
pub fn dump(target: &Target, choice: Choice) -> Result<Dumped, DumpError> {
    dump_with(target, choice, || {})
}

/// Calls `meanwhile` after the pages are read, before their names are.
fn dump_with(
    target: &Target,
    choice: Choice,
    meanwhile: impl FnOnce(),
) -> Result<Dumped, DumpError> {
    let mut client = connect(target).map_err(DumpError::Server)?;
    let facts = Facts::ask(&mut client).map_err(DumpError::Server)?;
    let taken_at_us = now_us();
    let looked = Sight::by(choice).look(&mut client, target.database())?;
    let Looked { cached, source, not_from_memory } = looked;
    let origin = Origin {
        server_version: facts.server_version,
        system_identifier: facts.system_identifier,
        page_bytes: facts.page_bytes,
        buffers: facts.buffers,
        taken_at_us,
        source,
    };
    let unfinished = cached.unfinished;
    meanwhile();
    let (names, unnamed) = name(target, &mut client, &facts, &cached);
    // No connection outlives what it was made to.
    client.one_value("SELECT 1").map_err(|error| DumpError::WentAway(error.into()))?;
    let image = assemble(origin, &facts, cached, &names);
    Ok(Dumped { image, not_from_memory, unnamed, unfinished })
}

/// Takes an image of a server of this host without asking it anything: it may be stopping, or too busy to
/// let anybody in. Names and lengths are those of `known`, an earlier image of it; what it does not hold
/// goes by its files.
///
/// # Errors
///
/// The server ended, or its memory cannot be read.
pub fn dump_memory(
    server: &Server,
    known: Option<&CacheImage>,
) -> Result<CacheImage, howdah_inspect::Error> {
    let taken_at_us = now_us();
    let buffers = server.buffers()?.count();
    let cached = from_memory::of_server(server)?;
    let origin = Origin { taken_at_us, source: Source::Memory, buffers, ..known_origin(known) };
    let mut relations: Vec<Relation> = Vec::new();
    for ((file, fork), pages) in cached.forks {
        let before = known.and_then(|image| {
            let at = image.relations.binary_search_by_key(&file, |relation| relation.file).ok()?;
            image.relations.get(at)
        });
        let same = before.and_then(|before| before.forks.iter().find(|old| old.fork == fork));
        let fork = CachedFork {
            fork,
            length: same.and_then(|old| old.length),
            pages: pages.into_iter().collect(),
        };
        match relations.last_mut() {
            Some(last) if last.file == file => last.forks.push(fork),
            _ => relations.push(Relation {
                file,
                name: before.and_then(|before| before.name.clone()),
                is_logged: cached.is_logged.get(&file).copied().unwrap_or(true),
                forks: vec![fork],
            }),
        }
    }
    let databases = known.map(|image| image.databases.clone()).unwrap_or_default();
    Ok(CacheImage { origin, databases, relations })
}

/// What does not change while a cluster lives; the common page where nothing is known.
fn known_origin(known: Option<&CacheImage>) -> Origin {
    const PAGE_BYTES: u32 = 8192;
    known.map_or(
        Origin {
            server_version: 0,
            system_identifier: 0,
            page_bytes: PAGE_BYTES,
            buffers: 0,
            taken_at_us: 0,
            source: Source::Memory,
        },
        |image| image.origin.clone(),
    )
}

/// How a server's buffers are looked at. The way to its memory is found once, for looks may follow each
/// other.
pub(crate) struct Sight {
    choice: Choice,
    server: Option<Server>,
}

/// Pages, and where they were read.
pub(crate) struct Looked {
    pub(crate) cached: Cached,
    pub(crate) source: Source,
    /// Why the server's memory was not read, where it was tried first.
    pub(crate) not_from_memory: Option<NotLocal>,
}

impl Sight {
    pub(crate) fn by(choice: Choice) -> Self {
        Self { choice, server: None }
    }

    /// Reads which pages the server's buffers hold. `database` is the client's, for the error.
    pub(crate) fn look(
        &mut self,
        client: &mut Client,
        database: &str,
    ) -> Result<Looked, DumpError> {
        let mut not_from_memory = None;
        if self.choice != Choice::PgBuffercache {
            let read = self.server(client).and_then(|server| Ok(from_memory::of_server(server)?));
            match read {
                Ok(cached) => {
                    return Ok(Looked { cached, source: Source::Memory, not_from_memory });
                }
                Err(reason) if self.choice == Choice::Memory => {
                    return Err(DumpError::Memory(reason));
                }
                Err(reason) => not_from_memory = Some(reason),
            }
        }
        match by_sql::read(client) {
            Ok(cached) => Ok(Looked { cached, source: Source::PgBuffercache, not_from_memory }),
            Err(source) => Err(DumpError::PgBuffercache {
                database: database.to_owned(),
                not_from_memory: not_from_memory.map(Box::new),
                source: Box::new(source),
            }),
        }
    }

    /// The server behind `client`, if its memory can be read.
    pub(crate) fn server(&mut self, client: &mut Client) -> Result<&Server, NotLocal> {
        let server = match self.server.take() {
            Some(server) => server,
            None => local_server(client)?,
        };
        Ok(self.server.insert(server))
    }
}

/// The pages of each fork, as they were found.
#[derive(Debug, Default)]
pub(crate) struct Cached {
    pub(crate) forks: BTreeMap<(RelationFile, Fork), Vec<Page>>,
    /// Relations that are known to be logged or not, before any catalog is asked.
    is_logged: BTreeMap<RelationFile, bool>,
    pub(crate) unfinished: u32,
}

/// What a server says of itself.
pub(crate) struct Facts {
    pub(crate) server_version: u32,
    pub(crate) system_identifier: u64,
    pub(crate) page_bytes: u32,
    pub(crate) buffers: u32,
    pub(crate) databases: BTreeMap<u32, Database>,
}

pub(crate) struct Database {
    pub(crate) name: String,
    /// Where relations lie that name no tablespace.
    pub(crate) tablespace: u32,
    pub(crate) allows_connections: bool,
}

type Names = BTreeMap<RelationFile, Named>;

impl Facts {
    pub(crate) fn ask(client: &mut Client) -> Result<Self, QueryFailure> {
        let setting = |client: &mut Client, what, sql: &str| number(what, client.one_value(sql)?);
        let server_version = setting(client, "server_version_num", "SHOW server_version_num")?;
        let page_bytes = setting(client, "block_size", "SHOW block_size")?;
        // pg_settings would look at every setting there is.
        let buffers = setting(
            client,
            "shared_buffers",
            "SELECT pg_size_bytes(current_setting('shared_buffers'))
                / current_setting('block_size')::int8",
        )?;
        // Not everybody may ask, and an image can do without.
        let identifier = client.one_value("SELECT system_identifier FROM pg_control_system()");
        let system_identifier = match identifier {
            Ok(value) => number("system_identifier", value)?,
            Err(error) if !error.is_fatal() => 0,
            Err(error) => return Err(error.into()),
        };
        let results =
            client.query("SELECT oid, datname, dattablespace, datallowconn FROM pg_database")?;
        let mut databases = BTreeMap::new();
        for row in results.iter().flat_map(|result| &result.rows) {
            let text = |column| row.text(column).map(std::borrow::Cow::into_owned);
            let database = Database {
                name: text(1).unwrap_or_default(),
                tablespace: number("dattablespace", text(2))?,
                allows_connections: text(3).as_deref() == Some("t"),
            };
            databases.insert(number("oid of a database", text(0))?, database);
        }
        Ok(Self { server_version, system_identifier, page_bytes, buffers, databases })
    }
}

/// Asks each database for the names of its relations: that of `client` by `client`, the others by
/// connections of their own, which are most of what an image costs the server.
fn name(
    target: &Target,
    client: &mut Client,
    facts: &Facts,
    cached: &Cached,
) -> (Names, Vec<(String, QueryFailure)>) {
    let mut wanted: BTreeMap<u32, Vec<RelationFile>> = BTreeMap::new();
    for &(file, _) in cached.forks.keys() {
        let files = wanted.entry(file.database).or_default();
        if files.last() != Some(&file) {
            files.push(file);
        }
    }
    let (mut names, mut unnamed) = (Names::new(), Vec::new());
    let here = facts.databases.iter().find(|(_, database)| database.name == target.database());
    for (oid, files) in wanted {
        // The shared catalogs are described in every database; ours is one that lets us in.
        let database =
            if oid == 0 { here.map(|(_, here)| here) } else { facts.databases.get(&oid) };
        let Some(database) = database.filter(|database| database.allows_connections) else {
            continue;
        };
        let asked = if database.name == target.database() {
            names::ask(client, database.tablespace, oid, &files)
        } else {
            connect(&target.with_database(&database.name))
                .and_then(|mut other| names::ask(&mut other, database.tablespace, oid, &files))
        };
        match asked {
            Ok(found) => names.extend(found),
            Err(failure) => unnamed.push((database.name.clone(), failure)),
        }
    }
    (names, unnamed)
}

fn assemble(origin: Origin, facts: &Facts, cached: Cached, names: &Names) -> CacheImage {
    let mut relations: Vec<Relation> = Vec::new();
    for ((file, fork), pages) in cached.forks {
        let named = names.get(&file);
        let length = named.and_then(|named| named.lengths[fork.number() as usize]);
        let fork = CachedFork { fork, length, pages: pages.into_iter().collect() };
        match relations.last_mut() {
            Some(last) if last.file == file => last.forks.push(fork),
            _ => relations.push(Relation {
                file,
                name: named.map(|named| named.name.clone()),
                is_logged: match (named, cached.is_logged.get(&file)) {
                    (Some(named), _) => named.is_logged,
                    (None, known) => known.copied().unwrap_or(true),
                },
                forks: vec![fork],
            }),
        }
    }
    let databases = facts
        .databases
        .iter()
        .filter(|(oid, _)| relations.iter().any(|relation| relation.file.database == **oid));
    let databases = databases.map(|(&oid, database)| (oid, database.name.clone())).collect();
    CacheImage { origin, databases, relations }
}

pub(crate) fn connect(target: &Target) -> Result<Client, QueryFailure> {
    Ok(Client::connect(&target.with_application_name("howdah warm"))?)
}

pub(crate) fn number<N: std::str::FromStr>(
    what: &'static str,
    text: Option<String>,
) -> Result<N, QueryFailure> {
    let text = text.unwrap_or_default();
    text.trim().parse().map_err(|_| QueryFailure::Answer { what, found: text })
}

fn now_us() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use howdah_connect::{Environment, Words};
    use howdah_lab::{Cluster, or_say_why_not};

    use super::*;

    #[test]
    fn a_server_that_is_restarted_while_it_is_dumped_gives_no_image() {
        let test = "restarted while it is dumped";
        let Some(mut cluster) = or_say_why_not(test, Cluster::builder().start()) else { return };
        let words = Words::from_conninfo(cluster.uri("postgres"));
        let target = Target::resolve(&words, &Environment::empty()).unwrap();
        let error = dump_with(&target, Choice::Memory, || cluster.restart().unwrap()).unwrap_err();
        assert!(matches!(error, DumpError::WentAway(_)), "{error}");
        assert!(dump(&target, Choice::Memory).is_ok());
    }
}
