//! Backends: the destinations of snapshots.
//!
//! A [`MetricBackend`] is a blocking object owned by one thread. The server gives each a bounded
//! queue of snapshots, so that a slow or dead receiver does not delay the other backends. If the
//! queue is full, a snapshot is joined to the one waiting or, where each interval needs its own
//! timestamp, dropped and counted.

mod console;
mod exec;
mod factory;
mod file;
mod forward;
mod graphite;
mod http;
mod influx;
#[cfg(feature = "kafka")]
mod kafka;
mod messages;
mod metric_json;
mod otlp;
mod outbox;
mod postgres;
mod prometheus;
mod repeater;
mod stop_deadline;
#[cfg(test)]
pub(crate) mod testing;
mod webhook;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;

#[cfg(feature = "kafka")]
pub use self::kafka::{KafkaBackend, KafkaSetupError};
pub use self::{
    console::ConsoleOutput,
    exec::ExecBackend,
    factory::{BackendOpenError, open},
    file::FileBackend,
    forward::ForwardBackend,
    graphite::GraphiteBackend,
    influx::InfluxBackend,
    otlp::OtlpBackend,
    outbox::{BackendSpool, BatchContent, ValueBatch},
    postgres::{PostgresBackend, PostgresError},
    prometheus::{
        MappingError, MappingProblem, PrometheusBackend, PrometheusError, PrometheusPreview,
        RemoteWriteBackend, RemoteWriteError, map_counter_name,
    },
    repeater::PacketRepeater,
    stop_deadline::StopDeadline,
    webhook::WebhookBackend,
};
pub(crate) use self::{
    factory::{BackendSection, OpenedBackend},
    outbox::{
        DROPPED_METRICS, FLUSHES_DROPPED, FLUSHES_JOINED, LOST_VALUES, SPOOL_BATCHES, SPOOL_BYTES,
    },
    prometheus::{EndpointSource, ScrapeEndpoint},
};
use crate::flush::FlushSnapshot;

/// A destination of snapshots. [`flush`](Self::flush) and [`finish`](Self::finish) are called on a
/// dedicated thread and may block.
pub trait MetricBackend: Send {
    /// Returns the name in settings, logs and the management port, such as `graphite`.
    fn name(&self) -> &'static str;

    /// Returns the optional parts of snapshots that the backend uses.
    fn requirements(&self) -> SnapshotRequirements {
        SnapshotRequirements::default()
    }

    /// Whether several intervals may be joined into one when the backend is too slow, so that no
    /// increment is lost. False if each interval needs its own timestamp.
    fn joins_intervals(&self) -> bool {
        true
    }

    /// Returns a function that reads the backend's own files again, such as a mapping file, if it
    /// has any. The server calls it when settings are reloaded, on another thread.
    fn reload_hook(&self) -> Option<ReloadHook> {
        None
    }

    /// Returns the status values that the backend sets and the management port displays.
    fn status(&self) -> BackendStatus;

    /// Returns the time by which [`flush`](Self::flush) must end once the backend is being stopped,
    /// for backends whose flush may otherwise take longer. It is set by another thread.
    fn stop_deadline(&self) -> Option<StopDeadline> {
        None
    }

    /// Processes one interval. Called for each flush in chronological order; while the backend is
    /// busy, intervals are joined or dropped.
    ///
    /// # Errors
    ///
    /// Values were lost. The caller logs the error and records it as the last exception. Values
    /// that the backend spools, within a limit, to send them later are not an error.
    fn flush(&mut self, snapshot: &Arc<FlushSnapshot>) -> Result<(), BackendError>;

    /// Delivers all spooled values within `timeout`, because the server is shutting down. The last
    /// snapshot has been passed to [`flush`](Self::flush) before.
    ///
    /// # Errors
    ///
    /// Some spooled values could not be delivered.
    fn finish(&mut self, timeout: Duration) -> Result<(), BackendError> {
        let _ = timeout;
        Ok(())
    }

    /// Delivers all spooled values within `timeout`, because another process has taken over, and
    /// moves those that could not be delivered to `spool`.
    ///
    /// # Errors
    ///
    /// Values were lost.
    fn hand_over(
        &mut self,
        timeout: Duration,
        spool: &mut BackendSpool,
    ) -> Result<(), BackendError> {
        let _ = spool;
        self.finish(timeout)
    }

    /// Spools batches that the same backend of another process could not deliver. The next flush
    /// sends them.
    fn adopt(&mut self, spool: BackendSpool) {
        let _ = spool;
    }

    /// Whether the backend has a state besides its spool that another process must continue.
    fn exports_state(&self) -> bool {
        false
    }

    /// Returns the state for another process.
    fn export_state(&mut self) -> Option<Vec<u8>> {
        None
    }

    /// Continues with the state of another process, before the first flush.
    ///
    /// # Errors
    ///
    /// The state is malformed.
    fn import_state(&mut self, state: &[u8]) -> Result<(), BackendError> {
        let _ = state;
        Ok(())
    }
}

/// Reads the files of a backend again. If that fails, the backend continues with what it has.
pub type ReloadHook =
    Arc<dyn Fn() -> Result<(), Box<dyn std::error::Error + Send + Sync>> + Send + Sync>;

/// Parts of a snapshot that are computed only on request, because they are costly. By default,
/// those that etsy's server sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotRequirements {
    /// Cumulative distributions of timers, [`crate::flush::TimerMetric::cumulative`].
    pub distributions: bool,
    /// Keys as they were sent, [`crate::flush::FlushSnapshot::counters_as_sent`] and its siblings.
    pub names_as_sent: bool,
    /// Counters that were not received in the interval.
    pub idle_counters: bool,
    /// The statistics of etsy's server, [`crate::flush::TimerMetric::fields`], and the quantiles of
    /// [`crate::flush::TimerSummary`].
    pub timer_fields: bool,
    /// Events and service checks, [`crate::flush::FlushSnapshot::messages`].
    pub messages: bool,
    /// The form that another server can merge.
    pub mergeable: bool,
}

impl Default for SnapshotRequirements {
    fn default() -> Self {
        Self { idle_counters: true, timer_fields: true, ..Self::MINIMAL }
    }
}

impl SnapshotRequirements {
    /// No optional part.
    pub const MINIMAL: Self = Self {
        distributions: false,
        names_as_sent: false,
        idle_counters: false,
        timer_fields: false,
        messages: false,
        mergeable: false,
    };

    /// Requires every part that at least one of the two requires.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            distributions: self.distributions || other.distributions,
            names_as_sent: self.names_as_sent || other.names_as_sent,
            idle_counters: self.idle_counters || other.idle_counters,
            timer_fields: self.timer_fields || other.timer_fields,
            messages: self.messages || other.messages,
            mergeable: self.mergeable || other.mergeable,
        }
    }
}

/// The reason why values were not delivered. The source chain contains their number, if known.
#[derive(Debug, thiserror::Error)]
#[error("{receiver}: {action} failed")]
pub struct BackendError {
    /// The destination as configured: an address, a path or a URL, without passwords.
    pub receiver: String,
    /// The failed action, such as `sending`.
    pub action: &'static str,
    /// The cause.
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// Formats an error and its sources on one line.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// Status values of a backend for the management port, shared between its thread and the port's.
///
/// The runner sets `last_flush` and `last_exception`; backends add their own values, such as
/// Graphite's `flush_time` and `flush_length`.
#[derive(Clone, Debug, Default)]
pub struct BackendStatus(Arc<Mutex<BTreeMap<&'static str, f64>>>);

impl BackendStatus {
    /// Sets one value. Values whose names start with `last_` are seconds since 1970 and are
    /// displayed as ages.
    pub fn set(&self, name: &'static str, value: f64) {
        self.0.lock().insert(name, value);
    }

    /// Adds to one value, which starts at 0.
    pub(crate) fn add(&self, name: &'static str, value: f64) {
        let mut values = self.0.lock();
        *values.entry(name).or_default() += value;
    }

    /// Sets `name` to the current time in seconds since 1970.
    pub fn set_now(&self, name: &'static str) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.set(name, now.as_secs_f64().round());
    }

    /// Returns the value of `name`, if set.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.lock().get(name).copied()
    }

    /// Returns all values, sorted by name.
    pub fn all(&self) -> Vec<(&'static str, f64)> {
        let values = self.0.lock();
        values.iter().map(|(name, value)| (*name, *value)).collect()
    }
}
