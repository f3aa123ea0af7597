//! Warms a server for a limited time before it receives traffic, for callers such as a pooler that
//! readmits a server after a restart or adds a standby.
//!
//! ```no_run
//! use std::{sync::Arc, time::{Duration, Instant}};
//!
//! use howdah_connect::{ConnParams, ConnectTarget, Environment};
//! use howdah_warm::{CacheImage, load::LoadOptions, ready::{ReadyTimeouts, warm_before}};
//!
//! let params = ConnParams::from_conninfo("postgresql://warmer@standby2/shop");
//! let target = ConnectTarget::resolve(&params, &Environment::from_process())?;
//! let image = Arc::new(CacheImage::open("/var/lib/howdah/warm/newest.cache")?);
//! let timeouts = ReadyTimeouts { until: Instant::now() + Duration::from_secs(20), enough: 0.6 };
//! let readiness = warm_before(&target, &image, &LoadOptions::default(), timeouts)?;
//! println!("{:.0} % warm: ready for traffic", readiness.share() * 100.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Pages are loaded hottest first, so a part of the image serves more than its share of the
//! traffic. Callers that ramp up traffic can start with [`Readiness::share`] as the weight.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use howdah_connect::ConnectTarget;

use crate::{
    CacheImage,
    load::{self, LoadError, LoadObserver, LoadOptions},
};

/// The conditions under which warming stops.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReadyTimeouts {
    /// Deadline at which [`warm_before`] returns, even if the server is not warm enough.
    pub until: Instant,
    /// Share of the planned pages, 0 to 1, at which the server is warm enough and loading stops.
    pub enough: f64,
}

/// Progress of warming a server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Readiness {
    /// Planned pages: those of the image that are missing from the cache and have room in it.
    /// `None` until the plan is made.
    pub planned: Option<u64>,
    /// Number of planned pages that were loaded or skipped so far.
    pub done: u64,
    /// Whether loading has ended. If not, it stops in the background once its current statements
    /// end.
    pub has_ended: bool,
    /// Time since [`warm_before`] was called.
    pub elapsed: Duration,
}

impl Readiness {
    /// Returns the share of the planned pages that were loaded or skipped, 0 to 1; 0 until the plan
    /// is made.
    pub fn share(&self) -> f64 {
        match self.planned {
            None => 0.0,
            Some(0) => 1.0,
            Some(planned) => (self.done as f64 / planned as f64).min(1.0),
        }
    }
}

/// Loads `image` into the server at `target`, and returns when enough is loaded or time is up.
///
/// Blocks until `timeouts.until` at most, whatever the server does: loading happens on separate
/// threads, which may end later. Meant for a server that does not receive traffic yet, but works
/// with any.
///
/// # Errors
///
/// Nothing can be loaded at all, as for [`load::load`]. That is not a reason to withhold traffic.
pub fn warm_before(
    target: &ConnectTarget,
    image: &Arc<CacheImage>,
    options: &LoadOptions,
    timeouts: ReadyTimeouts,
) -> Result<Readiness, LoadError> {
    let start = Instant::now();
    let left = timeouts.until.saturating_duration_since(start);
    let options = LoadOptions {
        connect_timeout: options.connect_timeout.min(left),
        lock_timeout: options.lock_timeout.min(left.max(Duration::from_millis(1))),
        ..options.clone()
    };
    let progress = Arc::new(ReadyProgress { planned: u64::MAX.into(), done: 0.into(), timeouts });
    let (sender, ended) = mpsc::channel();
    let (theirs, image, target) = (Arc::clone(&progress), Arc::clone(image), target.clone());
    thread::spawn(move || {
        let result = load::load(&image, &target, &options, &*theirs);
        // The receiver is gone if time was up.
        let _ = sender.send(result.map(drop));
    });
    let has_ended = match ended.recv_timeout(left) {
        Ok(result) => result.map(|()| true)?,
        Err(_) => false,
    };
    let planned = progress.planned.load(Ordering::Relaxed);
    Ok(Readiness {
        planned: (planned != u64::MAX).then_some(planned),
        done: progress.done.load(Ordering::Relaxed),
        has_ended,
        elapsed: start.elapsed(),
    })
}

/// Progress of a running load.
struct ReadyProgress {
    /// Number of planned pages; `u64::MAX` until the plan is made.
    planned: AtomicU64,
    done: AtomicU64,
    timeouts: ReadyTimeouts,
}

impl LoadObserver for ReadyProgress {
    fn planned(&self, pages: u64) {
        self.done.store(0, Ordering::Relaxed);
        self.planned.store(pages, Ordering::Relaxed);
    }

    fn progressed(&self, pages: u64) {
        self.done.fetch_add(pages, Ordering::Relaxed);
    }

    fn should_stop(&self) -> bool {
        let planned = self.planned.load(Ordering::Relaxed);
        let done = self.done.load(Ordering::Relaxed) as f64;
        let is_enough = planned != u64::MAX && done >= planned as f64 * self.timeouts.enough;
        is_enough || Instant::now() >= self.timeouts.until
    }
}

#[test]
fn share_is_relative_to_planned_pages() {
    let share = |planned, done| {
        Readiness { planned, done, has_ended: true, elapsed: Duration::ZERO }.share()
    };
    assert_eq!(share(None, 0), 0.0, "not known yet");
    assert_eq!(share(Some(0), 0), 1.0, "everything was cached");
    assert_eq!(share(Some(200), 50), 0.25);
}
