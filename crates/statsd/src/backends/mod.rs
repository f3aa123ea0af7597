//! Where snapshots go.
//!
//! A [`Backend`] is a plain blocking object that one thread owns. The server gives each a bounded
//! queue of snapshots, so that a slow or dead receiver delays nobody else; a snapshot that finds
//! the queue full is added to the one that waits, or, where each has to keep its time, dropped and
//! counted.

mod console;
mod file;
mod graphite;
mod influx;
mod open;
mod otlp;
mod outbox;
mod post;
mod postgres;
mod prometheus;
pub(crate) mod protobuf;
mod repeater;
#[cfg(test)]
pub(crate) mod testing;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

pub(crate) use self::outbox::{
    DROPPED_METRICS, FLUSHES_DROPPED, FLUSHES_JOINED, LOST_VALUES, SPOOL_BATCHES, SPOOL_BYTES,
};
pub use self::{
    console::Console,
    file::File,
    graphite::Graphite,
    influx::Influx,
    open::{OpenError, open},
    otlp::Otlp,
    postgres::{Postgres, PostgresError},
    prometheus::{MappingError, MappingProblem, Prometheus, PrometheusError, mapped},
    repeater::Repeater,
};
use crate::flush::Snapshot;

/// A receiver of snapshots. All calls come from one thread, its own; it may block there.
pub trait Backend: Send {
    /// Its name in the settings, in logs and at the management port, such as `graphite`.
    fn name(&self) -> &'static str;

    /// What it wants to find in snapshots beyond the plain values.
    fn needs(&self) -> Needs {
        Needs::default()
    }

    /// Whether several intervals may come as one when the backend is behind, so that no increment is
    /// lost. Not where each interval has to keep its own time.
    fn joins_intervals(&self) -> bool {
        true
    }

    /// Its account for the management port: the handle that it writes to, cloned.
    fn status(&self) -> Status;

    /// Takes one interval. Called once per flush, in order of time.
    ///
    /// # Errors
    ///
    /// The values did not get where they belong and will not by themselves. The caller logs the
    /// error and notes it as the last exception; what may be sent again later is the backend's own
    /// to keep, within a bound, and no error.
    fn flush(&mut self, snapshot: &Arc<Snapshot>) -> Result<(), BackendError>;

    /// The server ends: delivers what is still kept, within `patience`. The last snapshot has been
    /// given to [`flush`](Self::flush) before.
    ///
    /// # Errors
    ///
    /// Something kept could not be delivered in time.
    fn finish(&mut self, patience: Duration) -> Result<(), BackendError> {
        let _ = patience;
        Ok(())
    }
}

/// What a backend wants computed that costs something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Cumulative distributions of timers, [`crate::flush::Timer::cumulative`].
    pub distributions: bool,
    /// Keys as they were sent, [`crate::flush::Snapshot::counters_as_sent`] and its like.
    pub names_as_sent: bool,
}

impl Needs {
    /// What either wants.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            distributions: self.distributions || other.distributions,
            names_as_sent: self.names_as_sent || other.names_as_sent,
        }
    }
}

/// Why values did not arrive. How many those were is among the causes, where it is known.
#[derive(Debug, thiserror::Error)]
#[error("{receiver}: {action} failed")]
pub struct BackendError {
    /// Who was to get them, as written in the settings: an address, a path, a URL. No passwords.
    pub receiver: String,
    /// What was tried, such as `connecting`.
    pub action: &'static str,
    /// What went wrong with it.
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// An error and its causes in one line.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// What a backend tells the management port. Shared by its thread and the port's.
///
/// The runner sets `last_flush` and `last_exception`; a backend adds its own, such as Graphite's
/// `flush_time` and `flush_length`.
#[derive(Clone, Debug, Default)]
pub struct Status(Arc<Mutex<BTreeMap<&'static str, f64>>>);

impl Status {
    /// Sets one value. Names that begin with `last_` hold seconds since 1970, and are shown as ages.
    pub fn set(&self, name: &'static str, value: f64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name, value);
    }

    /// Adds to one value, which is 0 at first.
    pub(crate) fn add(&self, name: &'static str, value: f64) {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *values.entry(name).or_default() += value;
    }

    /// Sets `name` to the present second.
    pub fn set_now(&self, name: &'static str) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.set(name, now.as_secs_f64().round());
    }

    /// One value.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied()
    }

    /// All values by name.
    #[must_use]
    pub fn all(&self) -> Vec<(&'static str, f64)> {
        let values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        values.iter().map(|(name, value)| (*name, *value)).collect()
    }
}
