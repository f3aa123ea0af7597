//! The Graphite backend: sends the lines of etsy's server to Carbon, as text or as pickles.
//!
//! As in etsy's server, each flush opens a connection, writes and closes it; `persistent` keeps it
//! open. Unlike etsy's server, this backend spools values that it cannot send, up to `spool-bytes`,
//! and sends them first once Carbon is reachable again. Carbon stores one value per metric and
//! timestamp, so batches that may not have arrived when a connection breaks can safely be resent.

mod lines;
mod pickle;

use std::{
    io::{self, Write as _},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use howdah_connect::deadline::DeadlineStream;

use self::lines::{GraphiteEncoder, Namespaces};
use super::{
    BackendError, BackendSpool, BackendStatus, MetricBackend,
    outbox::{BatchSink, DeliveryOutcome, Outbox, SendError, ValueBatch},
};
use crate::{
    flush::FlushSnapshot,
    settings::{self, GraphiteProtocol, StatsdDialect},
};

/// Status field: values omitted because their names are empty once sanitised.
const NAMELESS_VALUES: &str = "nameless_values";
/// Maximum time allowed for a flush, regardless of the interval.
const BUDGET_MAX: Duration = Duration::from_secs(10);
/// Maximum wait for Carbon to close the connection after the last byte.
const HANG_UP_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the time for which a flush waits for Carbon to close the connection: at most a quarter
/// of the interval, because a receiver that never closes it costs this time in every flush.
fn hang_up_timeout(interval: Duration) -> Duration {
    (interval / 4).min(HANG_UP_TIMEOUT)
}

/// The backend that sends snapshots to Carbon.
#[derive(Debug)]
pub struct GraphiteBackend {
    settings: settings::GraphiteSettings,
    dialect: StatsdDialect,
    namespaces: Namespaces,
    outbox: Outbox,
    link: CarbonConnection,
    status: BackendStatus,
}

/// The connection to Carbon, opened on demand.
#[derive(Debug)]
struct CarbonConnection {
    host: String,
    port: u16,
    persistent: bool,
    connection: Option<DeadlineStream>,
}

impl GraphiteBackend {
    /// Creates the backend. `dialect` decides which characters names may contain. The connection is
    /// opened by the first flush.
    pub fn new(settings: settings::GraphiteSettings, dialect: StatsdDialect) -> Self {
        let port = match settings.protocol {
            GraphiteProtocol::Text => settings.port,
            GraphiteProtocol::Pickle => settings.pickle_port,
        };
        let status = BackendStatus::default();
        status.set_now("last_flush");
        for name in ["last_exception", "flush_time", "flush_length"] {
            status.set(name, 0.0);
        }
        Self {
            namespaces: Namespaces::new(&settings),
            outbox: Outbox::with_unconfirmed(settings.spool_bytes),
            link: CarbonConnection {
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

    /// Marks unconfirmed batches as delivered if their connection is still open, and requeues them
    /// if not.
    fn resolve_unconfirmed(&mut self) {
        if self.link.connection.as_mut().is_some_and(|connection| !connection.is_closed()) {
            self.outbox.confirm();
        } else {
            self.link.connection = None;
            self.outbox.requeue_unconfirmed();
        }
    }

    /// Closes a non-persistent connection after the last batch of a flush. Carbon then closes the
    /// connection too, which confirms that it has read everything; otherwise the unconfirmed
    /// batches are requeued.
    fn close(&mut self, deadline: Instant, timeout: Duration) -> DeliveryOutcome<CarbonSendError> {
        let mut closed = DeliveryOutcome::default();
        if !self.link.persistent
            && let Some(connection) = self.link.connection.take()
        {
            match hang_up(connection, deadline.min(Instant::now() + timeout)) {
                Ok(()) => self.outbox.confirm(),
                Err(error) => {
                    self.outbox.requeue_unconfirmed();
                    closed = self.outbox.record_failure(Instant::now(), error.into());
                }
            }
        }
        if self.link.connection.is_none() {
            self.outbox.requeue_unconfirmed();
        }
        closed
    }

    /// Sends the spooled batches for the last time, within `timeout`.
    fn deliver_rest(&mut self, timeout: Duration) -> Result<(), BackendError> {
        self.resolve_unconfirmed();
        let start = Instant::now();
        let deadline = start + timeout;
        let (link, mut bytes) = (&mut self.link, 0);
        let mut delivery =
            self.outbox.deliver_now(start, |batch| link.send(batch, deadline, &mut bytes));
        self.link.persistent = false;
        delivery.add(self.close(deadline, HANG_UP_TIMEOUT));
        let delivered = delivery.into_result(&self.receiver(), &self.status);
        self.record_flush(start, bytes);
        delivered
    }

    fn record_flush(&self, start: Instant, bytes: usize) {
        if bytes > 0 {
            self.status.set("flush_time", start.elapsed().as_millis() as f64);
            self.status.set("flush_length", bytes as f64);
        }
        self.outbox.report(&self.status);
    }
}

/// Renders an interval. Its last four values describe the previous flush, but have the current time
/// as their timestamp.
fn render(
    snapshot: &FlushSnapshot,
    settings: &settings::GraphiteSettings,
    dialect: StatsdDialect,
    namespaces: &Namespaces,
    status: &BackendStatus,
    sink: BatchSink<'_>,
) {
    let start = Instant::now();
    let mut lines = GraphiteEncoder::new(settings.protocol, dialect, sink);
    lines.metrics(snapshot, namespaces, settings.flush_counts);
    let calculation = start.elapsed().saturating_sub(lines.send_time);
    lines.self_metrics(snapshot, namespaces, calculation.as_millis() as f64);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = now.as_secs_f64().round() as i64;
    for name in ["last_exception", "last_flush", "flush_time", "flush_length"] {
        let value = status.get(name).unwrap_or_default();
        lines.graphite_metric(snapshot, namespaces, name, value, now);
    }
    lines.flush_batch();
    if lines.nameless > 0 {
        status.add(NAMELESS_VALUES, lines.nameless as f64);
    }
}

fn hang_up(mut connection: DeadlineStream, deadline: Instant) -> io::Result<()> {
    connection.set_deadline(deadline);
    connection.finish()
}

impl MetricBackend for GraphiteBackend {
    fn name(&self) -> &'static str {
        "graphite"
    }

    /// Returns false, because each interval is one point of every graph.
    fn joins_intervals(&self) -> bool {
        false
    }

    fn status(&self) -> BackendStatus {
        self.status.clone()
    }

    fn flush(&mut self, snapshot: &Arc<FlushSnapshot>) -> Result<(), BackendError> {
        // As in etsy's server, values are discarded without a host.
        if self.settings.host.is_empty() {
            return Ok(());
        }
        self.resolve_unconfirmed();
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
        self.record_flush(start, bytes);
        delivery.into_result(&self.receiver(), &self.status)
    }

    fn finish(&mut self, timeout: Duration) -> Result<(), BackendError> {
        let delivered = self.deliver_rest(timeout);
        let abandoned = self.outbox.abandon(&self.receiver());
        self.outbox.report(&self.status);
        delivered.and(abandoned)
    }

    fn hand_over(
        &mut self,
        timeout: Duration,
        spool: &mut BackendSpool,
    ) -> Result<(), BackendError> {
        let delivered = self.deliver_rest(timeout);
        spool.batches = self.outbox.take_batches();
        delivered
    }

    fn adopt(&mut self, spool: BackendSpool) {
        self.outbox.adopt(spool.batches, true);
        self.outbox.report(&self.status);
    }
}

impl CarbonConnection {
    fn send(
        &mut self,
        batch: &ValueBatch,
        deadline: Instant,
        bytes: &mut usize,
    ) -> Result<(), CarbonSendError> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => DeadlineStream::open(&self.host, self.port, deadline)?,
        };
        connection.set_deadline(deadline);
        connection.write_all(&batch.bytes)?;
        // Reached only on success, so that a failed connection is dropped.
        self.connection = Some(connection);
        *bytes += batch.bytes.len();
        Ok(())
    }
}

/// The error of sending a batch. Carbon never refuses a batch: it is either reachable or not.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct CarbonSendError(#[from] io::Error);

impl SendError for CarbonSendError {
    fn is_refusal(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests;
