//! Sorts nearly ordered events with bounded memory.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
    time::Duration,
};

use crate::{Event, Timestamp};

/// A sorting buffer between a reader and a consumer that needs events in order of time.
///
/// A backend sets the time of a log line before a pipe determines the order of lines, and a
/// statement that is logged at its end follows statements that started later. The buffer holds an
/// event until the reader has seen `window` more of captured time, or until it holds more than
/// `count_max` events. An event that arrives after later ones have been returned is returned next,
/// out of order; events with equal time keep their order of arrival.
#[derive(Debug)]
pub struct ReorderBuffer {
    heap: BinaryHeap<Reverse<ReorderEntry>>,
    window: Duration,
    count_max: usize,
    arrivals: u64,
}

#[derive(Debug)]
struct ReorderEntry {
    arrival: u64,
    event: Event,
}

impl ReorderBuffer {
    /// Creates a buffer that retains events for `window` of captured time, unless it holds more
    /// than `count_max` of them.
    pub fn new(window: Duration, count_max: usize) -> Self {
        Self { heap: BinaryHeap::new(), window, count_max, arrivals: 0 }
    }

    /// Changes the window of captured time.
    pub fn set_window(&mut self, window: Duration) {
        self.window = window;
    }

    /// Adds an event, which may be earlier than events added before.
    pub fn push(&mut self, event: Event) {
        self.heap.push(Reverse(ReorderEntry { arrival: self.arrivals, event }));
        self.arrivals += 1;
    }

    /// Removes the earliest event, if no earlier one is expected or the buffer holds more than its
    /// maximum. `watermark` is the newest captured time that the reader has seen.
    pub fn pop(&mut self, watermark: Timestamp) -> Option<Event> {
        let Reverse(earliest) = self.heap.peek()?;
        let is_settled = earliest.event.time + self.window <= watermark;
        if is_settled || self.heap.len() > self.count_max { self.pop_earliest() } else { None }
    }

    /// Removes the earliest event unconditionally, for a reader that waits for input or is at the
    /// end of its input.
    pub fn pop_earliest(&mut self) -> Option<Event> {
        self.heap.pop().map(|Reverse(entry)| entry.event)
    }

    /// Returns the number of buffered events.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether the buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

impl Ord for ReorderEntry {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.event.time, self.arrival).cmp(&(other.event.time, other.arrival))
    }
}

impl PartialOrd for ReorderEntry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ReorderEntry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for ReorderEntry {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, CapturedOutcome, Source};

    fn event(micros: i64, session: &str) -> Event {
        Event {
            time: Timestamp::from_micros(micros),
            session: session.into(),
            user: "".into(),
            database: "".into(),
            application: "".into(),
            action: Action::Connect,
            outcome: CapturedOutcome::default(),
            source: Source::Session,
            vxid: None,
            query_id: None,
            pipeline: None,
            wire: None,
        }
    }

    #[test]
    fn events_are_sorted_once_window_has_passed() {
        let mut reorder = ReorderBuffer::new(Duration::from_micros(10), 100);
        for (micros, session) in [(5, "a"), (3, "b"), (5, "c"), (14, "d")] {
            reorder.push(event(micros, session));
        }
        let pop = |reorder: &mut ReorderBuffer, watermark| {
            reorder.pop(Timestamp::from_micros(watermark)).map(|event| event.session.to_string())
        };
        assert_eq!(pop(&mut reorder, 12), None);
        assert_eq!(pop(&mut reorder, 15).as_deref(), Some("b"));
        assert_eq!(pop(&mut reorder, 15).as_deref(), Some("a"));
        assert_eq!(pop(&mut reorder, 15).as_deref(), Some("c"));
        assert_eq!(pop(&mut reorder, 15), None);
        assert_eq!(reorder.pop_earliest().map(|event| event.time.as_micros()), Some(14));
        assert!(reorder.is_empty());
    }

    #[test]
    fn full_buffer_returns_earliest_event() {
        let mut reorder = ReorderBuffer::new(Duration::from_secs(1), 2);
        for micros in [3, 1, 2] {
            reorder.push(event(micros, "a"));
        }
        let first = reorder.pop(Timestamp::from_micros(3));
        assert_eq!(first.map(|event| event.time.as_micros()), Some(1));
        assert_eq!(reorder.pop(Timestamp::from_micros(3)), None);
    }
}
