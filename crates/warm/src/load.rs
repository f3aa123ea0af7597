//! Loads an image into a server: the hottest pages first, in the order of the disk, over several
//! connections, without pushing out what is in use.
//!
//! 1. The relations of the image are looked up: on the cluster of the image by file number, so they may
//!    have been renamed, else by name, so they may have been rewritten, restored or belong to another
//!    server (`catalog`).
//! 2. What is in the cache already is left out, and how much room there is decides what is loaded
//!    (`occupancy`, `plan`).
//! 3. Connections take pieces of the plan until none is left (`queue`, `worker`), each by the way that
//!    the server lets us go (`way`), no faster than allowed (`throttle`).
//! 4. The cache is looked at again: how much of the image is there, and how much of the plan?
//!
//! When the server restarts meanwhile, what was loaded is lost, and all of this begins anew. What stops a
//! single relation (a lock, a missing right) is told with the result and stops no other.

mod attempt;
mod catalog;
mod crew;
mod occupancy;
mod plan;
mod queue;
mod report;
mod session;
pub mod table;
mod throttle;
mod way;
mod worker;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use howdah_connect::Target;

use crate::{
    dump::{Choice, QueryFailure},
    image::CacheImage,
};

pub use report::{Loaded, Outcome, Pages, Problem, Renamed, Residency, Unseen};
pub use way::{Mode, Way};

use attempt::{Attempt, Ended};

/// How to load.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Connections that load at once, 1 to [`MAX_JOBS`].
    pub jobs: usize,
    /// Bytes a second over all connections, if there is a limit.
    pub bytes_per_second: Option<u64>,
    /// Loading slows down while a small query of its own takes longer than this.
    pub max_latency: Option<Duration>,
    /// Whether pages of others may be pushed out. Without it, loading ends where no buffer is free.
    pub evict: bool,
    /// Only so many pages of the image, the hottest: the others are left out as if they were not in
    /// it.
    pub limit: Option<u64>,
    /// Databases of the image that have another name on the server: its name there, by the name in the
    /// image.
    pub database_names: BTreeMap<String, String>,
    /// How long a lock on a relation is waited for.
    pub lock_timeout: Duration,
    /// How long a server that does not answer is waited for, at the start and in between.
    pub patience: Duration,
    /// How the cache is looked at, before and after.
    pub look: Choice,
    /// Load nothing, only look how much is there.
    pub only_look: bool,
}

/// Most connections that load at once.
pub const MAX_JOBS: usize = 64;

impl Default for Options {
    fn default() -> Self {
        Self {
            jobs: 2,
            bytes_per_second: None,
            max_latency: None,
            evict: false,
            limit: None,
            database_names: BTreeMap::new(),
            lock_timeout: Duration::from_secs(1),
            patience: Duration::from_secs(60),
            look: Choice::Best,
            only_look: false,
        }
    }
}

/// Who watches a load. Its methods are called from several threads, and should return soon.
pub trait Observer: Sync {
    /// So many pages will be loaded. Said again when all begins anew.
    fn planned(&self, pages: u64) {
        let _ = pages;
    }

    /// So many pages more were loaded, or given up.
    fn advanced(&self, pages: u64) {
        let _ = pages;
    }

    /// Something a person would like to know while it happens.
    fn said(&self, event: &Event) {
        let _ = event;
    }

    /// Whether to end early. What was loaded stays.
    fn wants_end(&self) -> bool {
        false
    }
}

/// Nobody watches.
impl Observer for () {}

/// What happens while loading.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// The server does not answer and is waited for.
    Waiting {
        /// What it said last.
        failure: QueryFailure,
    },
    /// The server was restarted: what was loaded is lost, all begins anew.
    Restarted,
}

/// Why nothing was loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The server could not be asked what it holds.
    #[error("the server could not be asked about itself")]
    Server(#[source] QueryFailure),
    /// Pages of the image have another size than those of the server.
    #[error("the image is of pages of {image} bytes, the server's pages have {server}")]
    PageBytes {
        /// Of the image.
        image: u32,
        /// Of the server.
        server: u32,
    },
    /// The server restarted again and again.
    #[error("the server restarted {times} times while it was loaded")]
    Restarts {
        /// How often.
        times: u32,
    },
}

/// Loads `image` into the server at `target`, whose role and settings serve for all its databases.
///
/// Blocks until all is done; see [`Observer::wants_end`]. Loading the same image again goes on where
/// the last load ended, for what is there is left out.
///
/// # Errors
///
/// The server cannot be asked at all. What goes wrong with single relations and databases is in the
/// result: see [`Loaded::outcomes`].
pub fn load(
    image: &CacheImage,
    target: &Target,
    options: &Options,
    observer: &dyn Observer,
) -> Result<Loaded, LoadError> {
    let started = Instant::now();
    let all = image.page_count();
    let hottest = options.limit.filter(|&limit| limit < all).map(|limit| image.hottest(limit));
    let image = hottest.as_ref().unwrap_or(image);
    let limited = all - image.page_count();
    for _ in 0..RESTARTS_MAX {
        match Attempt::new(image, target, options, observer)?.run()? {
            Ended::Done(loaded) => {
                return Ok(Loaded { elapsed: started.elapsed(), limited, ..*loaded });
            }
            Ended::Restarted => observer.said(&Event::Restarted),
        }
    }
    Err(LoadError::Restarts { times: RESTARTS_MAX })
}

/// How often a load begins anew. A server that crashes while it is loaded may do so because of it.
const RESTARTS_MAX: u32 = 5;
