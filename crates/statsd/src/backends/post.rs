//! Batches to an HTTP endpoint, with an outbox for when it is away. What the bodies are is said by
//! those who use it.

use std::time::{Duration, Instant};

use super::{
    BackendError, Status,
    http::{Endpoint, PostError, quote},
    outbox::{Batch, Outbox, Undelivered},
};

/// Longest that one flush may take, however long the interval is.
const BUDGET_MAX: Duration = Duration::from_secs(10);

/// An endpoint and what waits for it.
pub(super) struct Poster {
    endpoint: Endpoint,
    outbox: Outbox,
    status: Status,
}

impl Poster {
    pub(super) fn new(endpoint: Endpoint, spool_bytes: usize) -> Self {
        let status = Status::default();
        status.set("flush_time", 0.0);
        status.set("flush_length", 0.0);
        Self { endpoint, outbox: Outbox::new(spool_bytes), status }
    }

    pub(super) fn status(&self) -> Status {
        self.status.clone()
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Sends the batches of one flush, after those that wait.
    pub(super) fn flush(
        &mut self,
        batches: Vec<Batch>,
        interval: Duration,
    ) -> Result<(), BackendError> {
        batches.into_iter().for_each(|batch| self.outbox.push(batch));
        let budget = interval.clamp(Duration::from_secs(1), BUDGET_MAX);
        self.deliver(Instant::now() + budget, false)
    }

    /// Sends what waits, for the last time.
    pub(super) fn finish(&mut self, patience: Duration) -> Result<(), BackendError> {
        let delivered = self.deliver(Instant::now() + patience, true);
        match (delivered, self.outbox.abandon()) {
            (Ok(()), 0) => Ok(()),
            (Err(error), _) => Err(error),
            (Ok(()), lost) => {
                self.outbox.report(&self.status);
                Err(self.error("sending what was kept", format!("{lost} values are lost").into()))
            }
        }
    }

    fn deliver(&mut self, deadline: Instant, now_or_never: bool) -> Result<(), BackendError> {
        let start = Instant::now();
        let (endpoint, status) = (&self.endpoint, &self.status);
        let mut bytes = 0;
        let send = |batch: &Batch| -> Result<(), PostError> {
            let reply = endpoint.post(&batch.bytes, deadline)?;
            bytes += batch.bytes.len();
            if !reply.is_empty() {
                // Taken, but with a remark: OTLP's partial success, for one.
                let said = quote(&reply);
                tracing::debug!(receiver = endpoint.shown(), said, "the receiver remarks");
            }
            Ok(())
        };
        let result = match now_or_never {
            true => self.outbox.deliver_now(start, send),
            false => self.outbox.deliver(start, send),
        };
        if bytes > 0 {
            status.set("flush_time", start.elapsed().as_millis() as f64);
            status.set("flush_length", bytes as f64);
        }
        self.outbox.report(status);
        match result {
            Ok(()) | Err(Undelivered::Waiting { lost: 0 }) => Ok(()),
            Err(Undelivered::Kept { error, first }) => {
                self.status.set_now("last_exception");
                if first {
                    let receiver = self.endpoint.shown();
                    tracing::warn!(receiver, %error, "the receiver is away; values are kept");
                }
                Ok(())
            }
            Err(Undelivered::Waiting { lost }) => {
                let reason = format!("no room: {lost} of the oldest are lost");
                Err(self.error("keeping values for later", reason.into()))
            }
            Err(Undelivered::Lost { error, values }) => {
                tracing::warn!(receiver = self.endpoint.shown(), values, "values are lost");
                Err(self.error("sending", error.into()))
            }
        }
    }

    fn error(
        &self,
        action: &'static str,
        source: Box<dyn std::error::Error + Send + Sync>,
    ) -> BackendError {
        BackendError { receiver: self.endpoint.shown().to_owned(), action, source }
    }
}
