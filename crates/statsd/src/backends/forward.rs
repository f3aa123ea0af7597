//! The forward backend: sends mergeable aggregates to another server of a tree.
//!
//! Each flush is one batch, or several if it is large. Counters travel as sums of the interval,
//! timers as samples or sketches, sets as members or estimates, and gauges as their operations: a
//! gauge that was only changed arrives as a change. Values with timestamps travel with them, and
//! events and service checks as they were received. Idle metrics and the server's own counters are
//! not sent.
//!
//! Batches are spooled until the parent has acknowledged them. The identity of a batch is part of
//! it, so it stays the same when a batch is repeated or handed over to another process.

mod parent_stream;

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    io::{self, Write as _},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use howdah_http::client::EndpointError;

use self::parent_stream::{ParentAccess, ParentStream};
use super::{
    BackendError, BackendSpool, BackendStatus, MetricBackend, SnapshotRequirements,
    outbox::{Outbox, SendError, ValueBatch},
};
use crate::{
    binary::HandoverFormatError,
    flush::FlushSnapshot,
    forwarding::{
        self, ACK, BATCH, BODY_BYTES_MAX, BatchId, HELLO, NO, SENDER_BYTES_MAX, receive_frame,
        send_frame,
    },
    settings,
};

/// Maximum time allowed for a flush, regardless of the interval.
const BUDGET_MAX: Duration = Duration::from_secs(10);
/// Number of random bits of an incarnation, after the milliseconds of its start.
const RANDOM_BITS: u32 = 22;
/// Maximum length of a reply.
const REPLY_BYTES_MAX: usize = 4096;

/// The backend that forwards aggregates.
#[derive(Debug)]
pub struct ForwardBackend {
    outbox: Outbox,
    link: ParentConnection,
    /// Identity of the next batch.
    next: BatchId,
    status: BackendStatus,
}

/// The connection to the parent, opened on demand.
#[derive(Debug)]
struct ParentConnection {
    access: ParentAccess,
    connection: Option<ParentStream>,
}

impl ForwardBackend {
    /// Creates the backend and reads its files. `host_name` is the sender's name unless the
    /// settings have one. The connection is opened by the first flush.
    ///
    /// # Errors
    ///
    /// A file cannot be used, or TLS cannot be set up.
    pub fn new(
        settings: &settings::ForwardSettings,
        host_name: &str,
    ) -> Result<Self, EndpointError> {
        let status = BackendStatus::default();
        status.set("flush_time", 0.0);
        status.set("flush_length", 0.0);
        let mut sender = settings.sender.clone().unwrap_or_else(|| host_name.to_owned());
        while sender.len() > SENDER_BYTES_MAX {
            sender.pop();
        }
        // The seed of the standard library's hash tables is random.
        let random = RandomState::new().build_hasher().finish();
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let started = u64::try_from(since.as_millis()).unwrap_or_default();
        let incarnation = started << RANDOM_BITS | random >> (u64::BITS - RANDOM_BITS);
        Ok(Self {
            outbox: Outbox::new(settings.spool_bytes),
            link: ParentConnection { access: ParentAccess::new(settings)?, connection: None },
            next: BatchId { sender, incarnation, sequence: 1 },
            status,
        })
    }

    fn receiver(&self) -> String {
        format!("{}:{}", self.link.access.host, self.link.access.port)
    }

    fn record_flush(&self, start: Instant, bytes: usize) {
        if bytes > 0 {
            self.status.set("flush_time", start.elapsed().as_millis() as f64);
            self.status.set("flush_length", bytes as f64);
        }
        self.outbox.report(&self.status);
    }

    /// Sends the spooled batches for the last time, within `timeout`.
    fn deliver_rest(&mut self, timeout: Duration) -> Result<(), BackendError> {
        let start = Instant::now();
        let deadline = start + timeout;
        let (link, mut bytes) = (&mut self.link, 0);
        let delivery =
            self.outbox.deliver_now(start, |batch| link.send(batch, deadline, &mut bytes));
        let delivered = delivery.into_result(&self.receiver(), &self.status);
        self.record_flush(start, bytes);
        delivered
    }
}

impl MetricBackend for ForwardBackend {
    fn name(&self) -> &'static str {
        "forward"
    }

    fn requirements(&self) -> SnapshotRequirements {
        SnapshotRequirements {
            names_as_sent: true,
            mergeable: true,
            messages: true,
            ..SnapshotRequirements::MINIMAL
        }
    }

    /// Returns false: the mergeable form of an interval is not joined, but it is spooled.
    fn joins_intervals(&self) -> bool {
        false
    }

    fn status(&self) -> BackendStatus {
        self.status.clone()
    }

    fn flush(&mut self, snapshot: &Arc<FlushSnapshot>) -> Result<(), BackendError> {
        let start = Instant::now();
        let deadline = start + snapshot.interval.clamp(Duration::from_secs(1), BUDGET_MAX);
        let Self { outbox, link, next, .. } = self;
        let (mut bytes, mut too_long) = (0, 0);
        let mut delivery = outbox.flush(
            start,
            |sink| {
                for part in snapshot.mergeable.iter() {
                    let bytes = forwarding::encode_batch(next, &part.bytes);
                    if bytes.len() > BODY_BYTES_MAX {
                        // Never spooled, where it would replace all other batches.
                        too_long += part.values;
                        continue;
                    }
                    next.sequence += 1;
                    sink(ValueBatch::new(bytes, part.values));
                }
            },
            |batch| link.send(batch, deadline, &mut bytes),
        );
        if too_long > 0 {
            delivery.add(outbox.refuse(too_long, ForwardError::TooLong));
        }
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

impl ParentConnection {
    /// Sends a batch and waits for its acknowledgement. A connection that was open before may have
    /// been closed by the parent, so the batch is then sent once more over a new one.
    fn send(
        &mut self,
        batch: &ValueBatch,
        deadline: Instant,
        bytes: &mut usize,
    ) -> Result<(), ForwardError> {
        if let Some(connection) = self.connection.take() {
            match self.exchange(connection, batch, deadline) {
                Err(ForwardError::Connection(_)) => {}
                other => return other.inspect(|()| *bytes += batch.bytes.len()),
            }
        }
        let mut connection = self.access.connect(deadline)?;
        send_frame(&mut connection, HELLO, &forwarding::hello())?;
        self.exchange(connection, batch, deadline)?;
        *bytes += batch.bytes.len();
        Ok(())
    }

    /// Sends a batch over a connection, which is kept open only after success.
    fn exchange(
        &mut self,
        mut connection: ParentStream,
        batch: &ValueBatch,
        deadline: Instant,
    ) -> Result<(), ForwardError> {
        connection.set_deadline(deadline);
        let sequence = forwarding::sequence(&batch.bytes).map_err(ForwardError::Malformed)?;
        send_frame(&mut connection, BATCH, &batch.bytes)?;
        connection.flush()?;
        loop {
            let reply = receive_frame(&mut connection, REPLY_BYTES_MAX)?;
            let reply = reply.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
            let mut body = crate::binary::BinaryReader::new(&reply.body);
            match reply.kind {
                // An earlier acknowledgement belongs to a batch that was repeated.
                ACK => match body.number::<u64>().map_err(ForwardError::Malformed)? {
                    acknowledged if acknowledged < sequence => {}
                    _ => {
                        self.connection = Some(connection);
                        return Ok(());
                    }
                },
                NO => {
                    let (is_final, why) = (
                        body.bool().map_err(ForwardError::Malformed)?,
                        body.text().map_err(ForwardError::Malformed)?.to_owned(),
                    );
                    return Err(if is_final {
                        ForwardError::Refused(why)
                    } else {
                        ForwardError::Unavailable(why)
                    });
                }
                _ => return Err(io::Error::from(io::ErrorKind::InvalidData).into()),
            }
        }
    }
}

/// The error of forwarding a batch.
#[derive(Debug, thiserror::Error)]
enum ForwardError {
    #[error(transparent)]
    Connection(#[from] io::Error),
    #[error("the parent cannot merge the batch: {0}")]
    Refused(String),
    #[error("the parent does not accept batches: {0}")]
    Unavailable(String),
    #[error("a timer or set is larger than a batch of 64 MiB: lower exact-samples or set-members")]
    TooLong,
    #[error("a batch or a reply cannot be read")]
    Malformed(#[source] HandoverFormatError),
}

impl SendError for ForwardError {
    fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::TooLong)
    }
}

#[test]
fn batch_that_is_too_long_is_lost_and_replaces_no_other() {
    use super::{
        outbox::{LOST_VALUES, SPOOL_BATCHES},
        testing,
    };
    use crate::flush::MergeablePart;

    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    drop(listener);
    let to = settings::HostAndPort { host: "127.0.0.1".to_owned(), port };
    let mut backend =
        ForwardBackend::new(&settings::ForwardSettings::new(to), "x").expect("a backend");
    let mut snapshot = testing::snapshot_at(testing::TIMESTAMP);
    let part = |bytes, values| MergeablePart { bytes: vec![0; bytes], values };
    snapshot.mergeable = [part(10, 1), part(BODY_BYTES_MAX, 2), part(20, 4)].into();
    let error = backend.flush(&Arc::new(snapshot)).expect_err("lost values");
    assert!(
        super::chain(&error).contains("values dropped: 2: a timer or set is larger"),
        "{error}"
    );
    let status = backend.status();
    assert_eq!(status.get(LOST_VALUES), Some(2.0));
    assert_eq!(status.get(SPOOL_BATCHES), Some(2.0));
    assert_eq!(backend.next.sequence, 3);
}
