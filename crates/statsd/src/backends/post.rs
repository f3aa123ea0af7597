//! Batches to an HTTP endpoint, with an outbox for when it is away. What the bodies are is said by
//! those who use it.

use std::time::{Duration, Instant};

use howdah_post::{Endpoint, PostError, quote};

use super::{
    BackendError, Status,
    outbox::{Batch, Outbox, SendError, Sink},
};

/// What receivers get to know of us.
pub(super) const AGENT: &str = "howdah-statsd";

/// Longest that one flush may take, however long the interval is.
const BUDGET_MAX: Duration = Duration::from_secs(10);

/// An endpoint and what waits for it.
pub(super) struct Poster {
    endpoint: Endpoint,
    outbox: Outbox,
    status: Status,
    refused: RefusedValues,
}

/// How many values of a batch a receiver did not take that refused it.
pub(super) type RefusedValues = fn(&PostError, &Batch) -> u64;

impl Poster {
    pub(super) fn new(endpoint: Endpoint, spool_bytes: usize) -> Self {
        let status = Status::default();
        status.set("flush_time", 0.0);
        status.set("flush_length", 0.0);
        let refused = |_: &PostError, batch: &Batch| batch.values;
        Self { endpoint, outbox: Outbox::new(spool_bytes), status, refused }
    }

    /// For a receiver that takes a part of what it refuses.
    pub(super) fn refused_by(self, refused: RefusedValues) -> Self {
        Self { refused, ..self }
    }

    pub(super) fn status(&self) -> Status {
        self.status.clone()
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Sends what waits and then what `render` makes.
    pub(super) fn flush(
        &mut self,
        interval: Duration,
        render: impl FnOnce(Sink<'_>),
    ) -> Result<(), BackendError> {
        let start = Instant::now();
        let deadline = start + interval.clamp(Duration::from_secs(1), BUDGET_MAX);
        let (endpoint, refused, mut bytes) = (&self.endpoint, self.refused, 0);
        let delivery = self.outbox.flush(start, render, |batch| {
            post(endpoint, batch, deadline, &mut bytes).map_err(|error| NotTaken { error, refused })
        });
        self.account(start, bytes);
        delivery.tell(self.endpoint.shown(), &self.status)
    }

    /// Sends what waits, for the last time.
    pub(super) fn finish(&mut self, patience: Duration) -> Result<(), BackendError> {
        let start = Instant::now();
        let (endpoint, refused, mut bytes) = (&self.endpoint, self.refused, 0);
        let deadline = start + patience;
        let delivery = self.outbox.deliver_now(start, |batch| {
            post(endpoint, batch, deadline, &mut bytes).map_err(|error| NotTaken { error, refused })
        });
        let delivered = delivery.tell(self.endpoint.shown(), &self.status);
        let abandoned = self.outbox.abandon(self.endpoint.shown());
        self.account(start, bytes);
        delivered.and(abandoned)
    }

    fn account(&self, start: Instant, bytes: usize) {
        if bytes > 0 {
            self.status.set("flush_time", start.elapsed().as_millis() as f64);
            self.status.set("flush_length", bytes as f64);
        }
        self.outbox.report(&self.status);
    }
}

/// A batch that was not taken, or not all of it.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
struct NotTaken {
    error: PostError,
    refused: RefusedValues,
}

impl SendError for NotTaken {
    fn is_refusal(&self) -> bool {
        self.error.is_refusal()
    }

    fn refused_values(&self, batch: &Batch) -> u64 {
        (self.refused)(&self.error, batch)
    }
}

fn post(
    endpoint: &Endpoint,
    batch: &Batch,
    deadline: Instant,
    bytes: &mut usize,
) -> Result<(), PostError> {
    let reply = endpoint.post(&batch.bytes, deadline)?;
    *bytes += batch.bytes.len();
    if !reply.is_empty() {
        // Taken, but with a remark: OTLP's partial success, for one.
        let said = quote(&reply);
        tracing::debug!(receiver = endpoint.shown(), said, "the receiver remarks");
    }
    Ok(())
}
