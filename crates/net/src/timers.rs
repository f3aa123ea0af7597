//! Due times of many things, the earliest first.

use std::{cmp::Reverse, collections::BinaryHeap, time::Instant};

/// A queue of due times, each with a key.
///
/// Entries are not removed when they no longer matter: whoever takes one out checks that it still
/// does. That keeps `insert` and `pop_due` at O(log n) without an index.
#[derive(Clone, Debug, Default)]
pub struct Timers<K: Ord> {
    heap: BinaryHeap<Reverse<(Instant, K)>>,
}

impl<K: Ord> Timers<K> {
    /// An empty queue.
    pub fn new() -> Self {
        Self { heap: BinaryHeap::new() }
    }

    /// Adds a due time.
    pub fn insert(&mut self, due: Instant, key: K) {
        self.heap.push(Reverse((due, key)));
    }

    /// The earliest due time.
    pub fn next_due(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((due, _))| *due)
    }

    /// Takes out the earliest entry if it is due at `now`.
    pub fn pop_due(&mut self, now: Instant) -> Option<(Instant, K)> {
        if self.next_due()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }

    /// Number of entries, stale ones included.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[test]
fn entries_come_out_in_order_and_not_before_they_are_due() {
    use std::time::Duration;
    let now = Instant::now();
    let mut timers = Timers::new();
    for (millis, key) in [(3, "c"), (1, "a"), (2, "b")] {
        timers.insert(now + Duration::from_millis(millis), key);
    }
    assert_eq!(timers.pop_due(now), None);
    let later = now + Duration::from_millis(2);
    assert_eq!(timers.pop_due(later).map(|(_, key)| key), Some("a"));
    assert_eq!(timers.pop_due(later).map(|(_, key)| key), Some("b"));
    assert_eq!(timers.pop_due(later), None);
    assert_eq!(timers.len(), 1);
}
