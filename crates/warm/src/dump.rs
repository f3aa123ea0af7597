//! Takes an image of a running server: the pages in its buffers, and the names of their relations.
//!
//! Pages come from the server's memory if Howdah runs on the server's host and may read it (no
//! lock, no work for the server), otherwise from the extension `pg_buffercache`. Names come from
//! the catalogs of each database with pages in the cache.

mod array_literal;
mod by_sql;
mod catalog_names;
mod from_memory;
mod heap_page;
mod key_value;
mod row_keys;

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use howdah_connect::{Client, ConnectError, ConnectTarget, QueryError};
use howdah_inspect::RunningServer;

use crate::{
    image::{
        CacheImage, CachedFork, CachedPage, Fork, ImageOrigin, ImageSource, Relation, RelationFile,
    },
    os_cache::FileGeometry,
};

pub(crate) use array_literal::array;
use catalog_names::CatalogRelation;
pub use from_memory::{NotLocal, local_server};
use row_keys::{KeyReader, TableKeys};

/// The source from which cached pages are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DumpSource {
    /// The server's memory if possible, otherwise `pg_buffercache`.
    #[default]
    Best,
    /// The server's memory only.
    Memory,
    /// The extension `pg_buffercache` only.
    PgBuffercache,
}

/// The contents and the sources of an image to take.
#[derive(Clone, Copy, Debug, Default)]
pub struct DumpOptions<'a> {
    /// The source of the cached pages.
    pub source: DumpSource,
    /// Whether to read keys of rows on cached pages: see [`crate::image::RowKeys`].
    pub row_keys: bool,
    /// An earlier image of the server. Keys that only a query can read are taken from it, as long
    /// as their pages stay in the cache, because each query uses the pages that it reads.
    pub known: Option<&'a CacheImage>,
}

/// An image without keys of rows.
impl From<DumpSource> for DumpOptions<'_> {
    fn from(source: DumpSource) -> Self {
        Self { source, ..Self::default() }
    }
}

/// The result of [`dump()`]: an image, and what is missing from it.
#[derive(Debug)]
pub struct DumpResult {
    /// The pages. A relation has a name if its database could be queried and the catalogs list it.
    pub image: CacheImage,
    /// Why the server's memory was not read, if that was attempted first.
    pub not_from_memory: Option<NotLocal>,
    /// Databases whose catalogs could not be queried, and why: their relations have no names.
    /// Databases that do not allow connections are not listed.
    pub unnamed: Vec<(String, QueryFailure)>,
    /// Number of buffers omitted because they were being filled or changed; 0 if the source is
    /// `pg_buffercache`.
    pub in_transition: u32,
}

/// The reason why an image could not be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DumpError {
    /// The server could not be queried.
    #[error("cannot query the server about its cache")]
    Server(#[source] QueryFailure),
    /// The connection was lost during the dump, usually because the server stopped, crashed or was
    /// restarted: the cache that was read may be gone.
    #[error(
        "the server stopped, restarted or closed the connection while its cache was being read"
    )]
    ServerLost(#[source] QueryFailure),
    /// The server's memory was requested but cannot be read.
    #[error("the server's memory cannot be read")]
    Memory(#[source] NotLocal),
    /// `pg_buffercache` cannot be read.
    #[error("pg_buffercache cannot be read in database {database}")]
    PgBuffercache {
        /// The database of the connection.
        database: String,
        /// Why the server's memory was not read either, if that was attempted.
        not_from_memory: Option<Box<NotLocal>>,
        /// Error of the query on `pg_buffercache`.
        source: Box<QueryFailure>,
    },
}

/// The reason why a query to a server failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueryFailure {
    /// Connecting or logging in failed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The query failed, or its result was incomplete.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The result has an unexpected value.
    #[error("the server returned an unexpected value of {what}: {found:?}")]
    UnexpectedResult {
        /// Name of the value that was requested.
        what: &'static str,
        /// The value in the result; empty if there is none.
        found: String,
    },
}

impl QueryFailure {
    /// Returns the SQLSTATE, if the server sent one.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            Self::Connect(error) => error.sqlstate(),
            Self::Query(error) => error.sqlstate(),
            Self::UnexpectedResult { .. } => None,
        }
    }
}

/// Takes an image of the server at `target`.
///
/// # Errors
///
/// The server cannot be queried or stops meanwhile, or its buffers cannot be read from the source
/// that `options` allow. A database whose catalogs cannot be queried is not an error: its relations
/// have no names then.
pub fn dump<'a>(
    target: &ConnectTarget,
    options: impl Into<DumpOptions<'a>>,
) -> Result<DumpResult, DumpError> {
    dump_with(target, options.into(), || {})
}

/// Works like [`dump`], but calls `meanwhile` after reading the pages and before reading their
/// names.
fn dump_with(
    target: &ConnectTarget,
    options: DumpOptions<'_>,
    meanwhile: impl FnOnce(),
) -> Result<DumpResult, DumpError> {
    let mut client = connect(target).map_err(DumpError::Server)?;
    let cluster_info = ClusterInfo::query(&mut client).map_err(DumpError::Server)?;
    let taken_at_us = now_us();
    let mut buffer_source = BufferSource::new(options.source);
    let scan = buffer_source.scan(&mut client, target.database())?;
    let BufferScan { cached, source, not_from_memory } = scan;
    let origin = ImageOrigin {
        server_version: cluster_info.server_version,
        system_identifier: cluster_info.system_identifier,
        page_bytes: cluster_info.page_bytes,
        buffers: cluster_info.buffers,
        taken_at_us,
        source,
    };
    let unfinished = cached.unfinished;
    meanwhile();
    let keys = options.row_keys.then(|| {
        let memory = (source == ImageSource::Memory)
            .then(|| buffer_source.server(&mut client).ok()?.buffers().ok())
            .flatten();
        KeyReader::new(memory.map(|map| (map, cluster_info.page_bytes)), options.known)
    });
    let files = cached.forks.keys().map(|(file, _)| *file);
    let keys = keys.map(|keys| (keys, &cached));
    let Catalogs { names, keys, unnamed } =
        query_catalogs(target, &mut client, &cluster_info, files, keys);
    // A restart of the server would have closed this connection.
    client.one_value("SELECT 1").map_err(|error| DumpError::ServerLost(error.into()))?;
    let image = assemble(origin, &cluster_info, cached, &names, keys);
    Ok(DumpResult { image, not_from_memory, unnamed, in_transition: unfinished })
}

/// Sets the names of an image's relations, and whether they are logged, from the catalogs of the
/// server at `target`, where the image was taken by file number. Returns the databases that could
/// not be queried, with the reasons.
///
/// # Errors
///
/// The server cannot be queried, or is another cluster, whose files have other numbers.
pub fn name_relations(
    image: &mut CacheImage,
    target: &ConnectTarget,
) -> Result<Vec<(String, QueryFailure)>, NamingError> {
    let mut client = connect(target).map_err(NamingError::Server)?;
    let cluster_info = ClusterInfo::query(&mut client).map_err(NamingError::Server)?;
    let (image_id, server_id) = (image.origin.system_identifier, cluster_info.system_identifier);
    if image_id != 0 && server_id != 0 && image_id != server_id {
        return Err(NamingError::OtherCluster { image: image_id, server: server_id });
    }
    let files = image.relations.iter().map(|relation| relation.file);
    let Catalogs { names, unnamed, .. } =
        query_catalogs(target, &mut client, &cluster_info, files, None);
    for relation in &mut image.relations {
        if let Some(named) = names.get(&relation.file) {
            relation.name = Some(named.name.clone());
            relation.is_logged = named.is_logged;
        }
    }
    image.origin.server_version = cluster_info.server_version;
    let oids = image.relations.iter().map(|relation| relation.file.database);
    let named = oids.filter_map(|oid| Some((oid, cluster_info.databases.get(&oid)?.name.clone())));
    image.databases = named.collect();
    Ok(unnamed)
}

/// The reason why the relations of an image could not be named.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NamingError {
    /// The server could not be queried.
    #[error("cannot query the names of relations")]
    Server(#[source] QueryFailure),
    /// The image is of another cluster.
    #[error("the server is cluster {server}, but the files are of cluster {image}")]
    OtherCluster {
        /// System identifier of the image.
        image: u64,
        /// System identifier of the server.
        server: u64,
    },
}

/// Queries how the server of `client` divides relations into pages and files.
///
/// # Errors
///
/// The server cannot be queried.
pub fn file_geometry(client: &mut Client) -> Result<FileGeometry, QueryFailure> {
    let mut query = |what, sql: &str| parse_number::<u64>(what, client.one_value(sql)?);
    let page_bytes = query("block_size", "SHOW block_size")?;
    let segment_bytes =
        query("segment_size", "SELECT pg_size_bytes(current_setting('segment_size'))")?;
    Ok(FileGeometry { page_bytes: u32::try_from(page_bytes).unwrap_or(8192), segment_bytes })
}

/// Takes an image of a server on this host without connecting to it, so the server may be stopping,
/// or too busy to accept connections. Names, lengths and keys of rows are taken from `known`, an
/// earlier image; relations not in it are identified by file.
///
/// # Errors
///
/// The server stopped, or its memory cannot be read.
pub fn dump_memory(
    server: &RunningServer,
    known: Option<&CacheImage>,
) -> Result<CacheImage, howdah_inspect::InspectError> {
    let taken_at_us = now_us();
    let buffers = server.buffers()?.count();
    let cached = from_memory::read_buffers(server)?;
    let origin =
        ImageOrigin { taken_at_us, source: ImageSource::Memory, buffers, ..base_origin(known) };
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
                keys: before.and_then(|before| before.keys.clone()),
            }),
        }
    }
    let databases = known.map(|image| image.databases.clone()).unwrap_or_default();
    Ok(CacheImage { origin, databases, relations })
}

/// Returns the origin of `known`, the earlier image, or defaults without one. The caller replaces
/// the values that differ between images.
fn base_origin(known: Option<&CacheImage>) -> ImageOrigin {
    const PAGE_BYTES: u32 = 8192;
    known.map_or(
        ImageOrigin {
            server_version: 0,
            system_identifier: 0,
            page_bytes: PAGE_BYTES,
            buffers: 0,
            taken_at_us: 0,
            source: ImageSource::Memory,
        },
        |image| image.origin.clone(),
    )
}

/// Reads the buffers of a server. Access to its memory is set up only once, for repeated scans.
pub(crate) struct BufferSource {
    choice: DumpSource,
    server: Option<RunningServer>,
}

/// The result of a scan: pages and their source.
pub(crate) struct BufferScan {
    pub(crate) cached: BufferContents,
    pub(crate) source: ImageSource,
    /// Why the server's memory was not read, if that was attempted first.
    pub(crate) not_from_memory: Option<NotLocal>,
}

impl BufferSource {
    pub(crate) fn new(choice: DumpSource) -> Self {
        Self { choice, server: None }
    }

    /// Scans the server's buffers. `database` is the client's database, which an error names.
    pub(crate) fn scan(
        &mut self,
        client: &mut Client,
        database: &str,
    ) -> Result<BufferScan, DumpError> {
        let mut not_from_memory = None;
        if self.choice != DumpSource::PgBuffercache {
            let read =
                self.server(client).and_then(|server| Ok(from_memory::read_buffers(server)?));
            match read {
                Ok(cached) => {
                    return Ok(BufferScan { cached, source: ImageSource::Memory, not_from_memory });
                }
                Err(reason) if self.choice == DumpSource::Memory => {
                    return Err(DumpError::Memory(reason));
                }
                Err(reason) => not_from_memory = Some(reason),
            }
        }
        match by_sql::read(client) {
            Ok(cached) => {
                Ok(BufferScan { cached, source: ImageSource::PgBuffercache, not_from_memory })
            }
            Err(source) => Err(DumpError::PgBuffercache {
                database: database.to_owned(),
                not_from_memory: not_from_memory.map(Box::new),
                source: Box::new(source),
            }),
        }
    }

    /// Returns the server of `client`, if it runs on this host and may be inspected.
    pub(crate) fn server(&mut self, client: &mut Client) -> Result<&RunningServer, NotLocal> {
        let server = match self.server.take() {
            Some(server) => server,
            None => local_server(client)?,
        };
        Ok(self.server.insert(server))
    }
}

/// The contents of the buffers: the pages of each fork, in no particular order.
#[derive(Debug, Default)]
pub(crate) struct BufferContents {
    pub(crate) forks: BTreeMap<(RelationFile, Fork), Vec<CachedPage>>,
    /// Whether each relation is WAL-logged, where the source of the buffers shows it.
    is_logged: BTreeMap<RelationFile, bool>,
    pub(crate) unfinished: u32,
}

/// Properties of a cluster, from its settings and catalogs.
pub(crate) struct ClusterInfo {
    pub(crate) server_version: u32,
    pub(crate) system_identifier: u64,
    pub(crate) page_bytes: u32,
    pub(crate) buffers: u32,
    pub(crate) databases: BTreeMap<u32, DatabaseInfo>,
}

pub(crate) struct DatabaseInfo {
    pub(crate) name: String,
    /// The database's default tablespace, used by relations without an explicit one.
    pub(crate) tablespace: u32,
    pub(crate) allows_connections: bool,
}

type CatalogNames = BTreeMap<RelationFile, CatalogRelation>;

impl ClusterInfo {
    pub(crate) fn query(client: &mut Client) -> Result<Self, QueryFailure> {
        let setting =
            |client: &mut Client, what, sql: &str| parse_number(what, client.one_value(sql)?);
        let server_version = setting(client, "server_version_num", "SHOW server_version_num")?;
        let page_bytes = setting(client, "block_size", "SHOW block_size")?;
        // The view pg_settings would evaluate every setting.
        let buffers = setting(
            client,
            "shared_buffers",
            "SELECT pg_size_bytes(current_setting('shared_buffers'))
                / current_setting('block_size')::int8",
        )?;
        // Not every role may call this function, and an image is valid without the identifier.
        let identifier = client.one_value("SELECT system_identifier FROM pg_control_system()");
        let system_identifier = match identifier {
            Ok(value) => parse_number("system_identifier", value)?,
            Err(error) if !error.is_fatal() => 0,
            Err(error) => return Err(error.into()),
        };
        let results =
            client.query("SELECT oid, datname, dattablespace, datallowconn FROM pg_database")?;
        let mut databases = BTreeMap::new();
        for row in results.iter().flat_map(|result| &result.rows) {
            let text = |column| row.text(column).map(std::borrow::Cow::into_owned);
            let database = DatabaseInfo {
                name: text(1).unwrap_or_default(),
                tablespace: parse_number("dattablespace", text(2))?,
                allows_connections: text(3).as_deref() == Some("t"),
            };
            databases.insert(parse_number("oid of a database", text(0))?, database);
        }
        Ok(Self { server_version, system_identifier, page_bytes, buffers, databases })
    }
}

/// Properties of the cached relations, from the catalogs and tables of all databases.
#[derive(Default)]
struct Catalogs {
    names: CatalogNames,
    keys: TableKeys,
    /// Databases that could not be queried, with the reasons.
    unnamed: Vec<(String, QueryFailure)>,
}

/// Queries the names of the cached relations, and the keys of their rows with `keys`: in the
/// database of `client` through `client`, in others over additional connections, which are most of
/// an image's cost to the server.
fn query_catalogs(
    target: &ConnectTarget,
    client: &mut Client,
    cluster_info: &ClusterInfo,
    files: impl Iterator<Item = RelationFile>,
    mut keys: Option<(KeyReader<'_>, &BufferContents)>,
) -> Catalogs {
    let mut requested: BTreeMap<u32, Vec<RelationFile>> = BTreeMap::new();
    for file in files {
        let files = requested.entry(file.database).or_default();
        if files.last() != Some(&file) {
            files.push(file);
        }
    }
    let mut found = Catalogs::default();
    let here =
        cluster_info.databases.iter().find(|(_, database)| database.name == target.database());
    for (oid, files) in requested {
        // Every database describes the shared catalogs; the current one accepts our connection.
        let database =
            if oid == 0 { here.map(|(_, here)| here) } else { cluster_info.databases.get(&oid) };
        let Some(database) = database.filter(|database| database.allows_connections) else {
            continue;
        };
        let mut query = |client: &mut Client| -> Result<(), QueryFailure> {
            let tablespace = database.tablespace;
            found.names.extend(catalog_names::query_names(client, tablespace, oid, &files)?);
            if let Some((keys, cached)) = &mut keys {
                match keys.read(client, tablespace, oid, cached) {
                    Ok(read) => found.keys.extend(read),
                    Err(QueryFailure::Query(error)) if !error.is_fatal() => {
                        let database = &database.name;
                        tracing::warn!(database, %error, "cannot read keys of rows");
                    }
                    Err(failure) => return Err(failure),
                }
            }
            Ok(())
        };
        let result = if database.name == target.database() {
            query(client)
        } else {
            connect(&target.with_database(&database.name)).and_then(|mut other| query(&mut other))
        };
        if let Err(failure) = result {
            found.unnamed.push((database.name.clone(), failure));
        }
    }
    found
}

fn assemble(
    origin: ImageOrigin,
    cluster_info: &ClusterInfo,
    cached: BufferContents,
    names: &CatalogNames,
    mut keys: TableKeys,
) -> CacheImage {
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
                keys: keys.remove(&file),
            }),
        }
    }
    let databases = cluster_info
        .databases
        .iter()
        .filter(|(oid, _)| relations.iter().any(|relation| relation.file.database == **oid));
    let databases = databases.map(|(&oid, database)| (oid, database.name.clone())).collect();
    CacheImage { origin, databases, relations }
}

pub(crate) fn connect(target: &ConnectTarget) -> Result<Client, QueryFailure> {
    Ok(Client::connect(&target.with_application_name("howdah warm"))?)
}

pub(crate) fn parse_number<N: std::str::FromStr>(
    what: &'static str,
    text: Option<String>,
) -> Result<N, QueryFailure> {
    let text = text.unwrap_or_default();
    text.trim().parse().map_err(|_| QueryFailure::UnexpectedResult { what, found: text })
}

fn now_us() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use howdah_connect::{ConnParams, Environment};
    use howdah_lab::{Cluster, skip_without_postgres};

    use super::*;

    #[test]
    fn server_restarted_during_dump_yields_no_image() {
        let test = "restart during a dump";
        let Some(mut cluster) = skip_without_postgres(test, Cluster::builder().start()) else {
            return;
        };
        let words = ConnParams::from_conninfo(cluster.uri("postgres"));
        let target = ConnectTarget::resolve(&words, &Environment::empty()).unwrap();
        let error = dump_with(&target, DumpSource::Memory.into(), || cluster.restart().unwrap())
            .unwrap_err();
        assert!(matches!(error, DumpError::ServerLost(_)), "{error}");
        assert!(dump(&target, DumpSource::Memory).is_ok());
    }
}
