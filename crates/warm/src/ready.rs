//! For who is about to give a server traffic, such as a pooler that lets one back in after a restart or
//! adds a standby: warm it first, for a limited time.
//!
//! ```no_run
//! use std::{sync::Arc, time::{Duration, Instant}};
//!
//! use howdah_connect::{Environment, Target, Words};
//! use howdah_warm::{CacheImage, load::Options, ready::{ReadyTimeouts, warm_before}};
//!
//! let words = Words::from_conninfo("postgresql://warmer@standby2/shop");
//! let target = Target::resolve(&words, &Environment::from_process())?;
//! let image = Arc::new(CacheImage::open("/var/lib/howdah/warm/newest.cache")?);
//! let timeouts = ReadyTimeouts { until: Instant::now() + Duration::from_secs(20), enough: 0.6 };
//! let readiness = warm_before(&target, &image, &Options::default(), timeouts)?;
//! println!("{:.0} % of it is warm: traffic may come", readiness.share() * 100.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Pages come hottest first, so a part of the image carries more than its part of the traffic. Who eases a
//! server in can take [`Readiness::share`] as the weight to begin with.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use howdah_connect::Target;

use crate::{
    CacheImage,
    load::{self, LoadError, Observer, Options},
};

/// How long to wait for what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReadyTimeouts {
    /// When traffic comes, warm or not.
    pub until: Instant,
    /// The share of the pages to load, 0 to 1, with which the server is warm enough: loading ends there.
    pub enough: f64,
}

/// How warm a server got.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Readiness {
    /// Pages that were to be loaded: those of the image that the cache lacked and has room for. Nothing
    /// as long as the server has not said.
    pub planned: Option<u64>,
    /// Pages loaded, or given up, so far.
    pub done: u64,
    /// Whether loading has come to its end. If not, it ends within the time of one statement, 16 MiB.
    pub has_ended: bool,
    /// How long it took.
    pub elapsed: Duration,
}

impl Readiness {
    /// The share of what was to be loaded, 0 to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        match self.planned {
            None => 0.0,
            Some(0) => 1.0,
            Some(planned) => (self.done as f64 / planned as f64).min(1.0),
        }
    }
}

/// Loads `image` into the server at `target`, and returns when enough is there or time is up.
///
/// It blocks until `patience.until` at most, whatever the server does: loading happens on threads of its
/// own, which are told to end. To call it for a server that is not to get traffic yet is the point; it may
/// be called for any.
///
/// # Errors
///
/// Nothing can be loaded at all, as for [`load::load`]. That is no reason to withhold traffic.
pub fn warm_before(
    target: &Target,
    image: &Arc<CacheImage>,
    options: &Options,
    patience: ReadyTimeouts,
) -> Result<Readiness, LoadError> {
    let began = Instant::now();
    let left = patience.until.saturating_duration_since(began);
    let options = Options {
        patience: options.patience.min(left),
        lock_timeout: options.lock_timeout.min(left.max(Duration::from_millis(1))),
        ..options.clone()
    };
    let progress = Arc::new(Progress { planned: u64::MAX.into(), done: 0.into(), patience });
    let (sender, ended) = mpsc::channel();
    let (theirs, image, target) = (Arc::clone(&progress), Arc::clone(image), target.clone());
    thread::spawn(move || {
        let result = load::load(&image, &target, &options, &*theirs);
        // Who waited has gone when time was up.
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
        elapsed: began.elapsed(),
    })
}

/// What a load tells while it runs.
struct Progress {
    /// `u64::MAX` until it is known.
    planned: AtomicU64,
    done: AtomicU64,
    patience: ReadyTimeouts,
}

impl Observer for Progress {
    fn planned(&self, pages: u64) {
        self.done.store(0, Ordering::Relaxed);
        self.planned.store(pages, Ordering::Relaxed);
    }

    fn advanced(&self, pages: u64) {
        self.done.fetch_add(pages, Ordering::Relaxed);
    }

    fn wants_end(&self) -> bool {
        let planned = self.planned.load(Ordering::Relaxed);
        let done = self.done.load(Ordering::Relaxed) as f64;
        let is_enough = planned != u64::MAX && done >= planned as f64 * self.patience.enough;
        is_enough || Instant::now() >= self.patience.until
    }
}

#[test]
fn a_share_is_of_what_was_planned() {
    let share = |planned, done| {
        Readiness { planned, done, has_ended: true, elapsed: Duration::ZERO }.share()
    };
    assert_eq!(share(None, 0), 0.0, "the server has not answered");
    assert_eq!(share(Some(0), 0), 1.0, "all was there");
    assert_eq!(share(Some(200), 50), 0.25);
}
