//! A cache image: the pages a server held in its buffers, their usage, and which were dirty.
//!
//! An image is not tied to a server: relations are identified by name as well as by file number, so
//! it can be loaded into the server it came from, a standby, a restored copy, or a server of
//! another version. The file format is described in `docs/src/reference/cache-image.md`.

mod body;
mod body_error;
mod file;
mod pages;
mod row_keys;
mod selection;

use std::{collections::BTreeMap, fmt, path::PathBuf};

pub use body_error::BodyError;
pub use file::{FileError, Generations};
pub use howdah_inspect::Fork;
pub use pages::{CachedPage, CachedPages};
pub use row_keys::{KeyedRow, RowKeys};
pub use selection::{
    DatabasePattern, NEAR_NAMES_MAX, NameGlob, NoMatch, RelationPattern, SelectedImage, Selection,
};

/// The contents of a server's buffers at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheImage {
    /// Server, time and source of the image.
    pub origin: ImageOrigin,
    /// Names of databases by `pg_database.oid`. The shared catalogs have the oid 0 and no name.
    pub databases: BTreeMap<u32, String>,
    /// Relations with pages in the cache, ordered by [`Relation::file`].
    pub relations: Vec<Relation>,
}

/// The origin of an image: its server, time and source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageOrigin {
    /// `server_version_num`, e.g. 150018; 0 if unknown.
    pub server_version: u32,
    /// `system_identifier` of `pg_control_system()`, which a primary shares with its physical
    /// standbys; 0 if unknown.
    pub system_identifier: u64,
    /// Block size of the server (`block_size`), usually 8192.
    pub page_bytes: u32,
    /// Buffers of the server: `shared_buffers` in pages; 0 if unknown.
    pub buffers: u32,
    /// Time of the dump, in microseconds since 1970.
    pub taken_at_us: i64,
    /// The interface from which the pages were read.
    pub source: ImageSource,
}

/// An interface from which pages are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageSource {
    /// The server's buffer descriptors, read from outside.
    Memory,
    /// The extension `pg_buffercache`.
    PgBuffercache,
    /// A file of contrib's autoprewarm, which records neither usage nor dirty pages.
    Autoprewarm,
    /// The operating system's page cache of the server's files. Usage counts are 1, and no page is
    /// dirty: both are unknown.
    OsCache,
}

/// A relation with pages in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relation {
    /// Identifies the relation's files on the server that the image was taken from.
    pub file: RelationFile,
    /// Name of the relation, if known.
    pub name: Option<RelationName>,
    /// Whether the relation is WAL-logged, so that its pages survive a crash; true if unknown.
    pub is_logged: bool,
    /// Forks of the relation with pages in the cache.
    pub forks: Vec<CachedFork>,
    /// Keys of rows on cached pages, by which the pages are found again after the relation was
    /// rewritten or copied. `None` if they were not read, or the relation has no unique key.
    pub keys: Option<RowKeys>,
}

/// The identity of a relation's files, which changes when the relation is rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelationFile {
    /// `pg_database.oid`, 0 for the shared catalogs.
    pub database: u32,
    /// `pg_tablespace.oid`.
    pub tablespace: u32,
    /// `pg_relation_filenode()`.
    pub filenode: u32,
}

/// The name of a relation, by which it can be found on another server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RelationName {
    /// A table, index, sequence or materialised view by its own name.
    Own(QualifiedName),
    /// The TOAST table of a table. Its own name contains the table's oid, which differs between
    /// servers.
    Toast(QualifiedName),
    /// The index of a table's TOAST table.
    ToastIndex(QualifiedName),
}

/// A schema and a name in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QualifiedName {
    /// `pg_namespace.nspname`.
    pub schema: String,
    /// `pg_class.relname`.
    pub name: String,
}

/// The pages of one fork that are in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedFork {
    /// Main fork, free space map, visibility map or init fork.
    pub fork: Fork,
    /// Length of the fork, in pages; `None` if unknown.
    pub length: Option<u32>,
    /// The pages of this fork that were in the cache.
    pub pages: CachedPages,
}

/// Blocks of one fork that are to be cached, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForkBlocks {
    /// File of the relation on the server whose page cache is meant.
    pub file: RelationFile,
    /// Main fork or one of the others, such as the visibility map.
    pub fork: Fork,
    /// Block numbers in the fork, ascending and unique.
    pub blocks: Vec<u32>,
}

impl CacheImage {
    /// Returns the number of pages in the image, over all relations.
    pub fn page_count(&self) -> u64 {
        self.relations.iter().map(Relation::page_count).sum()
    }

    /// Returns an image of the `pages` hottest pages. Among equally hot pages, the first files take
    /// precedence.
    #[must_use]
    pub fn hottest(&self, pages: u64) -> Self {
        let mut counts = [0_u64; 16];
        let all = || self.relations.iter().flat_map(|relation| &relation.forks);
        for page in all().flat_map(|fork| fork.pages.iter()) {
            counts[usize::from(page.usage & 0xf)] += 1;
        }
        // Hotter classes are included entirely, the last one in part.
        let (mut class, mut remaining) = (15, pages);
        while class > 0 && counts[class] <= remaining {
            remaining -= counts[class];
            class -= 1;
        }
        let mut take = |page: &CachedPage| match usize::from(page.usage & 0xf).cmp(&class) {
            std::cmp::Ordering::Greater => true,
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Equal => {
                let is_in = remaining > 0;
                remaining -= u64::from(is_in);
                is_in
            }
        };
        let mut relations = self.relations.clone();
        for fork in relations.iter_mut().flat_map(|relation| &mut relation.forks) {
            fork.pages = fork.pages.iter().filter(|page| take(page)).collect();
        }
        for relation in &mut relations {
            relation.forks.retain(|fork| !fork.pages.is_empty());
        }
        relations.retain(|relation| !relation.forks.is_empty());
        Self { origin: self.origin.clone(), databases: self.databases.clone(), relations }
    }

    /// Returns the name of a database; `None` for the shared catalogs, dropped databases, and those
    /// that the image does not name.
    pub fn database_name(&self, oid: u32) -> Option<&str> {
        self.databases.get(&oid).map(String::as_str)
    }
}

impl Relation {
    /// Returns the number of the relation's pages in the cache, over all forks.
    pub fn page_count(&self) -> u64 {
        self.forks.iter().map(|fork| fork.pages.len() as u64).sum()
    }
}

impl ImageSource {
    /// Returns the source's name in output and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::PgBuffercache => "pg_buffercache",
            Self::Autoprewarm => "autoprewarm",
            Self::OsCache => "os_cache",
        }
    }
}

impl fmt::Display for QualifiedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}

impl fmt::Display for RelationName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(name) => name.fmt(f),
            Self::Toast(table) => write!(f, "{table} (TOAST)"),
            Self::ToastIndex(table) => write!(f, "{table} (TOAST index)"),
        }
    }
}

/// The reason why an image could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file is not an image, is damaged, or has another format version.
    #[error("{} is not a readable cache image", path.display())]
    Body {
        /// Path of the file.
        path: PathBuf,
        /// Why the file cannot be read as an image.
        source: BodyError,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relation(filenode: u32, usage: &[u8]) -> Relation {
        let pages = usage.iter().zip(0..);
        let pages =
            pages.map(|(&usage, block)| CachedPage { block, usage, is_dirty: false }).collect();
        Relation {
            file: RelationFile { database: 5, tablespace: 1663, filenode },
            name: None,
            is_logged: true,
            forks: vec![CachedFork { fork: Fork::Main, length: None, pages }],
            keys: None,
        }
    }

    #[test]
    fn hottest_pages_are_selected() {
        let image = CacheImage {
            origin: ImageOrigin {
                server_version: 170_000,
                system_identifier: 1,
                page_bytes: 8192,
                buffers: 10,
                taken_at_us: 0,
                source: ImageSource::Memory,
            },
            databases: BTreeMap::new(),
            relations: vec![relation(1, &[0, 5, 3]), relation(2, &[1, 1]), relation(3, &[3, 2])],
        };
        let remaining = |pages: u64| -> Vec<(u32, Vec<u32>)> {
            let blocks = |fork: &CachedFork| fork.pages.iter().map(|page| page.block).collect();
            let hottest = image.hottest(pages);
            let relations = hottest.relations.iter();
            relations.map(|relation| (relation.file.filenode, blocks(&relation.forks[0]))).collect()
        };
        assert_eq!(remaining(0), []);
        assert_eq!(remaining(1), [(1, vec![1])]);
        assert_eq!(remaining(2), [(1, vec![1, 2])]);
        assert_eq!(remaining(5), [(1, vec![1, 2]), (2, vec![0]), (3, vec![0, 1])]);
        assert_eq!(image.hottest(7), image);
        assert_eq!(image.hottest(u64::MAX), image);
    }
}
