//! Carbon, Graphite's receiver: the lines etsy's server sends, or the same as pickles.
//!
//! As etsy's server does, each flush opens a connection, writes, and closes; `persistent` keeps one
//! open. Unlike there, what cannot be sent waits, up to `spool-bytes`, and goes out first when Carbon
//! is back. Carbon keeps one value for a metric and a time, so what may not have arrived when a
//! connection breaks is sent again.

mod lines;
mod pickle;

use std::{
    io::{self, Write as _},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use howdah_post::Connection;

use self::lines::{Lines, Namespaces};
use super::{
    Backend, BackendError, Status,
    outbox::{Batch, Delivery, Outbox, SendError, Sink},
};
use crate::{
    flush::Snapshot,
    settings::{self, Dialect, GraphiteProtocol},
};

/// Values that were left out, because nothing of their names is fit for Graphite.
const NAMELESS_VALUES: &str = "nameless_values";
/// Longest that one flush may take, however long the interval is.
const BUDGET_MAX: Duration = Duration::from_secs(10);
/// How long Carbon may take to hang up after the last byte, at most.
const HANG_UP_TIMEOUT: Duration = Duration::from_secs(1);

/// How long it may take within a flush. Receivers that leave closing to us are waited for in every
/// flush, and the next interval is not far.
fn hang_up_timeout(interval: Duration) -> Duration {
    (interval / 4).min(HANG_UP_TIMEOUT)
}

/// Sends snapshots to Carbon.
#[derive(Debug)]
pub struct Graphite {
    settings: settings::Graphite,
    dialect: Dialect,
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
}

impl Graphite {
    /// A backend for these settings, with the characters in names of the dialect's server. Nothing is
    /// connected yet.
    #[must_use]
    pub fn new(settings: settings::Graphite, dialect: Dialect) -> Self {
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
            outbox: Outbox::with_doubts(settings.spool_bytes),
            link: Link {
                host: settings.host.clone(),
                port,
                persistent: settings.persistent,
                connection: None,
            },
            settings,
            dialect,
            status,
        }
    }

    fn receiver(&self) -> String {
        format!("{}:{}", self.link.host, self.link.port)
    }

    /// What is remembered of an earlier connection has arrived if that still stands, or waits again.
    fn settle(&mut self) {
        if self.link.connection.as_mut().is_some_and(|connection| !connection.is_closed()) {
            self.outbox.confirm();
        } else {
            self.link.connection = None;
            self.outbox.take_back();
        }
    }

    /// After the last batch of a flush: a connection that is not to stay is ended, by which Carbon
    /// says that it has read everything.
    fn close(&mut self, deadline: Instant, timeout: Duration) -> Delivery<SendFailure> {
        let mut closed = Delivery::default();
        if !self.link.persistent
            && let Some(connection) = self.link.connection.take()
        {
            match hang_up(connection, deadline.min(Instant::now() + timeout)) {
                Ok(()) => self.outbox.confirm(),
                Err(error) => {
                    self.outbox.take_back();
                    closed = self.outbox.failed(Instant::now(), error.into());
                }
            }
        }
        if self.link.connection.is_none() {
            self.outbox.take_back();
        }
        closed
    }

    fn account(&self, start: Instant, bytes: usize) {
        if bytes > 0 {
            self.status.set("flush_time", start.elapsed().as_millis() as f64);
            self.status.set("flush_length", bytes as f64);
        }
        self.outbox.report(&self.status);
    }
}

/// The batches of an interval. Its last four values tell of the flush before it, as of now.
fn render(
    snapshot: &Snapshot,
    settings: &settings::Graphite,
    dialect: Dialect,
    namespaces: &Namespaces,
    status: &Status,
    sink: Sink<'_>,
) {
    let start = Instant::now();
    let mut lines = Lines::new(settings.protocol, dialect, sink);
    lines.metrics(snapshot, namespaces, settings.flush_counts);
    let calculation = start.elapsed().saturating_sub(lines.sending);
    lines.own(snapshot, namespaces, calculation.as_millis() as f64);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = now.as_secs_f64().round() as i64;
    for name in ["last_exception", "last_flush", "flush_time", "flush_length"] {
        let value = status.get(name).unwrap_or_default();
        lines.about_graphite(snapshot, namespaces, name, value, now);
    }
    lines.end_batch();
    if lines.nameless > 0 {
        status.add(NAMELESS_VALUES, lines.nameless as f64);
    }
}

fn hang_up(mut connection: Connection, deadline: Instant) -> io::Result<()> {
    connection.set_deadline(deadline);
    connection.finish()
}

impl Backend for Graphite {
    fn name(&self) -> &'static str {
        "graphite"
    }

    /// Each interval is a point in time of every graph.
    fn joins_intervals(&self) -> bool {
        false
    }

    fn status(&self) -> Status {
        self.status.clone()
    }

    fn flush(&mut self, snapshot: &Arc<Snapshot>) -> Result<(), BackendError> {
        // As in etsy's server: without a host, values are worked out and thrown away.
        if self.settings.host.is_empty() {
            return Ok(());
        }
        self.settle();
        let start = Instant::now();
        let deadline = start + snapshot.interval.clamp(Duration::from_secs(1), BUDGET_MAX);
        let Self { settings, dialect, namespaces, outbox, link, status } = self;
        let dialect = *dialect;
        let mut bytes = 0;
        let mut delivery = outbox.flush(
            start,
            |sink| render(snapshot, settings, dialect, namespaces, status, sink),
            |batch| link.send(batch, deadline, &mut bytes),
        );
        delivery.add(self.close(deadline, hang_up_timeout(snapshot.interval)));
        self.account(start, bytes);
        delivery.tell(&self.receiver(), &self.status)
    }

    fn finish(&mut self, patience: Duration) -> Result<(), BackendError> {
        self.settle();
        let start = Instant::now();
        let deadline = start + patience;
        let (link, mut bytes) = (&mut self.link, 0);
        let mut delivery =
            self.outbox.deliver_now(start, |batch| link.send(batch, deadline, &mut bytes));
        self.link.persistent = false;
        delivery.add(self.close(deadline, HANG_UP_TIMEOUT));
        let delivered = delivery.tell(&self.receiver(), &self.status);
        let abandoned = self.outbox.abandon(&self.receiver());
        self.account(start, bytes);
        delivered.and(abandoned)
    }
}

impl Link {
    fn send(
        &mut self,
        batch: &Batch,
        deadline: Instant,
        bytes: &mut usize,
    ) -> Result<(), SendFailure> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(&self.host, self.port, deadline)?,
        };
        connection.set_deadline(deadline);
        connection.write_all(&batch.bytes)?;
        // One that failed is not kept.
        self.connection = Some(connection);
        *bytes += batch.bytes.len();
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
