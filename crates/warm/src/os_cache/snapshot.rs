//! Takes an image of the operating system's page cache: the cached pages of a server's files.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use super::{DataDirLayout, FileGeometry, OsCacheError, SegmentName, open_file, resident_pages};
use crate::{
    autoprewarm,
    image::{
        CacheImage, CachedFork, CachedPage, CachedPages, Fork, ImageOrigin, ImageSource, Relation,
        RelationFile,
    },
};

/// The result of [`snapshot`].
#[derive(Debug)]
pub struct OsCacheSnapshot {
    /// The cached pages, with usage count 1. Relations have no names: see
    /// [`name_relations`](crate::dump::name_relations).
    pub image: CacheImage,
    /// Number of files of relations that were examined.
    pub files: u64,
    /// Total size of these files, in pages.
    pub pages: u64,
}

/// Finds the pages of a data directory's files, tablespaces included, that are in the operating
/// system's page cache. The server may be running. Stops early if `should_continue` returns false.
///
/// Reads no data, so the cache stays as it is.
///
/// # Errors
///
/// `data_dir` is not a data directory. A file cannot be opened, except if it was dropped meanwhile,
/// or is not visible to this process: the operating system shows what is cached only to the owner
/// of a file, and to processes that may write it.
pub fn snapshot(
    data_dir: &Path,
    geometry: FileGeometry,
    should_continue: &dyn Fn() -> bool,
) -> Result<OsCacheSnapshot, OsCacheError> {
    let layout = DataDirLayout::open(data_dir)?;
    let identifier = autoprewarm::system_identifier(data_dir).map_err(|source| OsCacheError {
        path: data_dir.join("global/pg_control"),
        action: "read",
        source,
    })?;
    let origin = ImageOrigin {
        server_version: layout.major().unwrap_or(0) * 10_000,
        system_identifier: identifier.unwrap_or(0),
        page_bytes: geometry.page_bytes,
        buffers: 0,
        taken_at_us: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .ok()
            .and_then(|since| i64::try_from(since.as_micros()).ok())
            .unwrap_or(0),
        source: ImageSource::OsCache,
    };
    let mut image = CacheImage { origin, databases: BTreeMap::new(), relations: Vec::new() };
    let mut taken = OsCacheSnapshot { image, files: 0, pages: 0 };
    let mut relations: BTreeMap<RelationFile, Vec<CachedFork>> = BTreeMap::new();
    for ((file, fork), segments) in find_segments(&layout)? {
        if !should_continue() {
            break;
        }
        let (pages, length) = cached_pages(&segments, geometry, &mut taken)?;
        if !pages.is_empty() {
            let forks = relations.entry(file).or_default();
            forks.push(CachedFork { fork, length: Some(length), pages });
        }
    }
    let relations = relations.into_iter();
    taken.image.relations = relations
        .map(|(file, forks)| Relation { file, name: None, is_logged: true, forks, keys: None })
        .collect();
    image = taken.image;
    Ok(OsCacheSnapshot { image, ..taken })
}

type Segments = BTreeMap<u32, PathBuf>;

/// Finds the files of all relations, by relation and fork, then by segment.
fn find_segments(
    layout: &DataDirLayout,
) -> Result<BTreeMap<(RelationFile, Fork), Segments>, OsCacheError> {
    let mut found: BTreeMap<(RelationFile, Fork), Segments> = BTreeMap::new();
    for folder in layout.folders()? {
        let failed = |source| OsCacheError { path: folder.path.clone(), action: "listed", source };
        let entries = match fs::read_dir(&folder.path) {
            // The database was dropped.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            // A pipe, a folder.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => continue,
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let Some(SegmentName { filenode, fork, segment }) =
                name.to_str().and_then(SegmentName::parse)
            else {
                continue;
            };
            let file =
                RelationFile { database: folder.database, tablespace: folder.tablespace, filenode };
            found.entry((file, fork)).or_default().insert(segment, entry.path());
        }
    }
    Ok(found)
}

/// Returns the cached pages of a fork, and its length in pages.
fn cached_pages(
    segments: &Segments,
    geometry: FileGeometry,
    taken: &mut OsCacheSnapshot,
) -> Result<(CachedPages, u32), OsCacheError> {
    let (mut pages, mut length) = (Vec::new(), 0);
    for (&segment, path) in segments {
        let failed = |action| {
            let path = path.clone();
            move |source| OsCacheError { path, action, source }
        };
        let file = match open_file(path) {
            // The relation was dropped.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file.map_err(failed("opened"))?,
        };
        let bytes = file.metadata().map_err(failed("examined"))?.len();
        let bytes = bytes.min(geometry.segment_bytes);
        taken.files += 1;
        taken.pages += bytes / u64::from(geometry.page_bytes);
        if bytes == 0 {
            continue;
        }
        if !resident_pages::is_visible(path, &file).map_err(failed("examined"))? {
            let source = io::Error::new(
                io::ErrorKind::PermissionDenied,
                "the kernel shows what is cached only to the file's owner and to those who may \
                 write it",
            );
            return Err(failed("examined")(source));
        }
        let resident = resident_pages::resident_pages(&file, bytes, geometry.page_bytes)
            .map_err(failed("examined"))?;
        let Some(first) = geometry.first_block(segment) else { continue };
        length = first.saturating_add(u32::try_from(resident.len()).unwrap_or(u32::MAX));
        let cached = (first..).zip(resident).filter(|(_, is_resident)| *is_resident);
        pages.extend(cached.map(|(block, _)| CachedPage { block, usage: 1, is_dirty: false }));
    }
    Ok((pages.into_iter().collect(), length))
}
