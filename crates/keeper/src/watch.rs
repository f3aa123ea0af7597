//! One server, watched: images at intervals, one more when it shuts down, the newest loaded when it comes
//! back.
//!
//! ```text
//!          ┌───────────── lets in ──────────────┐
//!          │      cache empty since the image?  ▼
//!  away ◄──┤           yes: load ──────────► serving ── interval: dump
//!   │      │                                    │      ── "stopping": dump from memory
//!   │ it starts: files read ahead               │      ── told to stop: dump, end
//!   └──────┴─────────── gone ◄──────────────────┘
//! ```
//!
//! On the server's host all of this is told by the kernel ([`host`]) and pages come from memory, which is
//! there until the last process of the server ends: so the last image is taken after the shutdown has
//! begun. Elsewhere the server is asked every few seconds by a connection of a moment. None is held, for a
//! smart shutdown would wait for it.
//!
//! An image is taken of a cache only after what was in it before was loaded, so a cold cache never
//! replaces a warm one. Where that load brought less than [`ENOUGH`] back (a missing right, a lock), the image it
//! came from is put aside: it is loaded after the newest at each restart, until the cache is as full as it was.

mod arrival;
mod host;

use std::{
    io,
    path::PathBuf,
    time::{Duration, Instant},
};

use howdah_connect::Target;
use howdah_stats::Registry;
use howdah_warm::{
    CacheImage,
    dump::{self, Choice},
    image::Generations,
    load::{self, LoadError, Observer, Options},
    metrics::name_of,
    os_cache,
};

use crate::{
    loaded,
    metrics::Numbers,
    stop::Stop,
    store::{Store, causes},
};
use arrival::{Arrival, CacheColdSince, Failure};
use host::{Event, Host, Status};

/// How a server is watched.
#[derive(Clone, Debug)]
pub struct WatchSettings {
    /// The server.
    pub target: Target,
    /// Where images go: `newest.cache`, and older ones as `newest.cache.1` and so on.
    pub folder: PathBuf,
    /// Time between images; `None` is only at shutdown, which needs the server's memory.
    pub interval: Option<Duration>,
    /// Older images to keep.
    pub keep: Generations,
    /// How images are taken.
    pub choice: Choice,
    /// How the newest is loaded.
    pub load: Options,
    /// The server's data directory, to read files ahead while it cannot be asked; without it, the one
    /// that was found while it could.
    pub data_dir: Option<PathBuf>,
}

/// Why a server cannot be watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// The folder cannot be made or written.
    #[error("the folder {} cannot be used", folder.display())]
    Folder {
        /// Which.
        folder: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Another keeper writes there.
    #[error("another howdah keeps its images in {}", folder.display())]
    FolderInUse {
        /// Which.
        folder: PathBuf,
    },
    /// Images are wanted only at shutdown, and the server's memory cannot be read.
    #[error("images only at shutdown need the server's memory, which cannot be read: {reason}")]
    NoMemory {
        /// Why not.
        reason: String,
    },
}

/// How often a server elsewhere is asked whether it is still the same.
const ASK: Duration = Duration::from_secs(2);
/// How soon a server that is away is tried again, and how late at most.
const RETRY: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// How often it is said that a server is still away.
const REMIND: Duration = Duration::from_secs(300);
/// While a server stops, images follow each other after this time, or ten times what one takes.
const WHILE_STOPPING: Duration = Duration::from_secs(1);
/// The share of an image, 0 to 1, that makes a cache as warm as it was.
const ENOUGH: f64 = 0.9;
/// How often a load that the server broke is tried again before it is given up.
const LOADS_MAX: u32 = 5;

/// Watches a server until told to stop.
///
/// # Errors
///
/// It cannot begin: the folder cannot be used, or what is asked for cannot be had. Once it has begun, what
/// goes wrong is logged, and it goes on.
pub fn watch(settings: &WatchSettings, stop: &Stop, registry: &Registry) -> Result<(), WatchError> {
    let store = Store::open(&settings.folder, settings.keep)?;
    let (known, aside) = (store.newest(), store.aside());
    let numbers = Numbers::new(registry, &name_of(&settings.target));
    if let Some(image) = &known {
        numbers.work.image_is(image.page_count(), image.origin.taken_at_us);
    }
    let data_dir = settings.data_dir.clone().or_else(|| arrival::data_dir_of(&settings.target));
    let mut watch = Watch {
        settings,
        stop,
        store,
        numbers,
        known,
        aside,
        data_dir,
        ahead_for: None,
        tries: None,
        is_cold: false,
        away: None,
        retry: RETRY,
        said: None,
    };
    watch.run()
}

struct Watch<'a> {
    settings: &'a WatchSettings,
    stop: &'a Stop,
    store: Store,
    numbers: Numbers,
    /// The newest image: what is loaded, and where names come from when nobody can be asked.
    known: Option<CacheImage>,
    /// An image that could be loaded in part only, while the cache is not as full as it was then.
    aside: Option<CacheImage>,
    data_dir: Option<PathBuf>,
    /// The start of the server for which files were read ahead.
    ahead_for: Option<(u32, i64)>,
    /// For which birth of the cache loads were tried, and how many.
    tries: Option<(CacheColdSince, u32)>,
    /// What was in the cache before could not be loaded.
    is_cold: bool,
    /// Since when the server is away, and when that was said last.
    away: Option<(Instant, Instant)>,
    retry: Duration,
    /// Why memory was not read, as it was said last.
    said: Option<String>,
}

/// Why a server is no longer served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Stop,
    Gone,
}

impl Watch<'_> {
    fn run(&mut self) -> Result<(), WatchError> {
        while !self.stop.is_set() {
            match arrival::arrive(&self.settings.target, self.settings.choice) {
                Ok(arrival) => {
                    self.arrived(&arrival)?;
                    if self.warmed(&arrival) && self.serve(&arrival) == Left::Stop {
                        break;
                    }
                    self.retry = RETRY;
                }
                Err(failure) => self.wait_for_server(&failure),
            }
        }
        Ok(())
    }

    fn arrived(&mut self, arrival: &Arrival) -> Result<(), WatchError> {
        self.numbers.up.set(1.0);
        match self.away.take() {
            Some((since, _)) => {
                tracing::info!(after = ?since.elapsed(), "server accepts connections again");
            }
            None => tracing::debug!("the server lets in"),
        }
        if let Some(host) = &arrival.host {
            // A container's path is not ours; then there is no file there, and nothing is read ahead.
            let found = host.server.data_dir().ok().filter(|dir| dir.join("PG_VERSION").exists());
            self.data_dir = self.settings.data_dir.clone().or(found).or(self.data_dir.take());
        }
        let reason = arrival.not_local.clone();
        if self.settings.interval.is_none() && arrival.host.is_none() {
            let reason = reason.unwrap_or_else(|| "another source was asked for".to_owned());
            return Err(WatchError::NoMemory { reason });
        }
        if reason.is_some() && reason != self.said {
            let reason = reason.as_deref().unwrap_or_default();
            tracing::info!(
                reason,
                "memory is not read; the last image before a shutdown is as old as the interval"
            );
        }
        self.said = reason;
        Ok(())
    }

    /// Loads the newest image if the server's cache is younger. Says whether to go on with this start.
    fn warmed(&mut self, arrival: &Arrival) -> bool {
        self.is_cold = false;
        let Some(image) = &self.known else { return true };
        if image.origin.taken_at_us >= arrival.birth.at_us {
            return true;
        }
        let tried = self.tries.filter(|(birth, _)| birth.is_same(arrival.birth));
        let tries = tried.map_or(1, |(_, count)| count + 1);
        self.tries = Some((arrival.birth, tries));
        if tries == 1 {
            self.numbers.restarts.add(1);
            tracing::info!(
                pages = image.page_count(),
                "the server started with an empty cache: loading the newest image"
            );
        }
        let newest = self.load(image, arrival);
        if let Some(newest) = newest {
            self.judge_load(newest, tries);
        }
        // What the newest lacks, into what room is left.
        let aside = match (newest, &self.aside) {
            (Some(Ok(_)), Some(aside)) => self.load(aside, arrival),
            _ => Some(Ok(0.0)),
        };
        let done = matches!(newest, Some(Ok(_))) && aside.is_some() || self.is_cold;
        if !done {
            let _ = self.stop.wait(RETRY);
        }
        done
    }

    /// Loads an image, and gives the share of it that is in the cache then, or whether the load may be tried
    /// again. Nothing, if it ended because the server or we do: the next start loads again.
    fn load(&self, image: &CacheImage, arrival: &Arrival) -> Option<Result<f64, Retry>> {
        let watcher = Watcher { stop: self.stop, host: arrival.host.as_ref() };
        let shown = self.numbers.work.progress(&watcher);
        match load::load(image, &self.settings.target, &self.settings.load, &shown) {
            Ok(loaded) if loaded.is_cut_short => {
                self.numbers.work.loaded(&loaded);
                None
            }
            Ok(loaded) => {
                self.numbers.work.loaded(&loaded);
                loaded::tell(&name_of(&self.settings.target), &loaded);
                Some(Ok(loaded.share()))
            }
            Err(error) => {
                self.numbers.work.load_failed();
                tracing::error!(error = causes(&error), "the image could not be loaded");
                // A server that went away may be tried again; an image that does not fit may not.
                Some(Err(Retry { is_useful: matches!(error, LoadError::Server(_)) }))
            }
        }
    }

    /// Decides by a load of the newest image whether the images of this start may replace it.
    fn judge_load(&mut self, load: Result<f64, Retry>, tries: u32) {
        let share = match load {
            Ok(share) => share,
            Err(Retry { is_useful: true }) if tries < LOADS_MAX => return,
            Err(_) => {
                self.is_cold = true;
                0.0
            }
        };
        let Some(image) = &self.known else { return };
        let is_fuller = |aside: &CacheImage| image.page_count() >= aside.page_count();
        if share >= ENOUGH || !self.aside.as_ref().is_none_or(is_fuller) {
            return;
        }
        let resident = format!("{:.1} %", share * 100.0);
        match self.store.put_aside(image) {
            Ok(()) => tracing::warn!(
                resident,
                "not enough of the newest image is in the cache: it is put aside as aside.cache"
            ),
            Err(error) => {
                tracing::error!(error = causes(&error), "the newest image cannot be put aside");
            }
        }
        self.aside = Some(image.clone());
    }

    /// Removes what was put aside, once an image is as full.
    fn forget_aside(&mut self, image: &CacheImage) {
        let Some(aside) = &self.aside else { return };
        // A server may have been given fewer buffers.
        let most = u64::from(image.origin.buffers).max(1);
        if (image.page_count() as f64) < aside.page_count().min(most) as f64 * ENOUGH {
            return;
        }
        match self.store.remove_aside() {
            Ok(()) => {
                tracing::info!("the cache is as full as before: the image put aside is removed");
            }
            Err(error) => tracing::warn!(%error, "the image put aside cannot be removed"),
        }
        self.aside = None;
    }

    fn serve(&mut self, arrival: &Arrival) -> Left {
        let mut due = self.first_due();
        let mut is_stopping = false;
        loop {
            match self.wait(arrival, due) {
                Event::Stop => {
                    tracing::info!("told to stop: taking a last image");
                    self.dump(arrival, is_stopping);
                    return Left::Stop;
                }
                Event::Gone => {
                    tracing::info!("the server is gone");
                    return Left::Gone;
                }
                Event::Due => {
                    let began = Instant::now();
                    if !self.dump(arrival, is_stopping) {
                        return Left::Gone;
                    }
                    due = match is_stopping {
                        true => Some(Instant::now() + WHILE_STOPPING.max(began.elapsed() * 10)),
                        // Never more than half of the time, however short the interval is.
                        false => self.settings.interval.map(|interval| {
                            (began + interval).max(Instant::now() + began.elapsed())
                        }),
                    };
                }
                Event::Changed => match self.look(arrival) {
                    Look::Same => {}
                    Look::Gone => return Left::Gone,
                    Look::Stopping if is_stopping => {}
                    Look::Stopping => {
                        tracing::info!("the server stops: taking an image from its memory");
                        (is_stopping, due) = (true, Some(Instant::now()));
                    }
                },
            }
        }
    }

    /// When the first image is taken: at once, for names and lengths of the last one, which is taken when
    /// nobody can be asked any more. A cold cache is given time.
    fn first_due(&self) -> Option<Instant> {
        let now = Instant::now();
        match (&self.known, self.settings.interval) {
            (None, _) => Some(now),
            (Some(_), Some(interval)) if self.is_cold => Some(now + interval),
            (Some(_), Some(_)) => Some(now),
            (Some(_), None) => None,
        }
    }

    /// Waits for what the host tells, or asks the server again and again.
    fn wait(&self, arrival: &Arrival, due: Option<Instant>) -> Event {
        if let Some(host) = &arrival.host {
            return host.wait(due, self.stop);
        }
        let now = Instant::now();
        let until = due.map_or(now + ASK, |due| due.min(now + ASK));
        if self.stop.wait(until.saturating_duration_since(now)) {
            return Event::Stop;
        }
        if due.is_some_and(|due| Instant::now() >= due) {
            return Event::Due;
        }
        match arrival::birth(&self.settings.target) {
            Ok(birth) if birth.is_same(arrival.birth) => Event::Changed,
            // It is there, and has no room for us or another mind about who we are.
            Err(failure) if !failure.is_absence() => {
                tracing::debug!(error = causes(&failure), "the server did not answer a question");
                Event::Changed
            }
            _ => Event::Gone,
        }
    }

    /// What a change of the server's state means.
    fn look(&self, arrival: &Arrival) -> Look {
        let Some(host) = &arrival.host else { return Look::Same };
        match host.status() {
            Some(Status::Stopping) => Look::Stopping,
            Some(Status::Open) => match arrival::birth(&self.settings.target) {
                // A promotion changes the state, too, and empties nothing; a crash of a session does.
                Ok(birth) if !birth.is_same(arrival.birth) => Look::Gone,
                Err(failure) if failure.is_absence() => Look::Gone,
                _ => Look::Same,
            },
            Some(Status::Starting) => Look::Gone,
            None if host.is_gone() => Look::Gone,
            // The file is being written.
            None => Look::Same,
        }
    }

    /// Takes an image and keeps it. Says whether the server is still the one that arrived.
    fn dump(&mut self, arrival: &Arrival, is_stopping: bool) -> bool {
        let began = Instant::now();
        let image = match (&arrival.host, is_stopping) {
            (Some(host), true) => match dump::dump_memory(&host.server, self.known.as_ref()) {
                Ok(image) => image,
                Err(error) => {
                    tracing::warn!(error = causes(&error), "the stopping server cannot be read");
                    self.numbers.work.dump_failed();
                    return !host.is_gone();
                }
            },
            _ => match dump::dump(&self.settings.target, self.settings.choice) {
                Ok(dumped) => dumped.image,
                Err(error) => {
                    tracing::warn!(error = causes(&error), "no image could be taken");
                    self.numbers.work.dump_failed();
                    return true;
                }
            },
        };
        if !is_stopping {
            // A server that restarted meanwhile has an empty cache, which is not to be kept.
            match arrival::birth(&self.settings.target) {
                Ok(birth) if birth.is_same(arrival.birth) => {}
                Err(failure) if !failure.is_absence() => {}
                // On this host the server is still the same process: it stops, and lets nobody in.
                Err(_) if arrival.host.as_ref().is_some_and(|host| !host.is_gone()) => return true,
                _ => return false,
            }
        }
        let (pages, taken_at_us) = (image.page_count(), image.origin.taken_at_us);
        if pages == 0 {
            return true;
        }
        // Images that follow each other while a server stops replace each other.
        let saved = match is_stopping && self.is_of_this_stop(&image) {
            true => self.store.replace(&image),
            false => self.store.save(&image),
        };
        match saved {
            Ok(()) => {
                let took = began.elapsed();
                self.numbers.work.dumped(took, pages, taken_at_us);
                tracing::info!(pages, ?took, "image taken");
                self.forget_aside(&image);
                self.known = Some(image);
            }
            Err(error) => {
                tracing::error!(error = causes(&error), "the image could not be kept");
                self.numbers.work.dump_failed();
            }
        }
        true
    }

    fn is_of_this_stop(&self, image: &CacheImage) -> bool {
        const NEAR_US: i64 = 60_000_000;
        let before = self.known.as_ref().map(|known| known.origin.taken_at_us);
        before.is_some_and(|before| image.origin.taken_at_us - before < NEAR_US)
    }

    fn wait_for_server(&mut self, failure: &Failure) {
        self.numbers.up.set(0.0);
        let now = Instant::now();
        match &mut self.away {
            None => {
                tracing::warn!(error = causes(failure), "the server does not let in: waiting");
                self.away = Some((now, now));
            }
            Some((since, said)) if now.duration_since(*said) >= REMIND => {
                tracing::warn!(error = causes(failure), after = ?since.elapsed(), "still waiting");
                *said = now;
            }
            Some(_) => {}
        }
        self.read_ahead();
        let _ = self.stop.wait(self.retry);
        // One that starts is about to let in; one that is not there may be away for hours.
        self.retry = match failure.is_starting() {
            true => RETRY,
            false => (self.retry * 2).min(RETRY_MAX),
        };
    }

    /// Has the operating system read the files of the newest image, once for each start of the server,
    /// while it recovers.
    fn read_ahead(&mut self) {
        let (Some(image), Some(data_dir)) = (&self.known, &self.data_dir) else { return };
        let Some(start) = host::start_of(data_dir) else { return };
        let lock_file = data_dir.join("postmaster.pid");
        if self.ahead_for == Some(start) || host::status(&lock_file) == Some(Status::Stopping) {
            return;
        }
        self.ahead_for = Some(start);
        self.retry = RETRY;
        let go_on = || !self.stop.is_set() && host::status(&lock_file) != Some(Status::Open);
        match os_cache::read_ahead(image, data_dir, &go_on) {
            Ok(done) => {
                self.numbers.read_ahead_bytes.add(done.bytes);
                let (bytes, missing) = (done.bytes, done.missing);
                tracing::info!(bytes, missing, "files read ahead while the server starts");
            }
            Err(error) => tracing::info!(error = causes(&error), "files cannot be read ahead"),
        }
    }
}

/// A load that failed as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Retry {
    /// Whether another try may end in another way.
    is_useful: bool,
}

enum Look {
    Same,
    Stopping,
    Gone,
}

/// Ends a load when the server or we end.
struct Watcher<'a> {
    stop: &'a Stop,
    host: Option<&'a Host>,
}

impl Observer for Watcher<'_> {
    fn wants_end(&self) -> bool {
        let is_ending = |host: &Host| host.is_gone() || host.status() == Some(Status::Stopping);
        self.stop.is_set() || self.host.is_some_and(is_ending)
    }
}
