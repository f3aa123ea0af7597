//! The Kafka backend: one message for each metric, as JSON or in InfluxDB's line protocol.
//!
//! The key of a message is the metric's name, which selects its partition as Kafka's own clients
//! do, so the values of a metric are in order. Its timestamp is that of the value.
//!
//! A batch of the spool has messages of several partitions. Those that a partition has accepted are
//! remembered while the batch is sent again because of the others. A message may arrive twice only
//! if the connection failed after it was sent and before the reply: the client has no producer ids.

mod connection;
mod messages;

use std::{
    fmt, fs,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    io,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_connect::tls::TlsError;

use self::{
    connection::{KafkaConnection, KafkaError},
    messages::KafkaBatchWriter,
};
use super::{
    BackendError, BackendSpool, BackendStatus, MetricBackend, SnapshotRequirements,
    influx::for_each_line, metric_json::for_each_json, outbox::Outbox,
};
use crate::{
    flush::FlushSnapshot,
    settings::{KafkaFormat, KafkaSettings},
};

/// Maximum time allowed for a flush, regardless of the interval.
const BUDGET_MAX: Duration = Duration::from_secs(10);
/// Units per second of timestamps in line protocol: nanoseconds.
const PRECISION: i64 = 1_000_000_000;

/// The backend that sends snapshots to a topic of Kafka.
pub struct KafkaBackend {
    format: KafkaFormat,
    batch_bytes: usize,
    /// The topic and the brokers, for messages.
    receiver: String,
    connection: KafkaConnection,
    outbox: Outbox,
    status: BackendStatus,
    /// The number of the last batch, which identifies it.
    batches: u64,
}

/// The reason why the backend cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KafkaSetupError {
    /// The password file cannot be read or has no password.
    #[error("cannot use the password in {path}")]
    Password {
        /// The path of the file.
        path: PathBuf,
        /// The I/O error, or a description of the invalid content.
        source: io::Error,
    },
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The runtime of the client cannot be created.
    #[error("cannot start the client")]
    Runtime(#[source] io::Error),
}

impl KafkaBackend {
    /// Creates the backend and reads the password file. The first flush connects.
    ///
    /// # Errors
    ///
    /// See [`KafkaSetupError`].
    pub fn new(settings: &KafkaSettings) -> Result<Self, KafkaSetupError> {
        let status = BackendStatus::default();
        status.set("flush_time", 0.0);
        status.set("flush_length", 0.0);
        let password = settings.password_file.as_ref().map(read_password).transpose()?;
        Ok(Self {
            format: settings.format,
            batch_bytes: settings.batch_bytes,
            receiver: format!("{} at {}", settings.topic, settings.brokers.join(",")),
            connection: KafkaConnection::new(settings, password)?,
            outbox: Outbox::new(settings.spool_bytes),
            status,
            // Random, because batches of another process may be adopted.
            batches: RandomState::new().build_hasher().finish() >> 1,
        })
    }

    /// Sends the spooled batches for the last time, within `timeout`.
    fn deliver_rest(&mut self, timeout: Duration) -> Result<(), BackendError> {
        let (start, mut bytes) = (Instant::now(), 0);
        let Self { connection, outbox, .. } = self;
        let delivery = outbox.deliver_now(start, |batch| -> Result<(), KafkaError> {
            connection.send(&batch.bytes, start + timeout)?;
            bytes += batch.bytes.len();
            Ok(())
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

fn read_password(path: &PathBuf) -> Result<String, KafkaSetupError> {
    let unusable = |source| KafkaSetupError::Password { path: path.clone(), source };
    let text = fs::read_to_string(path).map_err(unusable)?;
    match text.trim_end_matches(['\n', '\r']) {
        "" => Err(unusable(io::Error::new(io::ErrorKind::InvalidData, "the file is empty"))),
        password => Ok(password.to_owned()),
    }
}

impl fmt::Debug for KafkaBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaBackend").field("receiver", &self.receiver).finish_non_exhaustive()
    }
}

impl MetricBackend for KafkaBackend {
    fn name(&self) -> &'static str {
        "kafka"
    }

    fn requirements(&self) -> SnapshotRequirements {
        SnapshotRequirements { names_as_sent: true, ..SnapshotRequirements::default() }
    }

    fn status(&self) -> BackendStatus {
        self.status.clone()
    }

    fn flush(&mut self, snapshot: &Arc<FlushSnapshot>) -> Result<(), BackendError> {
        let (start, mut bytes) = (Instant::now(), 0);
        let deadline = start + snapshot.interval.clamp(Duration::from_secs(1), BUDGET_MAX);
        let Self { format, batch_bytes, connection, outbox, batches, .. } = self;
        let delivery = outbox.flush(
            start,
            |sink| {
                let mut messages = KafkaBatchWriter::new(*batch_bytes, batches, sink);
                match format {
                    KafkaFormat::Json => for_each_json(snapshot, |metric| messages.add(&metric)),
                    KafkaFormat::Influx => {
                        for_each_line(snapshot, PRECISION, |metric| messages.add(&metric));
                    }
                }
                messages.flush_batch();
            },
            |batch| -> Result<(), KafkaError> {
                connection.send(&batch.bytes, deadline)?;
                bytes += batch.bytes.len();
                Ok(())
            },
        );
        self.record_flush(start, bytes);
        delivery.into_result(&self.receiver, &self.status)
    }

    fn finish(&mut self, timeout: Duration) -> Result<(), BackendError> {
        let delivered = self.deliver_rest(timeout);
        let abandoned = self.outbox.abandon(&self.receiver);
        self.outbox.report(&self.status);
        delivered.and(abandoned)
    }

    /// Messages of a batch that a partition has accepted may be sent again by the other process.
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

#[cfg(test)]
mod tests;
