//! Whether servers are warm, measured while readiness is queried.
//!
//! The daemons report to a [`ReadinessBoard`] what they know: the image that a server is compared
//! with, whether it is reachable, whether it is being loaded. While readiness is queried, a thread
//! compares each server's cache with its image every few seconds; see [`crate::heat`]. Queries read
//! the last result and never wait for a server.
//!
//! ```text
//!  probe ──► poll, query ──┐                      ┌── set_up, set_loading, set_image ◄── daemon
//!                          ▼                      ▼
//!                       ReadinessBoard: one entry per server
//!                          ▲
//!                          └── result ◄── measuring thread ──► server (scan of its cache)
//! ```

mod entry;
mod measuring;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use howdah_connect::{ConnectTarget, Endpoint};
use parking_lot::{Condvar, Mutex};

use crate::{
    CacheImage,
    daemon::metrics::ReadinessMetrics,
    dump::DumpSource,
    heat::{HeatReport, HeatShare},
    image::ImageSource,
};
use entry::BoardEntry;
pub(crate) use measuring::MeasuringThread;

/// The shares of an image's heat at which a server counts as warm, 0 to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct WarmFloors {
    /// Floor of the whole image, and of databases without a floor of their own.
    pub all: f64,
    /// Floors of single databases, by name.
    pub databases: BTreeMap<String, f64>,
}

impl Default for WarmFloors {
    fn default() -> Self {
        Self { all: 0.9, databases: BTreeMap::new() }
    }
}

/// Whether a server may receive traffic, as far as its cache is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmState {
    /// The server is reachable, and its cache reaches all floors.
    Warm,
    /// The server is reachable, but its cache is below a floor, or could not be measured.
    Cold,
    /// An image is being loaded into the server, which has not reached all floors. A watched server
    /// is in this state until its load after a restart has ended.
    Loading,
    /// The server cannot be connected to, is starting or is stopping.
    Unreachable,
}

impl WarmState {
    /// Returns the name of the state in output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Warm => "warm",
            Self::Cold => "cold",
            Self::Loading => "loading",
            Self::Unreachable => "unreachable",
        }
    }
}

/// The role of a server on a [`ReadinessBoard`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoardRole {
    /// The only server of [`watch()`](crate::daemon::watch()), compared with its own image.
    Watched,
    /// The server whose image [`follow()`](crate::daemon::follow()) takes.
    Primary,
    /// A server compared with the primary's image.
    Standby,
    /// A server of [`follow()`](crate::daemon::follow()) that could not be connected to yet.
    Unknown,
}

impl BoardRole {
    /// Returns the name of the role in output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Watched => "watched",
            Self::Primary => "primary",
            Self::Standby => "standby",
            Self::Unknown => "unknown",
        }
    }
}

/// State and shares of one server, as a query returns them.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerReadiness {
    /// Name of the server; see [`crate::metrics::server_label`].
    pub server: String,
    /// The role of the server.
    pub role: BoardRole,
    /// The state of the server, or of the queried database on it.
    pub state: WarmState,
    /// Why the state is not [`WarmState::Warm`], or why the cache could not be measured.
    pub reason: Option<String>,
    /// The share of the image that was in the cache at the last measurement.
    pub share: Option<HeatShare>,
    /// The floor of the whole image, 0 to 1.
    pub floor: f64,
    /// The databases of the image, or only the queried one.
    pub databases: Vec<DatabaseReadiness>,
    /// The interface by which the cache was scanned.
    pub measured_by: Option<ImageSource>,
    /// Time of the last measurement.
    pub measured_at: Option<SystemTime>,
    /// The image that the cache is compared with: the time when it was taken, in microseconds since
    /// 1970, and its number of pages.
    pub image: Option<(i64, u64)>,
}

/// The readiness of one database of a server.
#[derive(Clone, Debug, PartialEq)]
pub struct DatabaseReadiness {
    /// Name of the database.
    pub database: String,
    /// The share of the database's pages in the image that was in the cache.
    pub share: HeatShare,
    /// The floor of the database: its own or that of the whole image.
    pub floor: f64,
    /// Whether the share reaches the floor.
    pub is_warm: bool,
}

/// The reason why a query names nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadinessQueryError {
    /// No server has this name.
    #[error("no server is called {name:?}; known: {}", known.join(", "))]
    NoServer {
        /// The name in the query.
        name: String,
        /// The names of all servers.
        known: Vec<String>,
    },
    /// The image has no pages of this database.
    #[error("the image has no pages of a database called {name:?}")]
    NoDatabase {
        /// The name in the query.
        name: String,
    },
}

/// How far a standby is below its floors.
#[derive(Clone, Debug)]
pub(crate) struct StandbyReadiness {
    pub(crate) server: String,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) state: WarmState,
    /// The largest difference between a floor and the share, 0 to 1; 0 if all are reached. `None`
    /// if the cache was not measured recently.
    pub(crate) deficit: Option<f64>,
}

/// The readiness of all servers of a daemon.
#[derive(Debug)]
pub struct ReadinessBoard {
    floors: WarmFloors,
    entries: Mutex<BoardContents>,
    /// Notified when a measurement is due or has ended.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct BoardContents {
    servers: BTreeMap<String, BoardEntry>,
    /// Time of the last query.
    queried_at: Option<Instant>,
    /// Whether the servers are measured without queries.
    is_always_measured: bool,
    /// Whether a standby became cold since the last call of `take_newly_cold`.
    is_newly_cold: bool,
    is_stopped: bool,
}

/// Minimum time between the starts of two measurements of a server.
pub const MEASURE_INTERVAL: Duration = Duration::from_secs(5);
/// Time after the last query during which measuring continues.
const QUERIED_TIMEOUT: Duration = Duration::from_secs(60);
/// A measurement counts as fresh for this long.
const FRESH: Duration = Duration::from_secs(10);
/// A server is measured for at most one part in so many of the time.
const PAUSE_FACTOR: u32 = 10;
/// Age at which a measurement no longer counts, unless measuring takes long.
const MEASUREMENT_AGE_MAX: Duration = Duration::from_secs(60);

impl Default for ReadinessBoard {
    fn default() -> Self {
        Self::new(WarmFloors::default())
    }
}

impl ReadinessBoard {
    /// Creates a board without servers, which the daemon adds.
    pub fn new(floors: WarmFloors) -> Self {
        Self { floors, entries: Mutex::default(), changed: Condvar::new() }
    }

    /// Records a query, so that measuring goes on for a minute, and returns
    /// whether the measurements of `server`, or of all servers, are at most ten seconds old. If
    /// not, newer ones are available soon, unless the server is slow or unreachable.
    pub fn poll(&self, server: Option<&str>) -> bool {
        let now = Instant::now();
        let mut entries = self.entries.lock();
        entries.queried_at = Some(now);
        let of_query =
            entries.servers.iter().filter(|(name, _)| server.is_none_or(|it| it == **name));
        let is_fresh = of_query.map(|(_, entry)| entry).all(|entry| entry.is_settled(now, FRESH));
        if !is_fresh {
            self.changed.notify_all();
        }
        is_fresh
    }

    /// Returns the readiness of all servers, or of `server`; in both cases of the whole image, or
    /// of `database` alone.
    ///
    /// # Errors
    ///
    /// The server is unknown, or its measured image does not contain the database.
    pub fn query(
        &self,
        server: Option<&str>,
        database: Option<&str>,
    ) -> Result<Vec<ServerReadiness>, ReadinessQueryError> {
        let now = Instant::now();
        let entries = self.entries.lock();
        let of_query =
            entries.servers.iter().filter(|(name, _)| server.is_none_or(|it| it == **name));
        let found: Vec<_> = of_query
            .map(|(name, entry)| entry.readiness(name, &self.floors, database, now))
            .collect::<Result<_, _>>()?;
        match server {
            Some(name) if found.is_empty() => Err(ReadinessQueryError::NoServer {
                name: name.to_owned(),
                known: entries.servers.keys().cloned().collect(),
            }),
            _ => Ok(found),
        }
    }

    /// Adds a server, or replaces one of the same name.
    pub(crate) fn add(
        &self,
        name: &str,
        target: &ConnectTarget,
        source: DumpSource,
        role: BoardRole,
        metrics: ReadinessMetrics,
    ) {
        let entry = BoardEntry::new(target.clone(), source, role, metrics);
        self.entries.lock().servers.insert(name.to_owned(), entry);
    }

    pub(crate) fn remove(&self, name: &str) {
        self.entries.lock().servers.remove(name);
    }

    pub(crate) fn set_role(&self, name: &str, role: BoardRole) {
        self.update(name, |entry| entry.role = role);
    }

    /// Records whether the server accepts connections. What was measured before is discarded
    /// whenever that changes, because the cache may be empty now.
    pub(crate) fn set_up(&self, name: &str, is_up: bool) {
        self.update(name, |entry| entry.set_up(is_up));
    }

    pub(crate) fn set_loading(&self, name: &str, is_loading: bool) {
        self.update(name, |entry| entry.is_loading = is_loading);
    }

    /// Sets the image to compare the server with.
    pub(crate) fn set_image(&self, name: &str, image: Arc<CacheImage>) {
        self.update(name, |entry| entry.set_image(image));
    }

    /// Records the result of a comparison that the daemon made itself.
    pub(crate) fn record(&self, name: &str, report: HeatReport) {
        self.update(name, |entry| entry.record(Ok(report), Instant::now(), Duration::ZERO));
    }

    /// Returns the state of a server.
    pub(crate) fn state(&self, name: &str) -> Option<WarmState> {
        let entries = self.entries.lock();
        entries.servers.get(name).map(|entry| entry.state(&self.floors, Instant::now()).0)
    }

    /// Returns the standbys, in the order of their names.
    pub(crate) fn standbys(&self) -> Vec<StandbyReadiness> {
        let now = Instant::now();
        let entries = self.entries.lock();
        let standbys = entries.servers.iter().filter(|(_, it)| it.role == BoardRole::Standby);
        let standby = |(name, entry): (&String, &BoardEntry)| StandbyReadiness {
            server: name.clone(),
            endpoints: entry.target.endpoints().to_vec(),
            state: entry.state(&self.floors, now).0,
            deficit: entry.deficit(&self.floors, now),
        };
        standbys.map(standby).collect()
    }

    /// Requests a measurement, even if readiness is not queried.
    pub(crate) fn measure_soon(&self, name: &str) {
        self.update(name, |entry| entry.is_requested = true);
        self.changed.notify_all();
    }

    /// Measures from now on, even if readiness is not queried.
    pub(crate) fn measure_always(&self) {
        self.entries.lock().is_always_measured = true;
        self.changed.notify_all();
    }

    /// Whether a standby that was warm, unreachable or not measured yet was found to be cold since
    /// the last call.
    pub(crate) fn take_newly_cold(&self) -> bool {
        std::mem::take(&mut self.entries.lock().is_newly_cold)
    }

    fn update(&self, name: &str, change: impl FnOnce(&mut BoardEntry)) {
        let now = Instant::now();
        let mut entries = self.entries.lock();
        let Some(entry) = entries.servers.get_mut(name) else { return };
        let is_measured_cold = |entry: &BoardEntry, state| {
            state == WarmState::Cold && entry.role == BoardRole::Standby && entry.report().is_some()
        };
        let before = entry.state(&self.floors, now).0;
        // A load that ends below the floor is not news, nor is the result of measuring it again.
        let was_warm = match before {
            WarmState::Warm | WarmState::Unreachable => true,
            WarmState::Cold => entry.report().is_none(),
            WarmState::Loading => false,
        };
        change(entry);
        let after = entry.state(&self.floors, now).0;
        entry.publish(&self.floors, after);
        if is_measured_cold(entry, after) && was_warm {
            entries.is_newly_cold = true;
        }
    }
}

#[cfg(test)]
mod tests;
