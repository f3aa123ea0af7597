//! Watches one server: takes images at intervals and another when it shuts down, and loads the
//! newest one after a restart.
//!
//! ```text
//!               ┌──── accepts connections ────────┐
//!               │   cache empty since the image?  ▼
//!  unreachable ◄┤           yes: load ───────► serving ── interval: dump
//!   │           │                                │      ── "stopping": dump from memory
//!   │ starting: read files ahead                 │      ── shutdown signal: dump, end
//!   └───────────┴───────── server down ◄─────────┘
//! ```
//!
//! On the server's host, the kernel reports changes of the server's state ([`postmaster`]). Pages
//! are read from shared memory, which exists until the server's last process ends, so the last
//! image is taken after the shutdown has begun. A server whose memory is not read is checked every
//! few seconds over a new connection. No connection is kept open, because a smart shutdown would
//! wait for it.
//!
//! Dumps start only after the newest image was loaded or that failed for good, so that an image of
//! a cold cache does not replace it. If the load failed or restored less than [`WARM_SHARE_MIN`]
//! (for example because of a missing privilege or a lock), the image is also saved as
//! `aside.cache`, unless that has more pages already. It is loaded after the newest image at each
//! restart, until the cache is nearly as full as it was.

mod postmaster;
mod reachable_server;

use std::{
    io,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    CacheImage,
    dump::{self, DumpOptions, DumpSource},
    heat,
    image::Generations,
    load::{self, LoadError, LoadObserver, LoadOptions},
    metrics::server_label,
    os_cache,
};
use howdah_connect::ConnectTarget;
use howdah_stats::Registry;

use crate::daemon::{
    error_chain::error_chain,
    image_store::ImageStore,
    load_log::log_load_report,
    metrics::{DaemonMetrics, ReadinessMetrics},
    readiness::{BoardRole, MeasuringThread, ReadinessBoard, WarmState},
    shutdown::ShutdownSignal,
};
use postmaster::{HostEvent, LocalPostmaster, PostmasterStatus};
use reachable_server::{CacheColdSince, ReachableServer, ServerAccessError};

/// The settings of [`watch`]: the server, the folder for images, and how to take and load them.
#[derive(Clone, Debug)]
pub struct WatchSettings {
    /// Address of the server to watch.
    pub target: ConnectTarget,
    /// Folder for the images: `newest.cache`, older ones as `newest.cache.1` and so on, and
    /// `aside.cache` after an incomplete load.
    pub folder: PathBuf,
    /// Time between images. If `None`, an image is taken only when the server or the daemon shuts
    /// down, and at the start if there is none yet; this requires access to the server's memory.
    pub interval: Option<Duration>,
    /// Number of older images to retain.
    pub keep: Generations,
    /// Source from which cached pages are read.
    pub source: DumpSource,
    /// Whether images include keys of rows: see [`DumpOptions::row_keys`].
    pub row_keys: bool,
    /// Options for loading images.
    pub load: LoadOptions,
    /// The server's data directory, to read its files ahead while it cannot be queried. By default,
    /// the directory found through the server's Unix socket, or while the server could still be
    /// queried.
    pub data_dir: Option<PathBuf>,
    /// Reports whether the server is warm. The server is added under its [`server_label`].
    pub readiness: Arc<ReadinessBoard>,
}

/// An error that makes it impossible to watch a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// The folder cannot be created, written or locked.
    #[error("cannot use the folder {}", folder.display())]
    Folder {
        /// The folder for images.
        folder: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Another process has locked the folder.
    #[error("another howdah process stores its images in {}", folder.display())]
    FolderInUse {
        /// The folder for images.
        folder: PathBuf,
    },
    /// Images are requested only at shutdown, and the server's memory cannot be read, or is not the
    /// requested source.
    #[error(
        "images only at shutdown require the server's memory, which is not available: {reason}"
    )]
    UnreadableMemory {
        /// Why the memory is not read.
        reason: String,
    },
}

/// Interval between checks of whether a server whose postmaster is not observed has restarted.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Initial interval of connection attempts to an unreachable server. It doubles up to the maximum.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
const RETRY_INTERVAL_MAX: Duration = Duration::from_secs(2);
/// Interval between log messages about an unreachable server.
const REPEAT_INTERVAL: Duration = Duration::from_secs(300);
/// Interval between images while a server shuts down, or ten times the duration of a dump if that
/// is longer.
const SHUTDOWN_DUMP_INTERVAL: Duration = Duration::from_secs(1);
/// A cache counts as warm again if this share of the image is resident, 0 to 1.
const WARM_SHARE_MIN: f64 = 0.9;
/// Maximum attempts to load an image after one start of the server, if connections or queries fail.
const LOAD_ATTEMPTS_MAX: u32 = 5;

/// Watches a server until `stop` fires.
///
/// # Errors
///
/// The folder cannot be used, or images only at shutdown are requested and the server's memory
/// is not available. The latter is checked at each connection. Other failures are logged, and
/// watching continues.
pub fn watch(
    settings: &WatchSettings,
    stop: &ShutdownSignal,
    registry: &Registry,
) -> Result<(), WatchError> {
    let store = ImageStore::open(&settings.folder, settings.keep)?;
    let (newest, aside) = (store.open_newest(), store.open_aside());
    let name = server_label(&settings.target);
    let metrics = DaemonMetrics::new(registry, &name);
    let board = &settings.readiness;
    let readiness_metrics = ReadinessMetrics::new(registry, &name);
    board.add(&name, &settings.target, settings.source, BoardRole::Watched, readiness_metrics);
    let _measuring = MeasuringThread::start(board);
    if let Some(image) = &newest {
        metrics.warm.set_image(image.page_count(), image.origin.taken_at_us);
    }
    let data_dir = settings.data_dir.clone();
    let data_dir = data_dir.or_else(|| reachable_server::find_data_dir(&settings.target));
    let mut daemon = WatchDaemon {
        settings,
        stop,
        name,
        reference: aside.clone().or_else(|| newest.clone()).map(Arc::new),
        store,
        metrics,
        newest,
        aside,
        data_dir,
        read_ahead_start: None,
        load_attempts: None,
        is_cold: false,
        unreachable: None,
        retry_interval: RETRY_INTERVAL,
        logged_reason: None,
    };
    if let Some(image) = &daemon.reference {
        board.set_image(&daemon.name, Arc::clone(image));
    }
    daemon.run()
}

struct WatchDaemon<'a> {
    settings: &'a WatchSettings,
    stop: &'a ShutdownSignal,
    /// Name of the server in metrics and on the readiness board.
    name: String,
    /// The image that readiness is measured against: the newest one, or after a restart the one
    /// that was loaded, until the cache is warm by that image.
    reference: Option<Arc<CacheImage>>,
    store: ImageStore,
    metrics: DaemonMetrics,
    /// The newest image. It is loaded after a restart, and provides the names of relations when the
    /// server cannot be queried.
    newest: Option<CacheImage>,
    /// An image that was not loaded completely, retained until the cache is nearly as full as when
    /// it was taken.
    aside: Option<CacheImage>,
    data_dir: Option<PathBuf>,
    /// The start of the server for which files were read ahead: process id and start time.
    read_ahead_start: Option<(u32, i64)>,
    /// The cache into which loads were attempted, and the number of attempts.
    load_attempts: Option<(CacheColdSince, u32)>,
    /// Whether loading the newest image into the present cache has failed for good.
    is_cold: bool,
    unreachable: Option<UnreachablePeriod>,
    retry_interval: Duration,
    /// The last logged reason why memory is not read.
    logged_reason: Option<String>,
}

/// A time during which the server could not be connected to.
struct UnreachablePeriod {
    since: Instant,
    logged_at: Instant,
}

/// The reason why [`WatchDaemon::serve`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServeEnd {
    Shutdown,
    ServerDown,
}

impl WatchDaemon<'_> {
    fn run(&mut self) -> Result<(), WatchError> {
        while !self.stop.is_set() {
            match reachable_server::connect(&self.settings.target, self.settings.source) {
                Ok(server) => {
                    self.on_connect(&server)?;
                    let is_loaded = self.warm_up(&server);
                    if is_loaded {
                        self.settings.readiness.set_loading(&self.name, false);
                        self.settings.readiness.measure_soon(&self.name);
                    }
                    let end = is_loaded.then(|| self.serve(&server));
                    if end == Some(ServeEnd::Shutdown) {
                        break;
                    }
                    if end == Some(ServeEnd::ServerDown) {
                        self.settings.readiness.set_up(&self.name, false);
                    }
                    self.retry_interval = RETRY_INTERVAL;
                }
                Err(failure) => self.wait_for_server(&failure),
            }
        }
        Ok(())
    }

    fn on_connect(&mut self, server: &ReachableServer) -> Result<(), WatchError> {
        self.metrics.up.set(1.0);
        let needs_load = self.needs_load(server);
        self.settings.readiness.set_loading(&self.name, needs_load);
        self.settings.readiness.set_up(&self.name, true);
        match self.unreachable.take() {
            Some(period) => {
                let after = period.since.elapsed();
                tracing::info!(?after, "server accepts connections again");
            }
            None => tracing::debug!("server accepts connections"),
        }
        if let Some(postmaster) = &server.postmaster {
            // The path of a server in a container does not exist here; then nothing is read ahead.
            let found = postmaster.server.data_dir().ok();
            let found = found.filter(|dir| dir.join("PG_VERSION").exists());
            self.data_dir = self.settings.data_dir.clone().or(found).or(self.data_dir.take());
        }
        let reason = server.not_local_reason.clone();
        if self.settings.interval.is_none() && server.postmaster.is_none() {
            let reason = reason.unwrap_or_else(|| "another source was requested".to_owned());
            return Err(WatchError::UnreadableMemory { reason });
        }
        if reason.is_some() && reason != self.logged_reason {
            let reason = reason.as_deref().unwrap_or_default();
            tracing::info!(
                reason,
                "memory cannot be read; the last image before a shutdown may be one interval old"
            );
        }
        self.logged_reason = reason;
        Ok(())
    }

    /// Loads the newest image, and then `aside.cache`, if the server's cache was emptied after the
    /// newest image was taken. Returns `false` if this did not finish, so that the server must be
    /// connected to again.
    fn warm_up(&mut self, server: &ReachableServer) -> bool {
        self.is_cold = false;
        let Some(image) = self.newest.as_ref().filter(|_| self.needs_load(server)) else {
            return true;
        };
        let previous = self.load_attempts.filter(|(cache, _)| cache.matches(server.cold_since));
        let attempts = previous.map_or(1, |(_, count)| count + 1);
        self.load_attempts = Some((server.cold_since, attempts));
        if attempts == 1 {
            self.metrics.restarts.add(1);
            tracing::info!(
                pages = image.page_count(),
                "server started with an empty cache; loading the newest image"
            );
        }
        let newest = self.load(image, server);
        if let Some(newest) = newest {
            self.evaluate_load(newest, attempts);
        }
        // Loads the pages that the newest image is missing into the remaining free buffers.
        let aside = match (newest, &self.aside) {
            (Some(Ok(_)), Some(aside)) => self.load(aside, server),
            _ => Some(Ok(0.0)),
        };
        let is_done = matches!(newest, Some(Ok(_))) && aside.is_some() || self.is_cold;
        if !is_done {
            let _ = self.stop.wait(RETRY_INTERVAL);
        }
        is_done
    }

    /// Whether the server's cache was emptied after the newest image was taken.
    fn needs_load(&self, server: &ReachableServer) -> bool {
        let taken_at_us = self.newest.as_ref().map(|image| image.origin.taken_at_us);
        taken_at_us.is_some_and(|taken_at_us| taken_at_us < server.cold_since.at_us)
    }

    /// Loads an image. Returns the share of the image that is in the cache afterwards, or, if the
    /// load failed, whether it may be retried; `None` if the load was cut short because the server
    /// or the daemon is stopping.
    fn load(
        &self,
        image: &CacheImage,
        server: &ReachableServer,
    ) -> Option<Result<f64, LoadFailure>> {
        let observer = StopObserver { stop: self.stop, postmaster: server.postmaster.as_ref() };
        let progress = self.metrics.warm.progress(&observer);
        match load::load(image, &self.settings.target, &self.settings.load, &progress) {
            Ok(report) if report.is_cut_short => {
                self.metrics.warm.record_load(&report);
                None
            }
            Ok(report) => {
                self.metrics.warm.record_load(&report);
                log_load_report(&server_label(&self.settings.target), &report);
                Some(Ok(report.share()))
            }
            Err(error) => {
                self.metrics.warm.record_load_failure();
                tracing::error!(error = error_chain(&error), "cannot load the image");
                // A lost connection may be retried; an image that does not fit the server may not.
                Some(Err(LoadFailure { is_retryable: matches!(error, LoadError::Server(_)) }))
            }
        }
    }

    /// Evaluates a load of the newest image, unless the load will be retried. If too little of the
    /// image is in the cache afterwards, saves the image as `aside.cache`, because later images
    /// will replace it; but an `aside.cache` with more pages stays.
    fn evaluate_load(&mut self, result: Result<f64, LoadFailure>, attempts: u32) {
        let share = match result {
            Ok(share) => share,
            Err(LoadFailure { is_retryable: true }) if attempts < LOAD_ATTEMPTS_MAX => return,
            Err(_) => {
                self.is_cold = true;
                0.0
            }
        };
        let Some(image) = &self.newest else { return };
        let is_fuller = |aside: &CacheImage| image.page_count() >= aside.page_count();
        if share >= WARM_SHARE_MIN || !self.aside.as_ref().is_none_or(is_fuller) {
            return;
        }
        let resident = format!("{:.1} %", share * 100.0);
        match self.store.save_aside(image) {
            Ok(()) => {
                tracing::warn!(resident, "newest image loaded only in part; saved as aside.cache");
            }
            Err(error) => tracing::error!(error = error_chain(&error), "cannot save aside.cache"),
        }
        self.aside = Some(image.clone());
    }

    /// Removes `aside.cache` if `image`, the newest one, has at least [`WARM_SHARE_MIN`] times as
    /// many pages, or fills that share of the server's buffers.
    fn remove_aside_if_warm(&mut self, image: &CacheImage) {
        let Some(aside) = &self.aside else { return };
        // The server may have fewer buffers than before.
        let buffers = u64::from(image.origin.buffers).max(1);
        let full = aside.page_count().min(buffers) as f64;
        if (image.page_count() as f64) < full * WARM_SHARE_MIN {
            return;
        }
        match self.store.remove_aside() {
            Ok(()) => tracing::info!("cache is as full as before; aside.cache removed"),
            Err(error) => tracing::warn!(%error, "cannot remove aside.cache"),
        }
        self.aside = None;
    }

    /// Takes images until the server stops or the daemon shuts down.
    fn serve(&mut self, server: &ReachableServer) -> ServeEnd {
        let mut next_dump = self.first_dump();
        let mut is_stopping = false;
        loop {
            match self.wait(server, next_dump) {
                HostEvent::Shutdown => {
                    tracing::info!("shutting down; taking a last image");
                    self.dump(server, is_stopping);
                    return ServeEnd::Shutdown;
                }
                HostEvent::ServerDown => {
                    tracing::info!("server stopped or restarted");
                    return ServeEnd::ServerDown;
                }
                HostEvent::DumpDue => {
                    let began = Instant::now();
                    if !self.dump(server, is_stopping) {
                        return ServeEnd::ServerDown;
                    }
                    let took = began.elapsed();
                    next_dump = if is_stopping {
                        Some(Instant::now() + SHUTDOWN_DUMP_INTERVAL.max(took * 10))
                    } else {
                        self.settings
                            .interval
                            .map(|interval| (began + interval).max(Instant::now() + took))
                    };
                }
                HostEvent::StatusChanged => match self.check_status(server) {
                    StatusChange::Unchanged => {}
                    StatusChange::Down => return ServeEnd::ServerDown,
                    StatusChange::Stopping if is_stopping => {}
                    StatusChange::Stopping => {
                        self.settings.readiness.set_up(&self.name, false);
                        tracing::info!("server is shutting down; taking an image from its memory");
                        (is_stopping, next_dump) = (true, Some(Instant::now()));
                    }
                },
            }
        }
    }

    /// Returns the time of the first image after a connection; `None` if there is an image and
    /// others are taken only at shutdown. The first image is taken immediately, because a shutdown
    /// image takes the names and lengths of relations from the previous image. Only if loading the
    /// newest image has failed does the cache get one interval to fill first.
    fn first_dump(&self) -> Option<Instant> {
        let now = Instant::now();
        match (&self.newest, self.settings.interval) {
            (None, _) => Some(now),
            (Some(_), Some(interval)) if self.is_cold => Some(now + interval),
            (Some(_), Some(_)) => Some(now),
            (Some(_), None) => None,
        }
    }

    /// Waits for an event of the postmaster, or, if that is not observed, checks the server at
    /// intervals.
    fn wait(&self, server: &ReachableServer, next_dump: Option<Instant>) -> HostEvent {
        if let Some(postmaster) = &server.postmaster {
            return postmaster.wait(next_dump, self.stop);
        }
        let now = Instant::now();
        let next_check = now + CHECK_INTERVAL;
        let until = next_dump.map_or(next_check, |next_dump| next_dump.min(next_check));
        if self.stop.wait(until.saturating_duration_since(now)) {
            return HostEvent::Shutdown;
        }
        if next_dump.is_some_and(|next_dump| Instant::now() >= next_dump) {
            return HostEvent::DumpDue;
        }
        match reachable_server::cold_since(&self.settings.target) {
            Ok(cold_since) if cold_since.matches(server.cold_since) => HostEvent::StatusChanged,
            // The server is running, but has no free connection slot or rejects our login.
            Err(failure) if !failure.is_server_down() => {
                tracing::debug!(error = error_chain(&failure), "cannot check the server");
                HostEvent::StatusChanged
            }
            _ => HostEvent::ServerDown,
        }
    }

    /// Determines what a change of the lock file means.
    fn check_status(&self, server: &ReachableServer) -> StatusChange {
        let Some(postmaster) = &server.postmaster else { return StatusChange::Unchanged };
        match postmaster.status() {
            Some(PostmasterStatus::Stopping) => StatusChange::Stopping,
            Some(PostmasterStatus::Accepting) => {
                // Both a promotion and a crash of a session change the status, but only the crash
                // empties the cache.
                match reachable_server::cold_since(&self.settings.target) {
                    Ok(cold_since) if !cold_since.matches(server.cold_since) => StatusChange::Down,
                    Err(failure) if failure.is_server_down() => StatusChange::Down,
                    _ => StatusChange::Unchanged,
                }
            }
            Some(PostmasterStatus::Starting) => StatusChange::Down,
            None if postmaster.is_gone() => StatusChange::Down,
            // The postmaster is still writing the file.
            None => StatusChange::Unchanged,
        }
    }

    fn dump_options(&self) -> DumpOptions<'_> {
        let WatchSettings { source, row_keys, .. } = *self.settings;
        DumpOptions { source, row_keys, known: self.newest.as_ref() }
    }

    /// Takes an image and saves it. Returns false if the server has stopped or restarted.
    fn dump(&mut self, server: &ReachableServer, is_stopping: bool) -> bool {
        let began = Instant::now();
        let image = match (&server.postmaster, is_stopping) {
            (Some(postmaster), true) => {
                match dump::dump_memory(&postmaster.server, self.newest.as_ref()) {
                    Ok(image) => image,
                    Err(error) => {
                        let error = error_chain(&error);
                        tracing::warn!(error, "cannot read the memory of the stopping server");
                        self.metrics.warm.record_dump_failure();
                        return !postmaster.is_gone();
                    }
                }
            }
            _ => match dump::dump(&self.settings.target, self.dump_options()) {
                Ok(dumped) => dumped.image,
                Err(error) => {
                    tracing::warn!(error = error_chain(&error), "cannot take an image");
                    self.metrics.warm.record_dump_failure();
                    return true;
                }
            },
        };
        if !is_stopping {
            // If the server restarted meanwhile, the image is of an empty cache and must not be
            // saved.
            match reachable_server::cold_since(&self.settings.target) {
                Ok(cold_since) if cold_since.matches(server.cold_since) => {}
                Err(failure) if !failure.is_server_down() => {}
                // The postmaster still runs: the server is shutting down and rejects new
                // connections.
                Err(_) if server.postmaster.as_ref().is_some_and(|it| !it.is_gone()) => {
                    return true;
                }
                _ => return false,
            }
        }
        let (pages, taken_at_us) = (image.page_count(), image.origin.taken_at_us);
        if pages == 0 {
            return true;
        }
        // The images of one shutdown replace each other, so that older ones are not shifted out.
        let saved = if is_stopping && self.follows_shutdown_image(&image) {
            self.store.replace(&image)
        } else {
            self.store.save(&image)
        };
        match saved {
            Ok(()) => {
                let took = began.elapsed();
                self.metrics.warm.record_dump(took, pages, taken_at_us);
                tracing::info!(pages, ?took, "image taken");
                self.remove_aside_if_warm(&image);
                self.update_readiness(&image, is_stopping);
                self.newest = Some(image);
            }
            Err(error) => {
                tracing::error!(error = error_chain(&error), "cannot save the image");
                self.metrics.warm.record_dump_failure();
            }
        }
        true
    }

    /// Reports how much of the reference the cache contained when `image` was taken, and makes that
    /// image the new reference unless the cache is still colder than at the restart: an image of a
    /// cold cache would make any cache look warm.
    fn update_readiness(&mut self, image: &CacheImage, is_stopping: bool) {
        let board = &self.settings.readiness;
        if let Some(reference) = &self.reference
            && board.state(&self.name) != Some(WarmState::Warm)
        {
            // Files are not looked up here, so rewritten relations count as cold.
            let report = heat::compare(reference, image);
            if !is_stopping {
                board.record(&self.name, report);
            }
            let buffers = u64::from(image.origin.buffers).max(1);
            let full = reference.page_count().min(buffers) as f64;
            let is_full = image.page_count() as f64 >= full * WARM_SHARE_MIN;
            if board.state(&self.name) != Some(WarmState::Warm) && !is_full {
                return;
            }
        }
        let reference = Arc::new(image.clone());
        board.set_image(&self.name, Arc::clone(&reference));
        if !is_stopping {
            board.record(&self.name, heat::compare(&reference, &reference));
        }
        self.reference = Some(reference);
    }

    /// Whether the previous image is so recent that `image`, taken during a shutdown, may replace
    /// it.
    fn follows_shutdown_image(&self, image: &CacheImage) -> bool {
        const AGE_MAX_US: i64 = 60_000_000;
        let previous = self.newest.as_ref().map(|newest| newest.origin.taken_at_us);
        previous.is_some_and(|previous| image.origin.taken_at_us - previous < AGE_MAX_US)
    }

    fn wait_for_server(&mut self, failure: &ServerAccessError) {
        self.metrics.up.set(0.0);
        self.settings.readiness.set_up(&self.name, false);
        let now = Instant::now();
        match &mut self.unreachable {
            None => {
                tracing::warn!(error = error_chain(failure), "server unreachable; retrying");
                self.unreachable = Some(UnreachablePeriod { since: now, logged_at: now });
            }
            Some(period) if now.duration_since(period.logged_at) >= REPEAT_INTERVAL => {
                let (error, after) = (error_chain(failure), period.since.elapsed());
                tracing::warn!(error, ?after, "server still unreachable");
                period.logged_at = now;
            }
            Some(_) => {}
        }
        self.read_ahead();
        let _ = self.stop.wait(self.retry_interval);
        // A starting server will accept connections soon; a stopped one may stay down for hours.
        self.retry_interval = if failure.is_starting() {
            RETRY_INTERVAL
        } else {
            (self.retry_interval * 2).min(RETRY_INTERVAL_MAX)
        };
    }

    /// Makes the operating system read the files of the newest image while the server recovers,
    /// once for each start of the server.
    fn read_ahead(&mut self) {
        let (Some(image), Some(data_dir)) = (&self.newest, &self.data_dir) else { return };
        let Some(start) = postmaster::read_start(data_dir) else { return };
        let lock_file = data_dir.join("postmaster.pid");
        let has_status = |status| postmaster::read_status(&lock_file) == Some(status);
        if self.read_ahead_start == Some(start) || has_status(PostmasterStatus::Stopping) {
            return;
        }
        self.read_ahead_start = Some(start);
        self.retry_interval = RETRY_INTERVAL;
        let should_continue = || !self.stop.is_set() && !has_status(PostmasterStatus::Accepting);
        match os_cache::read_ahead(image, data_dir, &should_continue) {
            Ok(done) => {
                self.metrics.read_ahead_bytes.add(done.bytes);
                let (bytes, missing) = (done.bytes, done.missing);
                tracing::info!(bytes, missing, "files read ahead during server start");
            }
            Err(error) => tracing::info!(error = error_chain(&error), "cannot read files ahead"),
        }
    }
}

/// A load that failed as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LoadFailure {
    /// Whether another attempt may succeed.
    is_retryable: bool,
}

/// The meaning of a change of the lock file.
enum StatusChange {
    Unchanged,
    Stopping,
    /// The server is unreachable or starting, or has restarted.
    Down,
}

/// Stops a load when the server or the daemon shuts down.
struct StopObserver<'a> {
    stop: &'a ShutdownSignal,
    postmaster: Option<&'a LocalPostmaster>,
}

impl LoadObserver for StopObserver<'_> {
    fn should_stop(&self) -> bool {
        let is_stopping = |postmaster: &LocalPostmaster| {
            postmaster.is_gone() || postmaster.status() == Some(PostmasterStatus::Stopping)
        };
        self.stop.is_set() || self.postmaster.is_some_and(is_stopping)
    }
}
