//! A queue of deadlines, earliest first.

use std::{cmp::Reverse, collections::BinaryHeap, time::Instant};

/// A queue of deadlines, each with a key.
///
/// Entries are not removed when they become stale: the caller checks each entry that it takes out.
/// This keeps `insert` and `pop_expired` at O(log n) without an index.
#[derive(Clone, Debug, Default)]
pub struct Timers<K: Ord> {
    heap: BinaryHeap<Reverse<(Instant, K)>>,
}

impl<K: Ord> Timers<K> {
    /// Creates an empty queue.
    pub fn new() -> Self {
        Self { heap: BinaryHeap::new() }
    }

    /// Adds a deadline.
    pub fn insert(&mut self, due: Instant, key: K) {
        self.heap.push(Reverse((due, key)));
    }

    /// Returns the earliest deadline; `None` if the queue is empty.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((due, _))| *due)
    }

    /// Removes and returns the earliest entry if it has expired at `now`.
    pub fn pop_expired(&mut self, now: Instant) -> Option<(Instant, K)> {
        if self.next_deadline()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }

    /// Returns the number of entries, including stale ones.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether the queue has no entries.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[test]
fn entries_expire_in_order_and_never_early() {
    use std::time::Duration;
    let now = Instant::now();
    let mut timers = Timers::new();
    for (millis, key) in [(3, "c"), (1, "a"), (2, "b")] {
        timers.insert(now + Duration::from_millis(millis), key);
    }
    assert_eq!(timers.pop_expired(now), None);
    let later = now + Duration::from_millis(2);
    assert_eq!(timers.pop_expired(later).map(|(_, key)| key), Some("a"));
    assert_eq!(timers.pop_expired(later).map(|(_, key)| key), Some("b"));
    assert_eq!(timers.pop_expired(later), None);
    assert_eq!(timers.len(), 1);
}
