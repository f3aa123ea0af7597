//! Controls the operating system's page cache, which contains pages of the server's files.
//!
//! [`snapshot()`] takes an image of it, and [`restore()`] brings the pages of an image into it.
//! [`read_ahead`] does so before the server accepts queries, and [`evict`] empties it for
//! experiments.
//!
//! These functions must run on the server's host, with access to the server's files. File numbers
//! are those of the image, so reading ahead is useful only on the image's own server or a physical
//! copy of it.

mod resident_pages;
mod restore;
mod snapshot;

use std::{
    fs::{self, File},
    io,
    num::NonZeroU64,
    path::{Path, PathBuf},
};

use rustix::fs::{Advice, Mode, OFlags, fadvise};

use crate::image::{CacheImage, CachedFork, Fork, RelationFile};

pub use restore::{RestoreReport, blocks_by_file, blocks_of, restore};
pub use snapshot::{OsCacheSnapshot, snapshot};

/// How a server divides relations into pages and files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileGeometry {
    /// `block_size`, in bytes.
    pub page_bytes: u32,
    /// `segment_size`, in bytes: a multiple of the page size.
    pub segment_bytes: u64,
}

/// PostgreSQL's defaults, which few builds change: pages of 8 KiB, segments of 1 GiB.
impl Default for FileGeometry {
    fn default() -> Self {
        Self { page_bytes: 8192, segment_bytes: SEGMENT_BYTES }
    }
}

impl FileGeometry {
    /// Pages in a segment, at least 1.
    fn segment_blocks(self) -> u64 {
        (self.segment_bytes / u64::from(self.page_bytes.max(1))).max(1)
    }

    /// Returns the number of the segment that contains a block.
    fn segment(self, block: u32) -> u64 {
        u64::from(block) / self.segment_blocks()
    }

    /// Returns the first block of a segment; `None` if there cannot be such a segment.
    fn first_block(self, segment: u32) -> Option<u32> {
        u32::try_from(u64::from(segment) * self.segment_blocks()).ok()
    }
}

/// The result of [`read_ahead`]: how much the kernel was asked to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadAhead {
    /// Bytes that the kernel was asked to read.
    pub bytes: u64,
    /// Number of files that were opened to be read ahead. A file with both hot and cold pages
    /// counts twice.
    pub files: u64,
    /// Number of files of the image that could not be opened, for example because they were dropped
    /// or rewritten. A file with both hot and cold pages counts twice, and a relation whose
    /// tablespace is not found counts once.
    pub missing: u64,
}

/// The result of [`evict`]: size and number of the evicted files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvictedFiles {
    /// Total size of the files that were evicted.
    pub bytes: u64,
    /// Number of files that were evicted.
    pub files: u64,
}

/// The reason why an operation on a file or directory failed.
#[derive(Debug, thiserror::Error)]
#[error("{} could not be {action}", path.display())]
pub struct OsCacheError {
    /// Path of the file or directory.
    pub path: PathBuf,
    /// The attempted action, as a participle: `opened`, `read`, …
    pub action: &'static str,
    /// The system error.
    #[source]
    pub source: io::Error,
}

/// Requests the image's pages from the kernel, hot ones first, while `should_continue` returns
/// true.
///
/// Returns when the kernel has accepted the last request; a busy disk makes it wait. Assumes
/// segments of 1 GiB, PostgreSQL's default.
///
/// # Errors
///
/// `data_dir` is not a data directory, or not accessible. Missing single files are counted.
pub fn read_ahead(
    image: &CacheImage,
    data_dir: &Path,
    should_continue: &dyn Fn() -> bool,
) -> Result<ReadAhead, OsCacheError> {
    let folders = DataDirLayout::open(data_dir)?;
    let page_bytes = u64::from(image.origin.page_bytes.max(1));
    let mut sum = ReadAhead::default();
    for is_hot in [true, false] {
        for relation in &image.relations {
            let Some(file) = folders.file(relation.file) else {
                sum.missing += u64::from(is_hot);
                continue;
            };
            for fork in &relation.forks {
                if !should_continue() {
                    return Ok(sum);
                }
                read_fork_ahead(fork, &file, page_bytes, is_hot, &mut sum);
            }
        }
    }
    Ok(sum)
}

/// Pages with at least this usage count are requested first.
const HOT_USAGE: u8 = 3;
/// Maximum gap between two pages that are requested together, in pages.
const GAP_PAGES: u64 = 16;
/// Maximum size of a request: `force_page_cache_ra()` stops at the device's read-ahead.
const REQUEST_BYTES: u64 = 128 << 10;
const SEGMENT_BYTES: u64 = 1 << 30;

fn read_fork_ahead(
    fork: &CachedFork,
    file: &Path,
    page_bytes: u64,
    is_hot: bool,
    sum: &mut ReadAhead,
) {
    let blocks = fork.pages.iter().filter(|page| (page.usage >= HOT_USAGE) == is_hot);
    let runs = runs(blocks.map(|page| u64::from(page.block)));
    let mut open: Option<(u64, Option<File>)> = None;
    for (first, end) in runs {
        let (mut at, end) = (first * page_bytes, end * page_bytes);
        while at < end {
            let segment = at / SEGMENT_BYTES;
            let stop = end.min((segment + 1) * SEGMENT_BYTES).min(at + REQUEST_BYTES);
            if open.as_ref().is_none_or(|(number, _)| *number != segment) {
                let opened = open_file(&segment_path(file, fork.fork, segment)).ok();
                match opened {
                    Some(_) => sum.files += 1,
                    None => sum.missing += 1,
                }
                open = Some((segment, opened));
            }
            if let Some((_, Some(file))) = &open {
                // The kernel may ignore advice; errors do not matter.
                let _ =
                    fadvise(file, at % SEGMENT_BYTES, NonZeroU64::new(stop - at), Advice::WillNeed);
                sum.bytes += stop - at;
            }
            at = stop;
        }
    }
}

/// Groups ascending blocks into runs, given as first block and end (exclusive). Small gaps, which
/// do not justify separate requests, are part of a run.
fn runs(blocks: impl Iterator<Item = u64>) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for block in blocks {
        match runs.last_mut() {
            Some((_, end)) if block <= *end + GAP_PAGES => *end = block + 1,
            _ => runs.push((block, block + 1)),
        }
    }
    runs
}

fn segment_path(file: &Path, fork: Fork, segment: u64) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    if fork != Fork::Main {
        name.push(format!("_{}", fork.name()));
    }
    if segment > 0 {
        name.push(format!(".{segment}"));
    }
    PathBuf::from(name)
}

/// Writes back the files of a data directory's databases and tablespaces, and evicts them from the
/// operating system's cache.
///
/// Meant for a stopped server: pages that a running one has mapped or is writing stay cached. Needs
/// only read access to the files.
///
/// # Errors
///
/// A file or directory cannot be read, or a file cannot be written back or evicted.
pub fn evict(data_dir: &Path) -> Result<EvictedFiles, OsCacheError> {
    let mut sum = EvictedFiles::default();
    for folder in ["base", "global", "pg_tblspc"] {
        evict_recursively(&data_dir.join(folder), 0, &mut sum)?;
    }
    Ok(sum)
}

/// Depth of the deepest path: `pg_tblspc/OID/PG_15_202209061/DATABASE/FILE`.
const DEPTH_MAX: u32 = 4;

fn evict_recursively(path: &Path, depth: u32, sum: &mut EvictedFiles) -> Result<(), OsCacheError> {
    let failed = |action| {
        let path = path.to_path_buf();
        move |source| OsCacheError { path, action, source }
    };
    // Tablespaces are symbolic links, so links are followed, and the depth is limited.
    let metadata = fs::metadata(path).map_err(failed("found"))?;
    if metadata.is_dir() {
        if depth > DEPTH_MAX {
            return Ok(());
        }
        for entry in fs::read_dir(path).map_err(failed("listed"))? {
            evict_recursively(&entry.map_err(failed("listed"))?.path(), depth + 1, sum)?;
        }
        return Ok(());
    }
    let file = open_file(path).map_err(failed("opened"))?;
    // The kernel does not evict dirty pages, so they are written back first.
    file.sync_data().map_err(failed("written back"))?;
    fadvise(&file, 0, None, Advice::DontNeed).map_err(|errno| failed("evicted")(errno.into()))?;
    sum.bytes += metadata.len();
    sum.files += 1;
    Ok(())
}

/// The name of a file of a relation: `FILENODE`, then `_fsm`, `_vm` or `_init`, then `.SEGMENT`.
/// Names of temporary relations start with a `t`, and are not parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SegmentName {
    filenode: u32,
    fork: Fork,
    segment: u32,
}

impl SegmentName {
    fn parse(name: &str) -> Option<Self> {
        let (name, segment) = match name.split_once('.') {
            Some((name, segment)) => (name, Some(segment)),
            None => (name, None),
        };
        let (filenode, fork) = match name.split_once('_') {
            Some((_, "main")) => return None,
            Some((filenode, fork)) => (filenode, Fork::from_name(fork)?),
            None => (name, Fork::Main),
        };
        // `parse()` would accept a sign.
        let number = |text: &str| {
            let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| is_decimal)
        };
        let segment = segment.map_or(Some(0), number)?;
        Some(Self { filenode: number(filenode)?, fork, segment })
    }
}

/// A folder with files of relations.
struct RelationFolder {
    path: PathBuf,
    /// `pg_database.oid`, 0 for the shared catalogs.
    database: u32,
    tablespace: u32,
}

/// Locates the files of a data directory.
#[derive(Debug)]
struct DataDirLayout {
    data_dir: PathBuf,
    /// Prefix of this version's directory in a tablespace.
    version: String,
}

/// `pg_tablespace.oid` of `pg_default` and `pg_global`.
const DEFAULT_TABLESPACE: u32 = 1663;
const GLOBAL_TABLESPACE: u32 = 1664;

impl DataDirLayout {
    fn open(data_dir: &Path) -> Result<Self, OsCacheError> {
        let path = data_dir.join("PG_VERSION");
        let version = fs::read_to_string(&path).map_err(|source| OsCacheError {
            path,
            action: "read",
            source,
        })?;
        let version = format!("PG_{}_", version.trim());
        Ok(Self { data_dir: data_dir.to_path_buf(), version })
    }

    /// Returns the server's major version; `None` if the data directory names none.
    fn major(&self) -> Option<u32> {
        self.version.trim_matches(|char: char| !char.is_ascii_digit()).parse().ok()
    }

    /// Returns the folders of all databases in all tablespaces.
    fn folders(&self) -> Result<Vec<RelationFolder>, OsCacheError> {
        let global = self.data_dir.join("global");
        let mut folders =
            vec![RelationFolder { path: global, database: 0, tablespace: GLOBAL_TABLESPACE }];
        let mut add_databases = |tablespace, folder: &Path| -> Result<(), OsCacheError> {
            for (path, database) in numbered_entries(folder)? {
                folders.push(RelationFolder { path, database, tablespace });
            }
            Ok(())
        };
        add_databases(DEFAULT_TABLESPACE, &self.data_dir.join("base"))?;
        for (path, tablespace) in numbered_entries(&self.data_dir.join("pg_tblspc"))? {
            if let Some(folder) = self.version_folder(&path) {
                add_databases(tablespace, &folder)?;
            }
        }
        Ok(folders)
    }

    /// Returns this version's directory in a tablespace.
    fn version_folder(&self, tablespace: &Path) -> Option<PathBuf> {
        let mut names = fs::read_dir(tablespace).ok()?.flatten();
        let is_ours =
            |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&self.version);
        Some(names.find(is_ours)?.path())
    }

    /// Returns a path for messages about a relation whose tablespace is not found.
    fn missing_file(&self, file: RelationFile) -> PathBuf {
        let RelationFile { database, tablespace, filenode } = file;
        self.data_dir
            .join(format!("pg_tblspc/{tablespace}/{}*/{database}/{filenode}", self.version))
    }

    /// Returns the path of the first segment of a relation's main fork; `None` if its tablespace is
    /// not found.
    fn file(&self, file: RelationFile) -> Option<PathBuf> {
        let RelationFile { database, tablespace, filenode } = file;
        let folder = match tablespace {
            DEFAULT_TABLESPACE => self.data_dir.join(format!("base/{database}")),
            GLOBAL_TABLESPACE => self.data_dir.join("global"),
            other => {
                let tablespace = self.data_dir.join(format!("pg_tblspc/{other}"));
                self.version_folder(&tablespace)?.join(database.to_string())
            }
        };
        Some(folder.join(filenode.to_string()))
    }
}

/// Returns the entries of a folder whose names are numbers.
fn numbered_entries(folder: &Path) -> Result<Vec<(PathBuf, u32)>, OsCacheError> {
    let failed = |source| OsCacheError { path: folder.to_path_buf(), action: "listed", source };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            found.push((entry.path(), number));
        }
    }
    found.sort();
    Ok(found)
}

/// Opens a file of a relation. Refuses others, such as a pipe, on which opening could wait.
fn open_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::RDONLY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::image::{CachedPage, ImageOrigin, ImageSource, Relation};

    #[test]
    fn small_gaps_join_runs() {
        assert_eq!(runs([0, 1, 2, 18, 40, 41].into_iter()), [(0, 19), (40, 42)]);
        assert!(runs(std::iter::empty()).is_empty());
    }

    #[test]
    fn segment_paths_name_fork_and_number() {
        let path = |fork, segment| segment_path(Path::new("base/5/7"), fork, segment);
        assert_eq!(path(Fork::Main, 0), Path::new("base/5/7"));
        assert_eq!(path(Fork::VisibilityMap, 0), Path::new("base/5/7_vm"));
        assert_eq!(path(Fork::Main, 2), Path::new("base/5/7.2"));
    }

    #[test]
    fn names_of_relation_files_are_parsed() {
        let parsed = |name: &str| {
            SegmentName::parse(name).map(|name| (name.filenode, name.fork, name.segment))
        };
        assert_eq!(parsed("16384"), Some((16_384, Fork::Main, 0)));
        assert_eq!(parsed("16384.12"), Some((16_384, Fork::Main, 12)));
        assert_eq!(parsed("16384_vm"), Some((16_384, Fork::VisibilityMap, 0)));
        assert_eq!(parsed("16384_fsm.1"), Some((16_384, Fork::FreeSpaceMap, 1)));
        for other in ["t3_16384", "PG_VERSION", "pg_filenode.map", "1.x", "1_main", "+1", "", "1."]
        {
            assert_eq!(parsed(other), None, "{other}");
        }
    }

    #[test]
    fn blocks_are_found_in_their_segments() {
        let geometry = FileGeometry::default();
        assert_eq!(geometry.segment_blocks(), 131_072);
        assert_eq!(
            [0, 131_071, 131_072, u32::MAX].map(|it| geometry.segment(it)),
            [0, 0, 1, 32_767]
        );
        assert_eq!(geometry.first_block(3), Some(393_216));
        assert_eq!(geometry.first_block(40_000), None);
        let odd = FileGeometry { page_bytes: 0, segment_bytes: 0 };
        assert_eq!(odd.segment(7), 7);
    }

    fn image(files: &[(RelationFile, u32)]) -> CacheImage {
        let relation = |&(file, blocks): &(RelationFile, u32)| Relation {
            file,
            name: None,
            is_logged: true,
            forks: vec![CachedFork {
                fork: Fork::Main,
                length: None,
                pages: (0..blocks)
                    .map(|block| CachedPage { block, usage: (block % 6) as u8, is_dirty: false })
                    .collect(),
            }],
            keys: None,
        };
        CacheImage {
            origin: ImageOrigin {
                server_version: 150_000,
                system_identifier: 1,
                page_bytes: 8192,
                buffers: 100,
                taken_at_us: 0,
                source: ImageSource::Memory,
            },
            databases: BTreeMap::new(),
            relations: files.iter().map(relation).collect(),
        }
    }

    #[test]
    fn files_are_found_in_all_tablespaces() {
        let folder = tempfile::tempdir().unwrap();
        let own = "pg_tblspc/900/PG_15_202209061/5";
        for name in ["base/5", "global", own, "pg_tblspc/900/PG_16_202307071/5"] {
            fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        fs::write(folder.path().join("PG_VERSION"), "15\n").unwrap();
        for file in ["base/5/10", "global/11", &format!("{own}/12")] {
            fs::write(folder.path().join(file), vec![0; 8192 * 40]).unwrap();
        }
        let at = |tablespace, filenode| RelationFile { database: 5, tablespace, filenode };
        let image =
            image(&[(at(1663, 10), 40), (at(1664, 11), 1), (at(900, 12), 40), (at(901, 13), 4)]);
        let done = read_ahead(&image, folder.path(), &|| true).unwrap();
        assert_eq!((done.files, done.missing), (5, 1), "{done:?}");
        assert!(done.bytes >= 81 * 8192, "{done:?}");
        let evicted = evict(folder.path()).unwrap();
        assert_eq!(evicted, EvictedFiles { bytes: 3 * 40 * 8192, files: 3 });
        assert_eq!(read_ahead(&image, folder.path(), &|| false).unwrap(), ReadAhead::default());
    }

    #[test]
    fn invalid_data_directory_is_named_in_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = read_ahead(&image(&[]), folder.path(), &|| true).unwrap_err();
        assert!(error.to_string().ends_with("PG_VERSION could not be read"), "{error}");
        assert!(evict(folder.path()).is_err());
    }
}
