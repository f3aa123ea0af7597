//! Sends batches to an HTTP endpoint, with an outbox for outages. The callers encode the bodies.

use std::time::{Duration, Instant};

use howdah_http::client::{HttpEndpoint, PostError, quote};

use super::{
    BackendError, BackendSpool, BackendStatus,
    outbox::{BatchSink, Outbox, SendError, ValueBatch},
};

/// The `User-Agent` header.
pub(super) const AGENT: &str = "howdah-statsd";

/// Maximum time allowed for a flush, regardless of the interval.
const BUDGET_MAX: Duration = Duration::from_secs(10);

/// A sender that posts batches to an HTTP endpoint, and spools them while the endpoint is
/// unreachable.
pub(super) struct HttpSender {
    endpoint: HttpEndpoint,
    /// The endpoint's name in messages.
    receiver: String,
    outbox: Outbox,
    status: BackendStatus,
    refused: CountRefusedValues,
}

/// A function that returns how many values of a refused batch the receiver did not accept.
pub(super) type CountRefusedValues = fn(&PostError, &ValueBatch) -> u64;

impl HttpSender {
    pub(super) fn new(endpoint: HttpEndpoint, spool_bytes: usize) -> Self {
        let status = BackendStatus::default();
        status.set("flush_time", 0.0);
        status.set("flush_length", 0.0);
        let refused = |_: &PostError, batch: &ValueBatch| batch.values;
        let receiver = endpoint.display_url().to_owned();
        Self { endpoint, receiver, outbox: Outbox::new(spool_bytes), status, refused }
    }

    /// Shows only the scheme, host and port of the endpoint, because its path may be a secret.
    pub(super) fn without_path(self) -> Self {
        Self { receiver: self.endpoint.origin(), ..self }
    }

    /// Sets the function that counts refused values, for receivers that may accept part of a batch.
    pub(super) fn refused_by(self, refused: CountRefusedValues) -> Self {
        Self { refused, ..self }
    }

    pub(super) fn status(&self) -> BackendStatus {
        self.status.clone()
    }

    /// Returns the endpoint's name in messages.
    pub(super) fn receiver(&self) -> &str {
        &self.receiver
    }

    /// Sends the spooled batches and then those from `render`.
    pub(super) fn flush(
        &mut self,
        interval: Duration,
        render: impl FnOnce(BatchSink<'_>),
    ) -> Result<(), BackendError> {
        let start = Instant::now();
        let deadline = start + interval.clamp(Duration::from_secs(1), BUDGET_MAX);
        let (endpoint, receiver, refused) = (&self.endpoint, &self.receiver, self.refused);
        let mut bytes = 0;
        let delivery = self.outbox.flush(start, render, |batch| {
            post(endpoint, receiver, batch, deadline, &mut bytes)
                .map_err(|error| HttpSendError { error, refused })
        });
        self.record_flush(start, bytes);
        delivery.into_result(&self.receiver, &self.status)
    }

    /// Sends the spooled batches for the last time, within `timeout`, and drops the rest.
    pub(super) fn finish(&mut self, timeout: Duration) -> Result<(), BackendError> {
        let delivered = self.deliver_rest(timeout);
        let abandoned = self.outbox.abandon(&self.receiver);
        self.outbox.report(&self.status);
        delivered.and(abandoned)
    }

    /// Sends the spooled batches for the last time, within `timeout`, and moves the rest to
    /// `spool`.
    pub(super) fn hand_over(
        &mut self,
        timeout: Duration,
        spool: &mut BackendSpool,
    ) -> Result<(), BackendError> {
        let delivered = self.deliver_rest(timeout);
        spool.batches = self.outbox.take_batches();
        delivered
    }

    /// Spools batches of another process before the own ones.
    pub(super) fn adopt(&mut self, spool: BackendSpool) {
        self.outbox.adopt(spool.batches, true);
        self.outbox.report(&self.status);
    }

    fn deliver_rest(&mut self, timeout: Duration) -> Result<(), BackendError> {
        let start = Instant::now();
        let (endpoint, receiver, refused) = (&self.endpoint, &self.receiver, self.refused);
        let mut bytes = 0;
        let deadline = start + timeout;
        let delivery = self.outbox.deliver_now(start, |batch| {
            post(endpoint, receiver, batch, deadline, &mut bytes)
                .map_err(|error| HttpSendError { error, refused })
        });
        let delivered = delivery.into_result(&self.receiver, &self.status);
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

/// The error of posting a batch, with the function that counts the values not accepted.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
struct HttpSendError {
    error: PostError,
    refused: CountRefusedValues,
}

impl SendError for HttpSendError {
    fn is_refusal(&self) -> bool {
        self.error.is_refusal()
    }

    fn refused_values(&self, batch: &ValueBatch) -> u64 {
        (self.refused)(&self.error, batch)
    }
}

fn post(
    endpoint: &HttpEndpoint,
    receiver: &str,
    batch: &ValueBatch,
    deadline: Instant,
    bytes: &mut usize,
) -> Result<(), PostError> {
    let reply = endpoint.post(&batch.bytes, deadline)?;
    *bytes += batch.bytes.len();
    if !reply.is_empty() {
        // The receiver accepted the batch with a remark, such as OTLP's partial success.
        let reply = quote(&reply);
        tracing::debug!(receiver, reply, "the receiver accepted the batch with a remark");
    }
    Ok(())
}
