//! Loads an image into a server: the hottest pages first, in disk order, over several connections,
//! and by default only into free buffers.
//!
//! 1. The relations of the image are located (`catalog`): on the image's own cluster by file
//!    number, so they may have been renamed; elsewhere by name, so they may have been rewritten or
//!    restored, or be those of another server. Of those, the pages are found by the keys of rows in
//!    the image (`row_lookup`, `block_mapping`).
//! 2. Pages that are cached already are omitted, and the free room determines what is loaded
//!    (`occupancy`, `plan`).
//! 3. Connections take chunks of the plan until none is left (`queue`, `worker`), each by a method
//!    that the server permits (`method`), at a limited rate (`throttle`).
//! 4. The cache is scanned again, to report how much of the image and of the plan it contains.
//! 5. Pages are touched again until they have the usage counts of the image (`touch`,
//!    `plan::touches`), within a budget of CPU time (`backend_cpu`).
//!
//! If the server restarts during a load, the loaded pages are lost, and the load starts over. A
//! problem with a single relation (a lock, a missing privilege) is part of the result and does not
//! affect the others.

mod attempt;
mod backend_cpu;
mod block_mapping;
mod catalog;
mod forecast;
mod load_threads;
mod method;
mod occupancy;
mod plan;
mod queue;
mod report;
mod row_lookup;
mod session;
pub mod table;
mod throttle;
mod touch;
mod worker;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use howdah_connect::ConnectTarget;

use crate::{
    dump::{DumpSource, QueryFailure},
    image::{CacheImage, ForkBlocks},
};

pub use forecast::{ASSUMED_RATES, LoadForecast, RateBasis, SAMPLE_BYTES_MAX, TimeEstimate};
pub use method::{LoadMethod, PrewarmMode};
pub use report::{
    LoadReport, PageCounts, PageMapping, RelationOutcome, RelationProblem, RenamedRelation,
    Residency, ResidencyError, UsageReport,
};

use attempt::{Attempt, AttemptResult};
pub(crate) use throttle::Throttle;

/// The options of a load, including its limits.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadOptions {
    /// Number of connections that load pages, 1 to [`MAX_JOBS`].
    pub jobs: usize,
    /// Maximum rate over all connections, in bytes per second; unlimited if `None`.
    pub bytes_per_second: Option<u64>,
    /// Latency of a small query above which loading slows down; not measured if `None`.
    pub max_latency: Option<Duration>,
    /// Whether a load may evict other pages from the cache. If not, pages are skipped once no
    /// buffer is free.
    pub evict: bool,
    /// Maximum number of pages to load, the hottest ones; the others are treated as if they were
    /// not in the image. Unlimited if `None`.
    pub limit: Option<u64>,
    /// Maps the names of databases in the image to their names on the server, where they differ.
    pub database_names: BTreeMap<String, String>,
    /// Maps the names of schemas in the image to their names on the server, in all databases.
    /// Relations in these schemas are found by name even on the image's own cluster.
    pub schema_names: BTreeMap<String, String>,
    /// Maximum wait for a lock on a relation.
    pub lock_timeout: Duration,
    /// Maximum wait for an unreachable or starting server, whenever a connection is made.
    pub connect_timeout: Duration,
    /// Source from which the cached pages are read, before and after the load.
    pub dump_source: DumpSource,
    /// Whether to load nothing, and only report how much is cached.
    pub dry_run: bool,
    /// Whether to restore the usage counts of the image after loading, at a cost of at most 0.3 of
    /// the load's CPU time. Otherwise every loaded page has the count 1, so that the first scan of
    /// a cold table evicts hot pages like any others.
    pub restore_usage: bool,
    /// Whether `restore_usage` also applies to pages that were in the cache before the load. It
    /// should not if the server has its own work, whose pages would have to yield to them.
    pub raise_resident: bool,
}

/// Maximum value of [`LoadOptions::jobs`].
pub const MAX_JOBS: usize = 64;

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            jobs: 2,
            bytes_per_second: None,
            max_latency: None,
            evict: false,
            limit: None,
            database_names: BTreeMap::new(),
            schema_names: BTreeMap::new(),
            lock_timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(60),
            dump_source: DumpSource::Best,
            dry_run: false,
            restore_usage: true,
            raise_resident: true,
        }
    }
}

/// Observes a load. Its methods are called from several threads, and should return quickly.
pub trait LoadObserver: Sync {
    /// Called when the load is planned: `pages` will be loaded, or would be in a dry run. Called
    /// again when the load starts over.
    fn planned(&self, pages: u64) {
        let _ = pages;
    }

    /// Called after another `pages` pages were loaded or skipped.
    fn progressed(&self, pages: u64) {
        let _ = pages;
    }

    /// Called for each event while the load runs.
    fn notify(&self, event: &LoadEvent) {
        let _ = event;
    }

    /// Whether the load should stop early. Loaded pages stay in the cache.
    fn should_stop(&self) -> bool {
        false
    }
}

/// Ignores all events.
impl LoadObserver for () {}

/// An event that interrupts a load.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadEvent {
    /// The server is unreachable; the load waits for it.
    Waiting {
        /// The most recent failure to reach the server.
        failure: QueryFailure,
    },
    /// The server was restarted: the loaded pages are lost, and the load starts over.
    Restarted,
}

/// An error that prevents a load entirely.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The server could not be queried.
    #[error("cannot query the server")]
    Server(#[source] QueryFailure),
    /// The image and the server have different page sizes.
    #[error("the image has pages of {image} bytes, the server has pages of {server} bytes")]
    PageBytes {
        /// Page size of the image.
        image: u32,
        /// Page size of the server.
        server: u32,
    },
    /// The server restarted during every attempt.
    #[error("the server restarted {times} times during the load")]
    Restarts {
        /// Number of restarts after which the load gave up.
        times: u32,
    },
}

/// Loads `image` into the server at `target`. Role and parameters of `target` are used for all
/// databases.
///
/// Blocks until the load has finished; see [`LoadObserver::should_stop`]. Loading the same image
/// again resumes where the last load stopped, since cached pages are omitted.
///
/// # Errors
///
/// The server cannot be queried at all, has another page size, or restarted during every attempt.
/// Problems with single relations and databases are part of the result: see
/// [`LoadReport::outcomes`].
pub fn load(
    image: &CacheImage,
    target: &ConnectTarget,
    options: &LoadOptions,
    observer: &dyn LoadObserver,
) -> Result<LoadReport, LoadError> {
    let started = Instant::now();
    let all = image.page_count();
    let hottest = options.limit.filter(|&limit| limit < all).map(|limit| image.hottest(limit));
    let image = hottest.as_ref().unwrap_or(image);
    let limited = all - image.page_count();
    for _ in 0..ATTEMPTS_MAX {
        match Attempt::new(image, target, options, observer)?.run()? {
            AttemptResult::Done(loaded) => {
                return Ok(LoadReport { elapsed: started.elapsed(), limited, ..*loaded });
            }
            AttemptResult::Restarted => observer.notify(&LoadEvent::Restarted),
        }
    }
    Err(LoadError::Restarts { times: ATTEMPTS_MAX })
}

/// Forecasts the load of `image` into the server at `target`, without loading anything into its
/// buffers. Reads a sample of at most [`SAMPLE_BYTES_MAX`] to estimate the time.
///
/// # Errors
///
/// The server cannot be queried at all, or has another page size. Problems with single relations
/// and databases are part of the forecast.
pub fn forecast(
    image: &CacheImage,
    target: &ConnectTarget,
    options: &LoadOptions,
    observer: &dyn LoadObserver,
) -> Result<LoadForecast, LoadError> {
    let all = image.page_count();
    let hottest = options.limit.filter(|&limit| limit < all).map(|limit| image.hottest(limit));
    let image = hottest.as_ref().unwrap_or(image);
    let limited = all - image.page_count();
    let options = LoadOptions { dry_run: false, ..options.clone() };
    let forecast = Attempt::new(image, target, &options, observer)?.forecast();
    Ok(LoadForecast { limited, ..forecast })
}

/// Finds the present files of an image's relations on the server at `target`, and the blocks there
/// that correspond to the image's pages. Also returns the outcome of each relation, in the order of
/// the image: those that were not found, and pages beyond the end. Loads nothing.
///
/// # Errors
///
/// The server cannot be queried at all, or has another page size.
pub fn locate_blocks(
    image: &CacheImage,
    target: &ConnectTarget,
    options: &LoadOptions,
    observer: &dyn LoadObserver,
) -> Result<(Vec<ForkBlocks>, Vec<RelationOutcome>), LoadError> {
    Ok(Attempt::new(image, target, options, observer)?.locate_blocks())
}

/// Maximum number of attempts, since a load may be what crashes the server.
const ATTEMPTS_MAX: u32 = 5;
