//! [`Outbox`]: a bounded spool of batches for a receiver, with retry pauses.
//!
//! A flush is rendered in batches of limited size. Each is sent as soon as it is rendered, after
//! the spooled ones, so a flush need not be in memory as a whole. While the receiver is
//! unreachable, batches are spooled; beyond the limit the oldest are dropped and their values
//! counted as lost. The pause between attempts doubles, so that a recovering receiver is not
//! overrun.

use std::{
    collections::VecDeque,
    error::Error,
    fmt,
    time::{Duration, Instant},
};

use super::{BackendError, BackendStatus, chain};

/// The pause after the first failure. Each further failure doubles it, up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Status field: number of spooled batches.
pub(crate) const SPOOL_BATCHES: &str = "spool_batches";
/// Status field: bytes of the spooled batches.
pub(crate) const SPOOL_BYTES: &str = "spool_bytes";
/// Status field: values lost since the start.
pub(crate) const LOST_VALUES: &str = "lost_values";
/// Status field: intervals dropped because the backend was busy.
pub(crate) const FLUSHES_DROPPED: &str = "flushes_dropped";
/// Status field: metrics in dropped intervals.
pub(crate) const DROPPED_METRICS: &str = "dropped_metrics";
/// Status field: intervals joined to another because the backend was busy.
pub(crate) const FLUSHES_JOINED: &str = "flushes_joined";

/// A batch of encoded values, with their number.
#[derive(PartialEq, Eq)]
pub struct ValueBatch {
    /// The values as the receiver gets them.
    pub bytes: Vec<u8>,
    /// Number of values, to count them if they are lost.
    pub values: u64,
    /// The destination, for receivers with several.
    pub content: BatchContent,
}

/// The destination of a batch, for receivers with several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BatchContent {
    /// Values, or anything for a receiver with one destination.
    #[default]
    Values,
    /// DogStatsD events.
    Events,
    /// DogStatsD service checks.
    Checks,
}

impl ValueBatch {
    /// Creates a batch of values.
    pub(crate) fn new(bytes: Vec<u8>, values: u64) -> Self {
        Self { bytes, values, content: BatchContent::Values }
    }
}

/// Batches that were not delivered before another process took over.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct BackendSpool {
    /// The batches, oldest first.
    pub batches: Vec<ValueBatch>,
    /// The transaction of the first batch, if its commit was sent but not answered.
    pub in_doubt: Option<String>,
    /// The starts of the partitions that the batches need, in seconds since 1970.
    pub partitions: Vec<i64>,
}

impl BackendSpool {
    /// Adds the batches of `later` at the end.
    pub(crate) fn append(&mut self, later: Self) {
        if self.batches.is_empty() {
            self.in_doubt = later.in_doubt;
        }
        self.batches.extend(later.batches);
        self.partitions.extend(later.partitions);
    }
}

/// Shows the number of bytes instead of the bytes.
impl fmt::Debug for ValueBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({} values, {} bytes)", self.values, self.bytes.len())
    }
}

/// A function that receives batches as they are rendered.
pub(super) type BatchSink<'s> = &'s mut dyn FnMut(ValueBatch);

/// The reason why a batch could not be sent.
pub(super) trait SendError: Error + Send + Sync + 'static {
    /// Whether the receiver refused the batch in such a way that it is not sent again.
    fn is_refusal(&self) -> bool;

    /// Returns the number of values of a refused batch that the receiver did not accept.
    fn refused_values(&self, batch: &ValueBatch) -> u64 {
        batch.values
    }
}

/// The batches that wait to be sent to a receiver, and those that may not have arrived yet.
#[derive(Debug)]
pub(super) struct Outbox {
    waiting: BatchQueue,
    /// Batches sent but not known to have arrived, oldest first. Empty unless `tracks_unconfirmed`.
    unconfirmed: BatchQueue,
    tracks_unconfirmed: bool,
    bytes_max: usize,
    lost: u64,
    failures: u32,
    retry_at: Option<Instant>,
}

/// Batches and their total size.
#[derive(Debug, Default)]
struct BatchQueue {
    batches: VecDeque<ValueBatch>,
    bytes: usize,
}

/// The outcome of sending batches.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(super) struct DeliveryOutcome<E> {
    /// The last failure, if any batch failed.
    error: Option<E>,
    /// Whether the failure was the first since the last success.
    first: bool,
    /// Values lost: refused, or evicted from the spool.
    pub(super) lost: u64,
    /// Whether the first batches of the spool were evicted.
    pub(super) has_evicted: bool,
}

impl Outbox {
    /// Creates an empty outbox that spools at most `bytes_max` bytes, for receivers that confirm
    /// each batch.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            waiting: BatchQueue::default(),
            unconfirmed: BatchQueue::default(),
            tracks_unconfirmed: false,
            bytes_max,
            lost: 0,
            failures: 0,
            retry_at: None,
        }
    }

    /// Creates an outbox for a receiver that confirms nothing: the latest sent batches, up to
    /// `bytes_max`, are retained until [`confirm`](Self::confirm) or
    /// [`requeue_unconfirmed`](Self::requeue_unconfirmed).
    pub(super) fn with_unconfirmed(bytes_max: usize) -> Self {
        Self { tracks_unconfirmed: true, ..Self::new(bytes_max) }
    }

    /// Sends the spooled batches, oldest first, and then those from `render` as they are rendered.
    /// After a failure, and during a retry pause, batches are only spooled.
    ///
    /// Outside a retry pause, a batch that exceeds the limit by itself still gets one attempt.
    pub(super) fn flush<E: SendError>(
        &mut self,
        now: Instant,
        render: impl FnOnce(BatchSink<'_>),
        mut send: impl FnMut(&ValueBatch) -> Result<(), E>,
    ) -> DeliveryOutcome<E> {
        let mut delivery = self.deliver(now, &mut send);
        render(&mut |batch| {
            self.waiting.push_back(batch);
            delivery.add(self.deliver(now, &mut send));
        });
        delivery
    }

    /// Sends the spooled batches, unless the retry pause is still running.
    fn deliver<E: SendError>(
        &mut self,
        now: Instant,
        send: impl FnMut(&ValueBatch) -> Result<(), E>,
    ) -> DeliveryOutcome<E> {
        if self.retry_at.is_some_and(|at| now < at) {
            let lost = self.trim();
            return DeliveryOutcome { lost, has_evicted: lost > 0, ..DeliveryOutcome::default() };
        }
        self.deliver_now(now, send)
    }

    /// Sends the spooled batches regardless of the retry pause.
    pub(super) fn deliver_now<E: SendError>(
        &mut self,
        now: Instant,
        mut send: impl FnMut(&ValueBatch) -> Result<(), E>,
    ) -> DeliveryOutcome<E> {
        let mut delivery = DeliveryOutcome::default();
        while let Some(batch) = self.waiting.batches.front() {
            match send(batch) {
                Ok(()) => self.mark_sent(),
                Err(error) if error.is_refusal() => {
                    let lost = error.refused_values(batch);
                    self.waiting.pop();
                    self.lost += lost;
                    let error = Some(error);
                    delivery.add(DeliveryOutcome { error, lost, ..DeliveryOutcome::default() });
                }
                Err(error) => {
                    delivery.add(self.record_failure(now, error));
                    return delivery;
                }
            }
            self.failures = 0;
            self.retry_at = None;
        }
        delivery
    }

    /// Counts values that are not even spooled.
    pub(super) fn refuse<E>(&mut self, values: u64, error: E) -> DeliveryOutcome<E> {
        self.lost += values;
        DeliveryOutcome { error: Some(error), lost: values, ..DeliveryOutcome::default() }
    }

    /// Records a failure, starts the retry pause, and trims the spool to its limit.
    pub(super) fn record_failure<E>(&mut self, now: Instant, error: E) -> DeliveryOutcome<E> {
        let doublings = self.failures.min(16);
        let pause = PAUSE_MIN.saturating_mul(1 << doublings).min(PAUSE_MAX);
        self.retry_at = now.checked_add(pause);
        self.failures = self.failures.saturating_add(1);
        let lost = self.trim();
        let first = self.failures == 1;
        DeliveryOutcome { error: Some(error), first, lost, has_evicted: lost > 0 }
    }

    /// Removes the oldest batch, which was sent, and retains it as unconfirmed if the receiver
    /// confirms nothing.
    fn mark_sent(&mut self) {
        let Some(batch) = self.waiting.pop() else { return };
        if !self.tracks_unconfirmed {
            return;
        }
        self.unconfirmed.push_back(batch);
        // Batches sent more than the limit's bytes ago have left the socket buffers of both hosts,
        // unless the limit is smaller than these buffers. The newest batch is always retained.
        while self.unconfirmed.bytes > self.bytes_max && self.unconfirmed.batches.len() > 1 {
            self.unconfirmed.pop();
        }
    }

    /// Marks all sent batches as arrived.
    pub(super) fn confirm(&mut self) {
        self.unconfirmed = BatchQueue::default();
    }

    /// Requeues unconfirmed batches before the spooled ones. Until the next attempt, the spool may
    /// be twice its limit.
    pub(super) fn requeue_unconfirmed(&mut self) {
        let mut all = std::mem::take(&mut self.unconfirmed);
        all.batches.append(&mut self.waiting.batches);
        all.bytes += self.waiting.bytes;
        self.waiting = all;
    }

    /// Takes all spooled batches, for another process.
    pub(super) fn take_batches(&mut self) -> Vec<ValueBatch> {
        std::mem::take(&mut self.waiting).batches.into()
    }

    /// Spools batches of another process, before or after the own ones. The next attempt trims the
    /// spool to its limit.
    pub(super) fn adopt(&mut self, batches: Vec<ValueBatch>, are_first: bool) {
        let mut adopted = BatchQueue::default();
        batches.into_iter().for_each(|batch| adopted.push_back(batch));
        if are_first {
            std::mem::swap(&mut adopted, &mut self.waiting);
        }
        self.waiting.batches.append(&mut adopted.batches);
        self.waiting.bytes += adopted.bytes;
    }

    /// Drops the oldest batches until the spool is within its limit; returns the number of values
    /// lost.
    fn trim(&mut self) -> u64 {
        let mut lost = 0;
        while self.waiting.bytes > self.bytes_max {
            lost += self.waiting.pop().map_or(0, |batch| batch.values);
        }
        self.lost += lost;
        lost
    }

    /// Whether the spool is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.batches.is_empty()
    }

    /// Drops the spool and counts its values as lost; returns an error if there are any.
    pub(super) fn abandon(&mut self, receiver: &str) -> Result<(), BackendError> {
        let lost = self.waiting.batches.iter().map(|batch| batch.values).sum::<u64>();
        self.waiting = BatchQueue::default();
        self.lost += lost;
        match lost {
            0 => Ok(()),
            lost => Err(BackendError {
                receiver: receiver.to_owned(),
                action: "sending spooled values",
                source: ValuesDropped { lost, source: None }.into(),
            }),
        }
    }

    /// Writes spool size and lost values to `status`.
    pub(super) fn report(&self, status: &BackendStatus) {
        status.set(SPOOL_BYTES, self.waiting.bytes as f64);
        status.set(SPOOL_BATCHES, self.waiting.batches.len() as f64);
        status.set(LOST_VALUES, self.lost as f64);
    }
}

impl BatchQueue {
    fn push_back(&mut self, batch: ValueBatch) {
        self.bytes += batch.bytes.len();
        self.batches.push_back(batch);
    }

    fn pop(&mut self) -> Option<ValueBatch> {
        let batch = self.batches.pop_front()?;
        self.bytes -= batch.bytes.len();
        Some(batch)
    }
}

impl<E> Default for DeliveryOutcome<E> {
    /// Creates an outcome without errors or lost values.
    fn default() -> Self {
        Self { error: None, first: false, lost: 0, has_evicted: false }
    }
}

impl<E> DeliveryOutcome<E> {
    /// Adds a later outcome, whose error, if any, replaces the earlier one.
    pub(super) fn add(&mut self, later: Self) {
        self.first |= later.first;
        self.lost += later.lost;
        self.has_evicted |= later.has_evicted;
        self.error = later.error.or(self.error.take());
    }
}

impl<E: SendError> DeliveryOutcome<E> {
    /// Returns an error if values were lost. If a failure only delayed them, records its time in
    /// `status`, and logs a warning if it is the first since the last success.
    pub(super) fn into_result(
        self,
        receiver: &str,
        status: &BackendStatus,
    ) -> Result<(), BackendError> {
        let (action, source) = match (self.error, self.lost) {
            (None, 0) => return Ok(()),
            (Some(error), 0) => {
                status.set_now("last_exception");
                if self.first {
                    let error = chain(&error);
                    tracing::warn!(receiver, error, "receiver unreachable; values are spooled");
                }
                return Ok(());
            }
            (None, lost) => ("spooling values", ValuesDropped { lost, source: None }),
            (Some(error), lost) => ("sending", ValuesDropped { lost, source: Some(error.into()) }),
        };
        Err(BackendError { receiver: receiver.to_owned(), action, source: source.into() })
    }
}

/// The error that reports lost values, with its cause if known.
#[derive(Debug, thiserror::Error)]
#[error("values dropped: {lost}")]
struct ValuesDropped {
    lost: u64,
    source: Option<Box<dyn Error + Send + Sync>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq, thiserror::Error)]
    #[error("unreachable")]
    struct UnreachableError;
    impl SendError for UnreachableError {
        fn is_refusal(&self) -> bool {
            false
        }
    }

    #[derive(Debug, PartialEq, Eq, thiserror::Error)]
    #[error("refused")]
    struct RejectedError;
    impl SendError for RejectedError {
        fn is_refusal(&self) -> bool {
            true
        }
    }

    fn batch(bytes: usize, values: u64) -> ValueBatch {
        ValueBatch::new(vec![0; bytes], values)
    }

    fn one(batch: ValueBatch) -> impl FnOnce(BatchSink<'_>) {
        |sink| sink(batch)
    }

    fn nothing(_: BatchSink<'_>) {}

    const SPOOLED: DeliveryOutcome<UnreachableError> =
        DeliveryOutcome { error: Some(UnreachableError), ..DELIVERED };
    const DELIVERED: DeliveryOutcome<UnreachableError> =
        DeliveryOutcome { error: None, first: false, lost: 0, has_evicted: false };

    #[test]
    fn spool_sends_in_order_and_counts_evicted_values() {
        let mut outbox = Outbox::new(25);
        let mut now = Instant::now();
        for values in 1..=4 {
            now += PAUSE_MAX;
            let delivery = outbox.flush(now, one(batch(10, values)), |_| Err(UnreachableError));
            // From the third flush on, the spool is full when the new batch is added.
            let lost = values.saturating_sub(2);
            let has_evicted = lost > 0;
            let expected = DeliveryOutcome { first: values == 1, lost, has_evicted, ..SPOOLED };
            assert_eq!(delivery, expected);
        }
        let mut sent = Vec::new();
        let delivered = outbox.flush(now + PAUSE_MAX, nothing, |batch| {
            sent.push(batch.values);
            Ok(())
        });
        assert_eq!((delivered, sent), (DELIVERED, vec![3, 4]));
        let status = BackendStatus::default();
        outbox.report(&status);
        assert_eq!(status.get("lost_values"), Some(3.0));
        assert_eq!(status.get("spool_bytes"), Some(0.0));
    }

    #[test]
    fn failed_large_flush_is_spooled_up_to_limit() {
        let mut outbox = Outbox::new(25);
        let now = Instant::now();
        let render = |sink: BatchSink<'_>| (1..=10).for_each(|values| sink(batch(10, values)));
        let mut attempts = Vec::new();
        let delivery = outbox.flush(now, render, |batch| {
            attempts.push(batch.values);
            if batch.values < 4 { Ok(()) } else { Err(UnreachableError) }
        });
        // After one failure this flush makes no further attempt; the last two batches fit.
        assert_eq!(attempts, [1, 2, 3, 4]);
        let lost = 4 + 5 + 6 + 7 + 8;
        assert_eq!(delivery, DeliveryOutcome { first: true, lost, has_evicted: true, ..SPOOLED });
        assert_eq!(outbox.waiting.bytes, 20);
    }

    #[test]
    fn retry_pause_doubles() {
        let mut outbox = Outbox::new(100);
        let start = Instant::now();
        let _ = outbox.flush(start, one(batch(1, 1)), |_| Err(UnreachableError));
        let too_early = start + PAUSE_MIN / 2;
        let early = |_: &ValueBatch| -> Result<(), UnreachableError> { panic!("too early") };
        assert_eq!(outbox.flush(too_early, nothing, early), DELIVERED);
        let later = start + PAUSE_MIN;
        assert_eq!(outbox.flush(later, nothing, |_| Err(UnreachableError)), SPOOLED);
        assert_eq!(outbox.flush(later + PAUSE_MIN, nothing, early), DELIVERED);
        assert!(!outbox.is_empty());
        assert_eq!(outbox.deliver_now(later, |_| Ok::<(), UnreachableError>(())), DELIVERED);
        assert!(outbox.is_empty());
    }

    #[test]
    fn zero_limit_allows_single_attempt() {
        let mut outbox = Outbox::new(0);
        let delivery = outbox.flush(Instant::now(), one(batch(10, 7)), |_| Err(UnreachableError));
        assert_eq!(
            delivery,
            DeliveryOutcome { first: true, lost: 7, has_evicted: true, ..SPOOLED }
        );
        assert!(outbox.is_empty());
        let error = delivery.into_result("here:1", &BackendStatus::default()).unwrap_err();
        assert_eq!(chain(&error), "here:1: sending failed: values dropped: 7: unreachable");
    }

    #[test]
    fn refused_batch_does_not_stop_later_batches() {
        let mut outbox = Outbox::new(100);
        let render = |sink: BatchSink<'_>| (1..=3).for_each(|values| sink(batch(1, values)));
        let delivery = outbox.flush(Instant::now(), render, |batch| match batch.values {
            2 => Err(RejectedError),
            _ => Ok(()),
        });
        let error = Some(RejectedError);
        assert_eq!(delivery, DeliveryOutcome { error, lost: 2, ..DeliveryOutcome::default() });
        assert!(outbox.is_empty());
    }

    #[test]
    fn unconfirmed_batches_are_resent_first() {
        let mut outbox = Outbox::with_unconfirmed(30);
        let now = Instant::now();
        let render = |sink: BatchSink<'_>| (1..=5).for_each(|values| sink(batch(10, values)));
        let fine = |_: &ValueBatch| Ok::<(), UnreachableError>(());
        assert_eq!(outbox.flush(now, render, fine), DELIVERED);
        outbox.confirm();
        let delivery = outbox.flush(now, render, |batch| match batch.values {
            5 => Err(UnreachableError),
            _ => Ok(()),
        });
        assert_eq!(delivery, DeliveryOutcome { first: true, ..SPOOLED });
        outbox.requeue_unconfirmed();
        let mut resent = Vec::new();
        let delivered = outbox.deliver_now(now, |batch| {
            resent.push(batch.values);
            Ok::<(), UnreachableError>(())
        });
        // The first batch was sent more than the limit's bytes ago, so it counts as arrived.
        assert_eq!((delivered, resent), (DELIVERED, vec![2, 3, 4, 5]));
    }
}
