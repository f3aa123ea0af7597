//! Carbon, Graphite's receiver: the lines etsy's server sends, or the same as pickles.
//!
//! As etsy's server does, each flush opens a connection, writes, and closes; `persistent` keeps one
//! open. Unlike there, what cannot be sent waits, up to `spool-bytes`, and goes out first when Carbon
//! is back. Carbon keeps one value for a metric and a time, so the batch whose arrival is uncertain
//! when a connection breaks is sent again.

mod lines;
mod pickle;

use std::{
    io::{self, Write as _},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use self::lines::{Lines, Namespaces};
use super::{
    Backend, BackendError, Status,
    dial::Connection,
    outbox::{Batch, Outbox, SendError, Undelivered},
};
use crate::{
    flush::Snapshot,
    settings::{self, GraphiteProtocol},
};

/// Longest that one flush may take, however long the interval is.
const BUDGET_MAX: Duration = Duration::from_secs(10);
/// How long Carbon may take to hang up after the last byte.
const GOODBYE: Duration = Duration::from_secs(1);

/// Sends snapshots to Carbon.
#[derive(Debug)]
pub struct Graphite {
    settings: settings::Graphite,
    namespaces: Namespaces,
    outbox: Outbox,
    link: Link,
    status: Status,
}

/// The way to Carbon.
#[derive(Debug)]
struct Link {
    host: String,
    port: u16,
    persistent: bool,
    connection: Option<Connection>,
    /// The last batch on the open connection: it has arrived if the connection still stands when the
    /// next one is due.
    unconfirmed: Option<Batch>,
}

impl Graphite {
    /// A backend for these settings. Nothing is connected yet.
    #[must_use]
    pub fn new(settings: settings::Graphite) -> Self {
        let port = match settings.protocol {
            GraphiteProtocol::Text => settings.port,
            GraphiteProtocol::Pickle => settings.pickle_port,
        };
        let status = Status::default();
        status.set_now("last_flush");
        for name in ["last_exception", "flush_time", "flush_length"] {
            status.set(name, 0.0);
        }
        Self {
            namespaces: Namespaces::new(&settings),
            outbox: Outbox::new(settings.spool_bytes),
            link: Link {
                host: settings.host.clone(),
                port,
                persistent: settings.persistent,
                connection: None,
                unconfirmed: None,
            },
            settings,
            status,
        }
    }

    /// The batch of an interval. Its last four values tell of the flush before it, as of now.
    fn batch(&self, snapshot: &Snapshot) -> Batch {
        let start = Instant::now();
        let mut lines = Lines::new(self.settings.protocol);
        lines.metrics(snapshot, &self.namespaces, self.settings.flush_counts);
        let calculation_ms = start.elapsed().as_millis() as f64;
        lines.own(snapshot, &self.namespaces, calculation_ms);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = now.as_secs_f64().round() as i64;
        for name in ["last_exception", "last_flush", "flush_time", "flush_length"] {
            let value = self.status.get(name).unwrap_or_default();
            lines.about_graphite(snapshot, &self.namespaces, name, value, now);
        }
        lines.into_batch()
    }

    /// Sends what waits. `now_or_never` leaves no pause out of regard for the receiver.
    fn deliver(&mut self, deadline: Instant, now_or_never: bool) -> Result<(), BackendError> {
        let (link, status) = (&mut self.link, &self.status);
        if let Some(batch) = link.lost_batch() {
            self.outbox.push_front(batch);
        }
        let send = |batch: &Batch| link.send(batch, deadline, status);
        let result = match now_or_never {
            true => self.outbox.deliver_now(Instant::now(), send),
            false => self.outbox.deliver(Instant::now(), send),
        };
        self.outbox.report(&self.status);
        let receiver = || format!("{}:{}", self.link.host, self.link.port);
        match result {
            Ok(()) => Ok(()),
            Err(Undelivered::Kept { error, first }) => {
                self.status.set_now("last_exception");
                if first {
                    tracing::warn!(receiver = receiver(), %error, "Graphite is away; values are kept");
                }
                Ok(())
            }
            Err(Undelivered::Waiting { lost: 0 }) => Ok(()),
            Err(Undelivered::Waiting { lost }) => Err(BackendError {
                receiver: receiver(),
                action: "keeping values for later",
                source: format!("no room: {lost} of the oldest are lost").into(),
            }),
            Err(Undelivered::Lost { error, values }) => {
                tracing::warn!(receiver = receiver(), values, "values are lost");
                Err(BackendError {
                    receiver: receiver(),
                    action: "sending",
                    source: error.0.into(),
                })
            }
        }
    }
}

impl Backend for Graphite {
    fn name(&self) -> &'static str {
        "graphite"
    }

    fn status(&self) -> Status {
        self.status.clone()
    }

    fn flush(&mut self, snapshot: &Arc<Snapshot>) -> Result<(), BackendError> {
        // As in etsy's server: without a host, values are worked out and thrown away.
        if self.settings.host.is_empty() {
            return Ok(());
        }
        let batch = self.batch(snapshot);
        self.outbox.push(batch);
        let budget = snapshot.interval.clamp(Duration::from_secs(1), BUDGET_MAX);
        self.deliver(Instant::now() + budget, false)
    }

    fn finish(&mut self, patience: Duration) -> Result<(), BackendError> {
        let deadline = Instant::now() + patience;
        let mut result = self.deliver(deadline, true);
        if result.is_ok() && !self.outbox.is_empty() {
            let lost = self.outbox.abandon();
            self.outbox.report(&self.status);
            result = Err(BackendError {
                receiver: format!("{}:{}", self.link.host, self.link.port),
                action: "sending what was kept",
                source: format!("{lost} values are lost").into(),
            });
        }
        if let Some(mut connection) = self.link.connection.take() {
            connection.set_deadline(deadline.min(Instant::now() + GOODBYE));
            // The values are out; a goodbye that fails changes nothing.
            let _ = connection.finish();
        }
        result
    }
}

impl Link {
    /// The batch whose arrival became uncertain because its connection is gone.
    fn lost_batch(&mut self) -> Option<Batch> {
        let connection = self.connection.as_mut()?;
        if connection.is_closed() {
            self.connection = None;
            return self.unconfirmed.take();
        }
        self.unconfirmed = None;
        None
    }

    fn send(
        &mut self,
        batch: &Batch,
        deadline: Instant,
        status: &Status,
    ) -> Result<(), SendFailure> {
        let mut connection = match self.connection.take() {
            Some(mut connection) => {
                connection.set_deadline(deadline);
                connection
            }
            None => Connection::open(&self.host, self.port, deadline)?,
        };
        let start = Instant::now();
        connection.write_all(&batch.bytes)?;
        if self.persistent {
            self.connection = Some(connection);
            self.unconfirmed = Some(batch.clone());
        } else {
            connection.set_deadline(deadline.min(Instant::now() + GOODBYE));
            connection.finish()?;
        }
        status.set("flush_time", start.elapsed().as_millis() as f64);
        status.set("flush_length", batch.bytes.len() as f64);
        Ok(())
    }
}

/// Carbon never refuses: it either takes bytes or is away.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct SendFailure(#[from] io::Error);

impl SendError for SendFailure {
    fn is_refusal(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests;
