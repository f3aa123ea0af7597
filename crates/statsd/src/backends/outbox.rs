//! [`Outbox`]: what waits for a receiver, within a bound, and when to try again.
//!
//! A flush is rendered in batches of about a megabyte, and each is sent as soon as it is there, after
//! those that wait: no flush is ever held whole. While the receiver is away, batches wait; beyond the
//! bound the oldest go, and what was in them is counted as lost. Between two attempts lies a pause that
//! doubles, so that a receiver which comes back is not met by a crowd.

use std::{
    collections::VecDeque,
    error::Error,
    fmt,
    time::{Duration, Instant},
};

use super::{BackendError, Status, chain};

/// The pause after the first failure. Each further one doubles it, up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// How many batches wait, as a [`Status`] has it.
pub(crate) const SPOOL_BATCHES: &str = "spool_batches";
/// How many bytes those are.
pub(crate) const SPOOL_BYTES: &str = "spool_bytes";
/// Values that will not arrive, since the start.
pub(crate) const LOST_VALUES: &str = "lost_values";
/// Intervals that came while the backend was busy with two others.
pub(crate) const FLUSHES_DROPPED: &str = "flushes_dropped";
/// Metrics in those.
pub(crate) const DROPPED_METRICS: &str = "dropped_metrics";
/// Intervals that were added to another, because the backend was busy.
pub(crate) const FLUSHES_JOINED: &str = "flushes_joined";

/// Bytes ready to be sent, and how many values are in them.
#[derive(PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) bytes: Vec<u8>,
    pub(super) values: u64,
}

/// Without the bytes.
impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({} values, {} bytes)", self.values, self.bytes.len())
    }
}

/// Where batches go as they are rendered.
pub(super) type Sink<'s> = &'s mut dyn FnMut(Batch);

/// A failure to send.
pub(super) trait SendError: Error + Send + Sync + 'static {
    /// The receiver has the batch and will never take it: to send it again is no use.
    fn is_refusal(&self) -> bool;

    /// Of a batch that was refused: how many of its values the receiver did not take.
    fn refused_values(&self, batch: &Batch) -> u64 {
        batch.values
    }
}

/// Batches that wait for a receiver.
#[derive(Debug)]
pub(super) struct Outbox {
    waiting: Queue,
    /// Sent, oldest first, and perhaps not arrived. Always empty if sending says what arrived.
    doubtful: Queue,
    doubts: bool,
    bytes_max: usize,
    lost: u64,
    failures: u32,
    retry_at: Option<Instant>,
}

/// Batches and their size.
#[derive(Debug, Default)]
struct Queue {
    batches: VecDeque<Batch>,
    bytes: usize,
}

/// What became of batches that were to be delivered.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(super) struct Delivery<E> {
    /// The last failure.
    error: Option<E>,
    /// Whether it was the first in a row.
    first: bool,
    /// Values that went: refused, or too many to keep.
    pub(super) lost: u64,
}

impl Outbox {
    /// An empty one that keeps at most `bytes_max` between attempts. Sending tells what arrived.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            waiting: Queue::default(),
            doubtful: Queue::default(),
            doubts: false,
            bytes_max,
            lost: 0,
            failures: 0,
            retry_at: None,
        }
    }

    /// One for a receiver that never says what arrived: what was sent is remembered until
    /// [`confirm`](Self::confirm) or [`take_back`](Self::take_back).
    pub(super) fn with_doubts(bytes_max: usize) -> Self {
        Self { doubts: true, ..Self::new(bytes_max) }
    }

    /// Sends what waits, oldest first, and then what `render` makes, each batch as it is made. After
    /// a failure, batches are only kept.
    ///
    /// A batch gets one attempt even if it is beyond the bound by itself.
    pub(super) fn flush<E: SendError>(
        &mut self,
        now: Instant,
        render: impl FnOnce(Sink<'_>),
        mut send: impl FnMut(&Batch) -> Result<(), E>,
    ) -> Delivery<E> {
        let mut delivery = self.deliver(now, &mut send);
        render(&mut |batch| {
            self.waiting.push_back(batch);
            delivery.add(self.deliver(now, &mut send));
        });
        delivery
    }

    /// Sends what waits, unless it is too early for another attempt.
    fn deliver<E: SendError>(
        &mut self,
        now: Instant,
        send: impl FnMut(&Batch) -> Result<(), E>,
    ) -> Delivery<E> {
        if self.retry_at.is_some_and(|at| now < at) {
            return Delivery { lost: self.trim(), ..Delivery::default() };
        }
        self.deliver_now(now, send)
    }

    /// Sends what waits without regard to the pause: the last attempt there is.
    pub(super) fn deliver_now<E: SendError>(
        &mut self,
        now: Instant,
        mut send: impl FnMut(&Batch) -> Result<(), E>,
    ) -> Delivery<E> {
        let mut delivery = Delivery::default();
        while let Some(batch) = self.waiting.batches.front() {
            match send(batch) {
                Ok(()) => self.sent(),
                Err(error) if error.is_refusal() => {
                    let lost = error.refused_values(batch);
                    self.waiting.pop();
                    self.lost += lost;
                    delivery.add(Delivery { error: Some(error), first: false, lost });
                }
                Err(error) => {
                    delivery.add(self.failed(now, error));
                    return delivery;
                }
            }
            self.failures = 0;
            self.retry_at = None;
        }
        delivery
    }

    /// Notes a failure: the next attempt has to wait.
    pub(super) fn failed<E>(&mut self, now: Instant, error: E) -> Delivery<E> {
        let doublings = self.failures.min(16);
        let pause = PAUSE_MIN.saturating_mul(1 << doublings).min(PAUSE_MAX);
        self.retry_at = now.checked_add(pause);
        self.failures = self.failures.saturating_add(1);
        Delivery { error: Some(error), first: self.failures == 1, lost: self.trim() }
    }

    /// The oldest batch was sent.
    fn sent(&mut self) {
        let Some(batch) = self.waiting.pop() else { return };
        if !self.doubts {
            return;
        }
        self.doubtful.push_back(batch);
        // What is further back than the bound has left the buffers of both kernels, unless somebody
        // made it smaller than those; the newest batch is remembered in any case.
        while self.doubtful.bytes > self.bytes_max && self.doubtful.batches.len() > 1 {
            self.doubtful.pop();
        }
    }

    /// All that was sent has arrived.
    pub(super) fn confirm(&mut self) {
        self.doubtful = Queue::default();
    }

    /// What was sent may not have arrived: it waits again, before the rest. Until the next attempt
    /// twice the bound may wait.
    pub(super) fn take_back(&mut self) {
        let mut all = std::mem::take(&mut self.doubtful);
        all.batches.append(&mut self.waiting.batches);
        all.bytes += self.waiting.bytes;
        self.waiting = all;
    }

    /// Lets the oldest go until the rest is within the bound; gives the values lost.
    fn trim(&mut self) -> u64 {
        let mut lost = 0;
        while self.waiting.bytes > self.bytes_max {
            lost += self.waiting.pop().map_or(0, |batch| batch.values);
        }
        self.lost += lost;
        lost
    }

    /// Whether nothing waits.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.batches.is_empty()
    }

    /// Counts all that waits as lost; an error if that is anything.
    pub(super) fn abandon(&mut self, receiver: &str) -> Result<(), BackendError> {
        let lost = self.waiting.batches.iter().map(|batch| batch.values).sum::<u64>();
        self.waiting = Queue::default();
        self.lost += lost;
        match lost {
            0 => Ok(()),
            lost => Err(BackendError {
                receiver: receiver.to_owned(),
                action: "sending what was kept",
                source: Lost { lost, source: None }.into(),
            }),
        }
    }

    /// Shows what waits and what was lost.
    pub(super) fn report(&self, status: &Status) {
        status.set(SPOOL_BYTES, self.waiting.bytes as f64);
        status.set(SPOOL_BATCHES, self.waiting.batches.len() as f64);
        status.set(LOST_VALUES, self.lost as f64);
    }
}

impl Queue {
    fn push_back(&mut self, batch: Batch) {
        self.bytes += batch.bytes.len();
        self.batches.push_back(batch);
    }

    fn pop(&mut self) -> Option<Batch> {
        let batch = self.batches.pop_front()?;
        self.bytes -= batch.bytes.len();
        Some(batch)
    }
}

impl<E> Default for Delivery<E> {
    /// Nothing went wrong.
    fn default() -> Self {
        Self { error: None, first: false, lost: 0 }
    }
}

impl<E> Delivery<E> {
    /// Joins what happened later.
    pub(super) fn add(&mut self, later: Self) {
        self.first |= later.first;
        self.lost += later.lost;
        self.error = later.error.or(self.error.take());
    }
}

impl<E: SendError> Delivery<E> {
    /// Says it to those who look at the log and at `status`: values that are kept for later are a
    /// warning, values that are lost an error.
    pub(super) fn tell(self, receiver: &str, status: &Status) -> Result<(), BackendError> {
        let (action, source) = match (self.error, self.lost) {
            (None, 0) => return Ok(()),
            (Some(error), 0) => {
                status.set_now("last_exception");
                if self.first {
                    let error = chain(&error);
                    tracing::warn!(receiver, error, "the receiver is away; values are kept");
                }
                return Ok(());
            }
            (None, lost) => ("keeping values for later", Lost { lost, source: None }),
            (Some(error), lost) => ("sending", Lost { lost, source: Some(error.into()) }),
        };
        Err(BackendError { receiver: receiver.to_owned(), action, source: source.into() })
    }
}

/// Values that are gone.
#[derive(Debug, thiserror::Error)]
#[error("{lost} values dropped")]
struct Lost {
    lost: u64,
    source: Option<Box<dyn Error + Send + Sync>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq, thiserror::Error)]
    #[error("away")]
    struct Away;
    impl SendError for Away {
        fn is_refusal(&self) -> bool {
            false
        }
    }

    #[derive(Debug, PartialEq, Eq, thiserror::Error)]
    #[error("refused")]
    struct Refused;
    impl SendError for Refused {
        fn is_refusal(&self) -> bool {
            true
        }
    }

    fn batch(bytes: usize, values: u64) -> Batch {
        Batch { bytes: vec![0; bytes], values }
    }

    fn one(batch: Batch) -> impl FnOnce(Sink<'_>) {
        |sink| sink(batch)
    }

    fn nothing(_: Sink<'_>) {}

    const KEPT: Delivery<Away> = Delivery { error: Some(Away), first: false, lost: 0 };
    const FINE: Delivery<Away> = Delivery { error: None, first: false, lost: 0 };

    #[test]
    fn what_waits_goes_out_in_order_and_what_is_beyond_the_bound_is_counted() {
        let mut outbox = Outbox::new(25);
        let mut now = Instant::now();
        for values in 1..=4 {
            now += PAUSE_MAX;
            let delivery = outbox.flush(now, one(batch(10, values)), |_| Err(Away));
            // The third finds the attempt failed before it is there.
            let lost = values.saturating_sub(2);
            assert_eq!(delivery, Delivery { first: values == 1, lost, ..KEPT });
        }
        let mut sent = Vec::new();
        let delivered = outbox.flush(now + PAUSE_MAX, nothing, |batch| {
            sent.push(batch.values);
            Ok(())
        });
        assert_eq!((delivered, sent), (FINE, vec![3, 4]));
        let status = Status::default();
        outbox.report(&status);
        assert_eq!(status.get("lost_values"), Some(3.0));
        assert_eq!(status.get("spool_bytes"), Some(0.0));
    }

    #[test]
    fn a_large_flush_leaves_batch_by_batch_and_is_kept_within_the_bound() {
        let mut outbox = Outbox::new(25);
        let now = Instant::now();
        let render = |sink: Sink<'_>| (1..=10).for_each(|values| sink(batch(10, values)));
        let mut attempts = Vec::new();
        let delivery = outbox.flush(now, render, |batch| {
            attempts.push(batch.values);
            if batch.values < 4 { Ok(()) } else { Err(Away) }
        });
        // One failure, no further attempt in this flush; of what was kept, the last two fit.
        assert_eq!(attempts, [1, 2, 3, 4]);
        assert_eq!(delivery, Delivery { first: true, lost: 4 + 5 + 6 + 7 + 8, ..KEPT });
        assert_eq!(outbox.waiting.bytes, 20);
    }

    #[test]
    fn between_attempts_lies_a_pause_that_doubles() {
        let mut outbox = Outbox::new(100);
        let start = Instant::now();
        let _ = outbox.flush(start, one(batch(1, 1)), |_| Err(Away));
        let soon = start + PAUSE_MIN / 2;
        let early = |_: &Batch| -> Result<(), Away> { panic!("too early") };
        assert_eq!(outbox.flush(soon, nothing, early), FINE);
        let later = start + PAUSE_MIN;
        assert_eq!(outbox.flush(later, nothing, |_| Err(Away)), KEPT);
        assert_eq!(outbox.flush(later + PAUSE_MIN, nothing, early), FINE);
        assert!(!outbox.is_empty());
        assert_eq!(outbox.deliver_now(later, |_| Ok::<(), Away>(())), FINE);
        assert!(outbox.is_empty());
    }

    #[test]
    fn a_bound_of_zero_gives_one_attempt() {
        let mut outbox = Outbox::new(0);
        let delivery = outbox.flush(Instant::now(), one(batch(10, 7)), |_| Err(Away));
        assert_eq!(delivery, Delivery { first: true, lost: 7, ..KEPT });
        assert!(outbox.is_empty());
        let said = delivery.tell("here:1", &Status::default()).unwrap_err();
        assert_eq!(chain(&said), "here:1: sending failed: 7 values dropped: away");
    }

    #[test]
    fn what_is_refused_does_not_stop_what_follows() {
        let mut outbox = Outbox::new(100);
        let render = |sink: Sink<'_>| (1..=3).for_each(|values| sink(batch(1, values)));
        let delivery = outbox.flush(Instant::now(), render, |batch| match batch.values {
            2 => Err(Refused),
            _ => Ok(()),
        });
        assert_eq!(delivery, Delivery { error: Some(Refused), first: false, lost: 2 });
        assert!(outbox.is_empty());
    }

    #[test]
    fn what_may_not_have_arrived_is_sent_again_before_the_rest() {
        let mut outbox = Outbox::with_doubts(30);
        let now = Instant::now();
        let render = |sink: Sink<'_>| (1..=5).for_each(|values| sink(batch(10, values)));
        let fine = |_: &Batch| Ok::<(), Away>(());
        assert_eq!(outbox.flush(now, render, fine), FINE);
        outbox.confirm();
        let delivery = outbox.flush(now, render, |batch| match batch.values {
            5 => Err(Away),
            _ => Ok(()),
        });
        assert_eq!(delivery, Delivery { first: true, ..KEPT });
        outbox.take_back();
        let mut again = Vec::new();
        let delivered = outbox.deliver_now(now, |batch| {
            again.push(batch.values);
            Ok::<(), Away>(())
        });
        // The first is further back than the bound.
        assert_eq!((delivered, again), (FINE, vec![2, 3, 4, 5]));
    }
}
