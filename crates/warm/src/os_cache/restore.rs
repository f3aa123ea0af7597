//! Brings pages of a server's files into the operating system's page cache.
//!
//! 1. The kernel is asked to read pages that are not cached (posix_fadvise(2), `WILLNEED`), file by
//!    file and in the order of their blocks, at a limited rate. It reads asynchronously, and may
//!    ignore this.
//! 2. [`WINDOW_BYTES`] later, pages that are still not cached are read, which waits for them.
//! 3. At the end it is counted how many of the pages are cached. Pages may have been evicted
//!    meanwhile, if there is not enough memory.
//!
//! A process that may only read the files cannot see what is cached. It then reads all pages, which
//! costs a copy of those that are cached, and the result is not counted.

use std::{
    collections::VecDeque,
    fs::File,
    num::NonZeroU64,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::fs::{Advice, fadvise};

use super::{
    DataDirLayout, FileGeometry, OsCacheError, REQUEST_BYTES, open_file, resident_pages, runs,
    segment_path,
};
use crate::{
    image::{CacheImage, ForkBlocks, Relation},
    load::{LoadObserver, Throttle},
};

/// The result of [`restore`]. Counts are in pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreReport {
    /// Pages to cache, whether their files exist or not.
    pub requested: u64,
    /// Pages that were cached before; `None` if the kernel does not show that to this process.
    pub resident_before: Option<u64>,
    /// Pages that are cached at the end; `None` if the kernel does not show that to this process.
    pub resident: Option<u64>,
    /// Pages whose file does not exist or cannot be opened.
    pub missing: u64,
    /// The first of these files, and why it cannot be opened.
    pub first_missing: Option<(PathBuf, String)>,
    /// Pages beyond the end of their file.
    pub beyond_end: u64,
    /// Whether it was stopped early.
    pub is_cut_short: bool,
    /// Wall-clock time.
    pub elapsed: Duration,
}

impl RestoreReport {
    /// Returns the share of the pages in the cache, 0 to 1; `None` if that is not known. Pages
    /// beyond the end of their file do not count, those of missing files do.
    pub fn share(&self) -> Option<f64> {
        let expected = self.requested - self.beyond_end;
        let share = |resident: u64| (resident as f64 / expected.max(1) as f64).min(1.0);
        self.resident.map(|resident| if expected == 0 { 1.0 } else { share(resident) })
    }
}

/// Returns the blocks of an image, by the files that it records. They are those of the present
/// server only if nothing was rewritten since.
pub fn blocks_by_file(image: &CacheImage) -> Vec<ForkBlocks> {
    image.relations.iter().flat_map(blocks_of).collect()
}

/// Returns the blocks of one relation of an image, by the file that it records.
pub fn blocks_of(relation: &Relation) -> impl Iterator<Item = ForkBlocks> {
    relation.forks.iter().map(|fork| ForkBlocks {
        file: relation.file,
        fork: fork.fork,
        blocks: fork.pages.iter().map(|page| page.block).collect(),
    })
}

/// Caches pages of the files in `data_dir`. The server may be running. Needs only permission to
/// read the files.
///
/// # Errors
///
/// `data_dir` is not a data directory, or not accessible. Missing single files are counted.
pub fn restore(
    blocks: &[ForkBlocks],
    data_dir: &Path,
    geometry: FileGeometry,
    bytes_per_second: Option<u64>,
    observer: &dyn LoadObserver,
) -> Result<RestoreReport, OsCacheError> {
    let started_at = Instant::now();
    let layout = DataDirLayout::open(data_dir)?;
    let segments = segments(&layout, blocks, geometry);
    let requested = segments.iter().map(|segment| segment.blocks.len() as u64).sum();
    observer.planned(requested);
    let restore = FileRestore {
        geometry,
        observer,
        throttle: Throttle::new(bytes_per_second, None),
        report: RestoreReport {
            requested,
            resident_before: Some(0),
            resident: Some(0),
            ..RestoreReport::default()
        },
    };
    Ok(RestoreReport { elapsed: started_at.elapsed(), ..restore.run(segments) })
}

/// Bytes that the kernel is asked to read before waiting for the first of them.
const WINDOW_BYTES: u64 = 64 << 20;

/// The requested pages of one file.
struct SegmentBlocks {
    path: PathBuf,
    /// Numbers of pages in the file, ascending.
    blocks: Vec<u64>,
}

/// Distributes blocks over the segments of their forks, in the order of files.
fn segments(
    layout: &DataDirLayout,
    blocks: &[ForkBlocks],
    geometry: FileGeometry,
) -> Vec<SegmentBlocks> {
    let mut sorted: Vec<&ForkBlocks> = blocks.iter().collect();
    sorted.sort_by_key(|fork| (fork.file, fork.fork));
    let mut segments = Vec::new();
    for ForkBlocks { file, fork, blocks } in sorted {
        // Without its tablespace, the path is one that does not exist.
        let file = layout.file(*file).unwrap_or_else(|| layout.missing_file(*file));
        for blocks in blocks.chunk_by(|a, b| geometry.segment(*a) == geometry.segment(*b)) {
            let Some(&first) = blocks.first() else { continue };
            let segment = geometry.segment(first);
            let start = segment * geometry.segment_blocks();
            segments.push(SegmentBlocks {
                path: segment_path(&file, *fork, segment),
                blocks: blocks.iter().map(|&block| u64::from(block) - start).collect(),
            });
        }
    }
    segments
}

/// A running restore.
struct FileRestore<'a> {
    geometry: FileGeometry,
    observer: &'a dyn LoadObserver,
    throttle: Throttle,
    report: RestoreReport,
}

impl FileRestore<'_> {
    fn run(mut self, segments: Vec<SegmentBlocks>) -> RestoreReport {
        let mut found = Vec::new();
        // Segments with requested pages that were not awaited yet, and the number of their bytes.
        let (mut pending, mut pending_bytes) = (VecDeque::new(), 0);
        for segment in segments {
            if self.observer.should_stop() {
                self.report.is_cut_short = true;
                break;
            }
            let Some((segment, bytes)) = self.request(segment) else { continue };
            pending.push_back((segment, bytes));
            pending_bytes += bytes;
            while pending_bytes > WINDOW_BYTES
                && let Some((segment, bytes)) = pending.pop_front()
            {
                self.read_missing(&segment);
                pending_bytes -= bytes;
                found.push(segment);
            }
        }
        for (segment, _) in pending {
            self.read_missing(&segment);
            found.push(segment);
        }
        for segment in &found {
            let count = self.resident(segment);
            add(&mut self.report.resident, count);
        }
        self.report
    }

    /// Asks the kernel to read a segment's pages that are not cached. Returns the segment with the
    /// pages that exist, and the number of requested bytes.
    fn request(&mut self, mut segment: SegmentBlocks) -> Option<(SegmentBlocks, u64)> {
        let all = segment.blocks.len() as u64;
        let file = match open_file(&segment.path) {
            Ok(file) => file,
            Err(error) => {
                self.report.missing += all;
                let missing = || (segment.path.clone(), error.to_string());
                self.report.first_missing.get_or_insert_with(missing);
                self.observer.progressed(all);
                return None;
            }
        };
        let page_bytes = u64::from(self.geometry.page_bytes);
        let pages = file.metadata().map_or(0, |metadata| metadata.len() / page_bytes);
        segment.blocks.truncate(segment.blocks.partition_point(|&block| block < pages));
        let beyond_end = all - segment.blocks.len() as u64;
        self.report.beyond_end += beyond_end;
        self.observer.progressed(beyond_end);
        let missing = self.missing(&segment, &file);
        let before = missing.as_ref().map(|missing| (segment.blocks.len() - missing.len()) as u64);
        add(&mut self.report.resident_before, before);
        let mut requested = 0;
        for (first, end) in runs(missing.unwrap_or_else(|| segment.blocks.clone()).into_iter()) {
            let (mut at, end) = (first * page_bytes, end * page_bytes);
            while at < end && !self.observer.should_stop() {
                let bytes = REQUEST_BYTES.min(end - at);
                self.throttle.admit(bytes, || self.observer.should_stop());
                // The kernel may ignore advice; errors do not matter.
                let _ = fadvise(&file, at, NonZeroU64::new(bytes), Advice::WillNeed);
                requested += bytes;
                at += bytes;
            }
        }
        Some((segment, requested))
    }

    /// Reads a segment's requested pages that are still not cached, or all of them if that is not
    /// visible. Errors do not matter: the pages count as not cached at the end.
    fn read_missing(&mut self, segment: &SegmentBlocks) {
        if let Ok(file) = open_file(&segment.path) {
            let page_bytes = u64::from(self.geometry.page_bytes);
            let missing = self.missing(segment, &file).unwrap_or_else(|| segment.blocks.clone());
            let mut buffer = vec![0; usize::try_from(REQUEST_BYTES).unwrap_or(1 << 17)];
            for (first, end) in exact_runs(missing.into_iter()) {
                let (mut at, end) = (first * page_bytes, end * page_bytes);
                while at < end && !self.observer.should_stop() {
                    let bytes = buffer.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
                    match file.read_at(&mut buffer[..bytes], at) {
                        Ok(0) | Err(_) => break,
                        Ok(read) => at += read as u64,
                    }
                }
            }
        }
        self.report.is_cut_short |= self.observer.should_stop();
        self.observer.progressed(segment.blocks.len() as u64);
    }

    /// Returns the requested pages of a segment that are not cached; `None` if that is not visible.
    fn missing(&self, segment: &SegmentBlocks, file: &File) -> Option<Vec<u64>> {
        if !resident_pages::is_visible(&segment.path, file).ok()? {
            return None;
        }
        let page_bytes = self.geometry.page_bytes;
        let end = segment.blocks.last().map_or(0, |last| last + 1);
        // The file may have been truncated meanwhile.
        let bytes = file.metadata().ok()?.len().min(end * u64::from(page_bytes));
        let resident = resident_pages::resident_pages(file, bytes, page_bytes).ok()?;
        let is_cached = |block: u64| {
            usize::try_from(block).is_ok_and(|block| resident.get(block) == Some(&true))
        };
        Some(segment.blocks.iter().copied().filter(|&block| !is_cached(block)).collect())
    }

    fn resident(&self, segment: &SegmentBlocks) -> Option<u64> {
        let file = open_file(&segment.path).ok();
        let missing = file.map_or(Some(segment.blocks.len()), |file| {
            self.missing(segment, &file).map(|missing| missing.len())
        });
        missing.map(|missing| (segment.blocks.len() - missing) as u64)
    }
}

fn add(sum: &mut Option<u64>, count: Option<u64>) {
    *sum = sum.zip(count).map(|(sum, count)| sum + count);
}

/// Groups ascending blocks into runs of adjacent ones, given as first block and end (exclusive).
fn exact_runs(blocks: impl Iterator<Item = u64>) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for block in blocks {
        match runs.last_mut() {
            Some((_, end)) if block == *end => *end += 1,
            _ => runs.push((block, block + 1)),
        }
    }
    runs
}
