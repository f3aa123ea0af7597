//! [`BackendSet`]: the running backends, which a reload may replace.
//!
//! ```text
//!              unchanged ─────────────────────────► stays, with connection, spool and totals
//!  sections ── new ─────► opened, thread started ──► gets the next flush
//!              removed ─► delivers what it has ────► ends within shutdown-timeout
//! ```
//!
//! Everything that may take time happens on the thread that reloads or on those of the backends.
//! The flush thread waits at most for the moment in which the list changes.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use howdah_connect::Environment;
use parking_lot::Mutex;

use super::{
    runner::{BackendRunner, FinishedBackend, PendingFinish, QueueOutcome},
    takeover::BackendId,
};
use crate::{
    backends::{
        BackendOpenError, BackendSection, BackendSpool, BackendStatus, EndpointSource,
        MetricBackend, OpenedBackend, ReloadHook, ScrapeEndpoint, SnapshotRequirements, chain,
    },
    flush::FlushSnapshot,
    receiver::{InheritedSocket, InheritedSockets},
    settings::{StatsdDialect, StatsdSettings},
};

/// The running backends, and those that are ending.
#[derive(Debug)]
pub(super) struct BackendSet {
    /// Opens backends from settings; `None` if a reload must not change them.
    opener: Option<BackendOpener>,
    entries: Mutex<Vec<BackendEntry>>,
    retiring: Mutex<Vec<RetiringBackend>>,
    /// Locked during a reload, so that there is only one at a time.
    reloading: Mutex<()>,
}

/// The circumstances in which backends are opened, besides their sections.
pub(super) struct BackendOpener {
    pub(super) dialect: StatsdDialect,
    pub(super) environment: Environment,
}

impl std::fmt::Debug for BackendOpener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackendOpener").field("dialect", &self.dialect).finish_non_exhaustive()
    }
}

/// A backend that is ready to start.
pub(super) struct PreparedBackend {
    /// `None` for a backend that is not from the settings.
    section: Option<BackendSection>,
    opened: OpenedBackend,
}

struct BackendEntry {
    section: Option<BackendSection>,
    /// See [`OpenedBackend::destination`].
    destination: String,
    endpoint: Option<Arc<ScrapeEndpoint>>,
    /// Reads the backend's files again, if it has any that can be.
    reload_hook: Option<ReloadHook>,
    runner: BackendRunner,
}

impl std::fmt::Debug for BackendEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackendEntry").field("runner", &self.runner).finish_non_exhaustive()
    }
}

/// A backend that a reload has removed.
#[derive(Debug)]
struct RetiringBackend {
    pending: PendingFinish,
    deadline: Instant,
}

/// The reason why a reload left the backends as they were.
#[derive(Debug, thiserror::Error)]
pub(super) enum BackendReloadError {
    #[error(transparent)]
    Open(#[from] BackendOpenError),
    #[error("cannot start a backend's thread")]
    Thread(#[source] io::Error),
}

impl BackendOpener {
    /// Opens all configured backends, with the passed sockets. If this process takes over from
    /// another one, nothing is served before the values of that process have arrived.
    ///
    /// # Errors
    ///
    /// See [`BackendOpenError`].
    pub(super) fn open_all(
        &self,
        settings: &StatsdSettings,
        passed: &mut InheritedSockets,
        takes_over: bool,
    ) -> Result<Vec<PreparedBackend>, BackendOpenError> {
        let mut open = |section| {
            let source = if takes_over {
                EndpointSource::Successor(passed)
            } else {
                EndpointSource::New(passed)
            };
            self.open(section, source)
        };
        BackendSection::all(settings).into_iter().map(&mut open).collect()
    }

    fn open(
        &self,
        section: BackendSection,
        source: EndpointSource<'_>,
    ) -> Result<PreparedBackend, BackendOpenError> {
        let opened = section.open(self.dialect, &self.environment, source)?;
        Ok(PreparedBackend { section: Some(section), opened })
    }
}

impl PreparedBackend {
    /// Creates a backend that is not from the settings.
    pub(super) fn from_caller(backend: Box<dyn MetricBackend>) -> Self {
        let destination = String::new();
        Self { section: None, opened: OpenedBackend { backend, destination, endpoint: None } }
    }

    pub(super) fn requirements(&self) -> SnapshotRequirements {
        self.opened.backend.requirements()
    }

    fn start(self, started: SystemTime) -> io::Result<BackendEntry> {
        let OpenedBackend { backend, destination, endpoint } = self.opened;
        let reload_hook = backend.reload_hook();
        let runner = BackendRunner::start(backend, started)?;
        Ok(BackendEntry { section: self.section, destination, endpoint, reload_hook, runner })
    }
}

impl BackendSet {
    /// Starts the threads of the backends. With `opener`, a reload may change them.
    ///
    /// # Errors
    ///
    /// A thread cannot be started.
    pub(super) fn start(
        opener: Option<BackendOpener>,
        prepared: Vec<PreparedBackend>,
        started: SystemTime,
    ) -> io::Result<Self> {
        let entries: io::Result<Vec<BackendEntry>> =
            prepared.into_iter().map(|backend| backend.start(started)).collect();
        Ok(Self {
            opener,
            entries: Mutex::new(entries?),
            retiring: Mutex::default(),
            reloading: Mutex::default(),
        })
    }

    /// Returns the status of each backend.
    pub(super) fn statuses(&self) -> Vec<(&'static str, BackendStatus)> {
        let entries = self.entries.lock();
        entries.iter().map(|entry| (entry.runner.name(), entry.runner.status())).collect()
    }

    /// Whether a reload may change the backends.
    pub(super) fn is_reloadable(&self) -> bool {
        self.opener.is_some()
    }

    /// Whether a backend accepts events and service checks.
    pub(super) fn accept_messages(&self) -> bool {
        self.entries.lock().iter().any(|entry| entry.runner.requirements().messages)
    }

    /// Queues an interval for each backend.
    pub(super) fn flush(&self, snapshot: &Arc<FlushSnapshot>) {
        for BackendEntry { runner, .. } in &*self.entries.lock() {
            match runner.flush(Arc::clone(snapshot)) {
                QueueOutcome::Queued => {}
                QueueOutcome::Joined => tracing::info!(
                    backend = runner.name(),
                    timestamp = snapshot.timestamp,
                    "backend busy with earlier intervals: joined this one to the waiting one"
                ),
                QueueOutcome::Dropped => tracing::warn!(
                    backend = runner.name(),
                    timestamp = snapshot.timestamp,
                    metrics = snapshot.metric_count(),
                    "backend busy with earlier intervals: dropped this one"
                ),
            }
        }
        self.poll_retiring(Instant::now());
    }

    /// Logs the results of removed backends that have ended.
    fn poll_retiring(&self, now: Instant) {
        self.retiring.lock().retain(|RetiringBackend { pending, deadline }| {
            let backend = pending.name();
            match pending.poll() {
                Some(FinishedBackend { error: None, .. }) => {
                    tracing::info!(backend, "removed backend stopped");
                }
                Some(FinishedBackend { error: Some(error), .. }) => {
                    tracing::error!(backend, error, "removed backend did not deliver all values");
                }
                None if now >= *deadline => {
                    tracing::error!(backend, "removed backend did not finish in time");
                }
                None => return true,
            }
            false
        });
    }

    /// Queues the last interval, and waits until all backends have ended. Returns those that did
    /// not deliver all values, each with the reason.
    pub(super) fn finish(
        &self,
        snapshot: &Arc<FlushSnapshot>,
        deadline: Instant,
    ) -> Vec<(&'static str, String)> {
        let entries = std::mem::take(&mut *self.entries.lock());
        let finishing = entries
            .into_iter()
            .map(|entry| entry.runner.finish(Some(Arc::clone(snapshot)), deadline));
        let retiring = std::mem::take(&mut *self.retiring.lock());
        let all: Vec<PendingFinish> =
            finishing.chain(retiring.into_iter().map(|one| one.pending)).collect();
        let finished = all.into_iter().filter_map(|finishing| {
            let name = finishing.name();
            finishing.wait(deadline).error.map(|why| (name, why))
        });
        finished.collect()
    }

    /// Returns copies of the sockets on which backends listen, for another process.
    ///
    /// # Errors
    ///
    /// The process has no free file descriptor.
    pub(super) fn passed_sockets(&self) -> io::Result<Vec<InheritedSocket>> {
        let entries = self.entries.lock();
        let endpoints = entries.iter().filter_map(|entry| entry.endpoint.as_ref());
        endpoints.map(|endpoint| endpoint.passed_socket()).collect()
    }

    /// Returns the states that another process must continue.
    ///
    /// # Errors
    ///
    /// A backend is busy for longer than `timeout`.
    pub(super) fn export_states(
        &self,
        timeout: Duration,
    ) -> Result<Vec<(BackendId, Vec<u8>)>, String> {
        let entries = self.entries.lock();
        let mut states = Vec::new();
        for (id, entry) in ids(&entries).into_iter().zip(&*entries) {
            if let Some(state) = entry.runner.export_state(timeout)? {
                states.push((id, state));
            }
        }
        Ok(states)
    }

    /// Makes a backend continue with the state of another process. Returns false if this process
    /// does not have the backend.
    ///
    /// # Errors
    ///
    /// The state is malformed.
    pub(super) fn import_state(
        &self,
        id: &BackendId,
        state: Vec<u8>,
        timeout: Duration,
    ) -> Result<bool, String> {
        let entries = self.entries.lock();
        let entry = ids(&entries).iter().position(|one| one == id).map(|at| &entries[at]);
        let imported = entry.map(|entry| entry.runner.import_state(state, timeout));
        imported.transpose().map(|imported| imported.is_some())
    }

    /// Makes the backends that need the order of intervals wait for the end of those of another
    /// process, but not longer than `until`.
    pub(super) fn park_ordered(&self, until: Instant) {
        let entries = self.entries.lock();
        let ordered = entries
            .iter()
            .filter(|entry| entry.section.as_ref().is_some_and(BackendSection::needs_order));
        ordered.for_each(|entry| entry.runner.park(until));
    }

    /// Lets backends process their intervals: one, or all.
    pub(super) fn release(&self, id: Option<&BackendId>) {
        let entries = self.entries.lock();
        for (one, entry) in ids(&entries).iter().zip(&*entries) {
            if id.is_none_or(|id| id == one) {
                entry.runner.release();
            }
        }
    }

    /// Makes a backend deliver batches of another process. Returns false if this process does not
    /// have the backend.
    pub(super) fn adopt(&self, id: &BackendId, spool: BackendSpool) -> bool {
        let entries = self.entries.lock();
        let entry = ids(&entries).iter().position(|one| one == id).map(|at| &entries[at]);
        entry.is_some_and(|entry| entry.runner.adopt(spool))
    }

    /// Makes all backends deliver what they have, because another process has taken over. Returns
    /// them with the ids under which that process gets the rest; `None` if a reload had removed
    /// the backend before.
    pub(super) fn hand_over(&self, deadline: Instant) -> Vec<(Option<BackendId>, PendingFinish)> {
        let entries = std::mem::take(&mut *self.entries.lock());
        let ids = ids(&entries).into_iter().map(Some);
        let ending = entries.into_iter().map(|entry| entry.runner.hand_over(deadline));
        let retiring = std::mem::take(&mut *self.retiring.lock());
        let retiring = retiring.into_iter().map(|one| (None, one.pending));
        ids.zip(ending).chain(retiring).collect()
    }

    /// Starts the backends of new sections and removes those of missing ones, which get `timeout`
    /// to deliver what they have. `require` is called with what the new backends require of
    /// snapshots, before the list changes. Returns the number of started and of removed backends.
    ///
    /// # Errors
    ///
    /// A new backend cannot be opened or started. Then nothing changes.
    pub(super) fn reload(
        &self,
        settings: &StatsdSettings,
        timeout: Duration,
        require: impl FnOnce(SnapshotRequirements),
    ) -> Result<(usize, usize), BackendReloadError> {
        let Some(opener) = &self.opener else { return Ok((0, 0)) };
        let _one = self.reloading.lock();
        let current: Vec<(Option<BackendSection>, Option<Arc<ScrapeEndpoint>>)> = {
            let entries = self.entries.lock();
            entries.iter().map(|entry| (entry.section.clone(), entry.endpoint.clone())).collect()
        };
        // Entries from the settings are removed unless they are claimed by an equal section.
        let mut removed: Vec<bool> = current.iter().map(|(section, _)| section.is_some()).collect();
        let mut claims = Vec::new();
        for section in BackendSection::all(settings) {
            let mut positions = 0..current.len();
            let found =
                positions.find(|at| removed[*at] && current[*at].0.as_ref() == Some(&section));
            if let Some(at) = found {
                removed[at] = false;
            }
            claims.push((section, found));
        }
        let mut prepared = Vec::new();
        for (section, _) in claims.iter().filter(|(_, found)| found.is_none()) {
            let listens = |(other, _): &(Option<BackendSection>, _)| {
                other.as_ref().and_then(BackendSection::listen) == section.listen()
            };
            let earlier = current.iter().zip(&removed);
            let mut earlier = earlier.filter(|(entry, removed)| **removed && listens(entry));
            let earlier = earlier.find_map(|((_, endpoint), _)| endpoint.as_ref());
            let mut none = InheritedSockets::default();
            let source =
                earlier.map_or_else(|| EndpointSource::New(&mut none), EndpointSource::Earlier);
            prepared.push(opener.open(section.clone(), source)?);
        }
        let needs = prepared.iter().map(PreparedBackend::requirements);
        require(needs.fold(SnapshotRequirements::MINIMAL, SnapshotRequirements::or));
        let now = SystemTime::now();
        let started: io::Result<Vec<BackendEntry>> =
            prepared.into_iter().map(|backend| backend.start(now)).collect();
        let started = started.map_err(BackendReloadError::Thread)?;
        let started_count = started.len();
        let retired = self.replace(claims.into_iter().map(|(_, found)| found), started);
        let deadline = Instant::now() + timeout;
        let retired = retired.into_iter().map(|entry| RetiringBackend {
            pending: entry.runner.finish(None, deadline),
            deadline,
        });
        let retired: Vec<RetiringBackend> = retired.collect();
        let retired_count = retired.len();
        self.retiring.lock().extend(retired);
        Ok((started_count, retired_count))
    }

    /// Reads the backends' files again. A backend whose files have errors continues with what it
    /// has, and the reason is logged.
    pub(super) fn reload_files(&self) {
        let _one = self.reloading.lock();
        let hooks: Vec<(&'static str, ReloadHook)> = {
            let entries = self.entries.lock();
            let hooks =
                entries.iter().map(|entry| (entry.runner.name(), entry.reload_hook.clone()));
            hooks.filter_map(|(backend, hook)| Some((backend, hook?))).collect()
        };
        for (backend, reload) in hooks {
            if let Err(error) = reload() {
                tracing::error!(backend, error = chain(&*error), "keeping the old mapping");
            }
        }
    }

    /// Replaces the list: each claim is the position of an entry that stays, or `None` for the next
    /// of the new ones. Entries that are not from the settings stay at the end. Returns the rest.
    fn replace(
        &self,
        claims: impl Iterator<Item = Option<usize>>,
        new: Vec<BackendEntry>,
    ) -> Vec<BackendEntry> {
        let mut new = new.into_iter();
        let mut entries = self.entries.lock();
        let mut old: Vec<Option<BackendEntry>> =
            std::mem::take(&mut *entries).into_iter().map(Some).collect();
        for claim in claims {
            entries.extend(match claim {
                Some(at) => old[at].take(),
                None => new.next(),
            });
        }
        let (rest, given): (Vec<BackendEntry>, Vec<BackendEntry>) =
            old.into_iter().flatten().partition(|entry| entry.section.is_some());
        entries.extend(given);
        rest
    }
}

fn ids(entries: &[BackendEntry]) -> Vec<BackendId> {
    BackendId::all(entries.iter().map(|entry| (entry.runner.name(), &*entry.destination)))
}
