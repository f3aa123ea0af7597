//! [`Outbox`]: what waits for a receiver, within a bound, and when to try again.
//!
//! A flush puts its batch in and has the outbox deliver, oldest first. While the receiver is away,
//! batches wait; beyond the bound the oldest go, and what was in them is counted as lost. Between
//! two attempts lies a pause that doubles, so that a receiver which comes back is not met by a crowd.

use std::{
    collections::VecDeque,
    fmt,
    time::{Duration, Instant},
};

use super::Status;

/// The pause after the first failure. Each further one doubles it, up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// How many batches wait, as a [`Status`] has it.
pub(crate) const SPOOL_BATCHES: &str = "spool_batches";

/// Bytes ready to be sent, and how many values are in them.
#[derive(Clone, PartialEq, Eq)]
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

/// A failure to send.
pub(super) trait SendError {
    /// The receiver has the batch and will never take it: to send it again is no use.
    fn is_refusal(&self) -> bool;
}

/// Batches that wait for a receiver.
#[derive(Debug)]
pub(super) struct Outbox {
    batches: VecDeque<Batch>,
    bytes: usize,
    bytes_max: usize,
    lost: u64,
    failures: u32,
    retry_at: Option<Instant>,
}

/// What became of an attempt to deliver that was no success.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Undelivered<E> {
    /// All of it is kept, and will be tried again. `first` is true for the first failure in a row.
    Kept { error: E, first: bool },
    /// Values were lost: refused, or too many to keep.
    Lost { error: E, values: u64 },
    /// It is not yet time to try again; `lost` values had to go to make room.
    Waiting { lost: u64 },
}

impl Outbox {
    /// An empty one that keeps at most `bytes_max` between attempts.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { batches: VecDeque::new(), bytes: 0, bytes_max, lost: 0, failures: 0, retry_at: None }
    }

    /// Adds the newest batch. It gets one attempt even if it is beyond the bound by itself.
    pub(super) fn push(&mut self, batch: Batch) {
        self.bytes += batch.bytes.len();
        self.batches.push_back(batch);
    }

    /// Puts a batch back that was taken for sent and was not.
    pub(super) fn push_front(&mut self, batch: Batch) {
        self.bytes += batch.bytes.len();
        self.batches.push_front(batch);
    }

    /// Sends batch after batch, oldest first, until one fails.
    pub(super) fn deliver<E: SendError>(
        &mut self,
        now: Instant,
        send: impl FnMut(&Batch) -> Result<(), E>,
    ) -> Result<(), Undelivered<E>> {
        if self.retry_at.is_some_and(|at| now < at) {
            return match (self.trim(), self.batches.is_empty()) {
                (0, true) => Ok(()),
                (lost, _) => Err(Undelivered::Waiting { lost }),
            };
        }
        self.deliver_now(now, send)
    }

    /// The same without regard to the pause: the last attempt there is.
    pub(super) fn deliver_now<E: SendError>(
        &mut self,
        now: Instant,
        mut send: impl FnMut(&Batch) -> Result<(), E>,
    ) -> Result<(), Undelivered<E>> {
        let mut refused = None;
        while let Some(batch) = self.batches.front() {
            match send(batch) {
                Ok(()) => drop(self.pop()),
                Err(error) if error.is_refusal() => {
                    let values = self.pop();
                    self.lost += values;
                    let before = refused.map_or(0, |(_, values)| values);
                    refused = Some((error, before + values));
                }
                Err(error) => return Err(self.failed(now, error)),
            }
            self.failures = 0;
            self.retry_at = None;
        }
        match refused {
            Some((error, values)) => Err(Undelivered::Lost { error, values }),
            None => Ok(()),
        }
    }

    fn failed<E>(&mut self, now: Instant, error: E) -> Undelivered<E> {
        let doublings = self.failures.min(16);
        let pause = PAUSE_MIN.saturating_mul(1 << doublings).min(PAUSE_MAX);
        self.retry_at = now.checked_add(pause);
        self.failures = self.failures.saturating_add(1);
        match self.trim() {
            0 => Undelivered::Kept { error, first: self.failures == 1 },
            values => Undelivered::Lost { error, values },
        }
    }

    /// Lets the oldest go until the rest is within the bound; gives the values lost.
    fn trim(&mut self) -> u64 {
        let mut lost = 0;
        while self.bytes > self.bytes_max {
            lost += self.pop();
        }
        self.lost += lost;
        lost
    }

    /// Removes the oldest batch; gives its values.
    fn pop(&mut self) -> u64 {
        let Some(batch) = self.batches.pop_front() else { return 0 };
        self.bytes -= batch.bytes.len();
        batch.values
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Counts all that waits as lost.
    pub(super) fn abandon(&mut self) -> u64 {
        let values = self.batches.iter().map(|batch| batch.values).sum();
        self.lost += values;
        self.batches.clear();
        self.bytes = 0;
        values
    }

    /// Shows what waits and what was lost.
    pub(super) fn report(&self, status: &Status) {
        status.set("spool_bytes", self.bytes as f64);
        status.set(SPOOL_BATCHES, self.batches.len() as f64);
        status.set("lost_values", self.lost as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq)]
    struct Away;
    impl SendError for Away {
        fn is_refusal(&self) -> bool {
            false
        }
    }

    #[derive(Debug, PartialEq, Eq)]
    struct Refused;
    impl SendError for Refused {
        fn is_refusal(&self) -> bool {
            true
        }
    }

    fn batch(bytes: usize, values: u64) -> Batch {
        Batch { bytes: vec![0; bytes], values }
    }

    #[test]
    fn what_waits_goes_out_in_order_and_what_is_beyond_the_bound_is_counted() {
        let mut outbox = Outbox::new(25);
        let mut now = Instant::now();
        for values in 1..=4 {
            outbox.push(batch(10, values));
            now += PAUSE_MAX;
            let undelivered = outbox.deliver(now, |_| Err(Away)).unwrap_err();
            match values {
                1 | 2 => {
                    let first = values == 1;
                    assert_eq!(undelivered, Undelivered::Kept { error: Away, first });
                }
                _ => assert_eq!(undelivered, Undelivered::Lost { error: Away, values: values - 2 }),
            }
        }
        let mut sent = Vec::new();
        let delivered: Result<(), Undelivered<Away>> = outbox.deliver(now + PAUSE_MAX, |batch| {
            sent.push(batch.values);
            Ok(())
        });
        assert_eq!((delivered, sent), (Ok(()), vec![3, 4]));
        let status = Status::default();
        outbox.report(&status);
        assert_eq!(status.get("lost_values"), Some(3.0));
        assert_eq!(status.get("spool_bytes"), Some(0.0));
    }

    #[test]
    fn between_attempts_lies_a_pause_that_doubles() {
        let mut outbox = Outbox::new(100);
        let start = Instant::now();
        outbox.push(batch(1, 1));
        assert!(outbox.deliver(start, |_| Err(Away)).is_err());
        let soon = start + PAUSE_MIN / 2;
        let waiting = outbox.deliver(soon, |_| -> Result<(), Away> { panic!("too early") });
        assert_eq!(waiting, Err(Undelivered::Waiting { lost: 0 }));
        let later = start + PAUSE_MIN;
        let kept = outbox.deliver(later, |_| Err(Away));
        assert_eq!(kept, Err(Undelivered::Kept { error: Away, first: false }));
        let waiting = outbox.deliver(later + PAUSE_MIN, |_| Ok::<(), Away>(()));
        assert_eq!(waiting, Err(Undelivered::Waiting { lost: 0 }));
        assert_eq!(outbox.deliver_now(later, |_| Ok::<(), Away>(())), Ok(()));
        assert!(outbox.is_empty());
    }

    #[test]
    fn a_bound_of_zero_gives_one_attempt() {
        let mut outbox = Outbox::new(0);
        outbox.push(batch(10, 7));
        let lost = outbox.deliver(Instant::now(), |_| Err(Away));
        assert_eq!(lost, Err(Undelivered::Lost { error: Away, values: 7 }));
        assert!(outbox.is_empty());
    }

    #[test]
    fn what_is_refused_does_not_stop_what_follows() {
        let mut outbox = Outbox::new(100);
        (1..=3).for_each(|values| outbox.push(batch(1, values)));
        let undelivered = outbox.deliver(Instant::now(), |batch| match batch.values {
            2 => Err(Refused),
            _ => Ok(()),
        });
        assert_eq!(undelivered, Err(Undelivered::Lost { error: Refused, values: 2 }));
        assert!(outbox.is_empty());
    }
}
