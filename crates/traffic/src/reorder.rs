//! Puts events that come nearly in order into order, with bounded memory.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
    time::Duration,
};

use crate::{Event, Timestamp};

/// A sorting buffer between a reader and somebody who wants events in the order of their time.
///
/// Lines of a server log are stamped in the backend and ordered in a pipe, and a statement that is
/// logged at its end is written after statements that began later. The buffer holds events until
/// the reader has seen `window` more of captured time, or until it holds `count_max` events. What is
/// late beyond that comes out late, at once; events of equal time keep the order of their arrival.
#[derive(Debug)]
pub struct Reorder {
    heap: BinaryHeap<Reverse<Entry>>,
    window: Duration,
    count_max: usize,
    arrivals: u64,
}

#[derive(Debug)]
struct Entry {
    arrival: u64,
    event: Event,
}

impl Reorder {
    /// A buffer that waits for `window` of captured time and holds at most `count_max` events.
    pub fn new(window: Duration, count_max: usize) -> Self {
        Self { heap: BinaryHeap::new(), window, count_max, arrivals: 0 }
    }

    /// Changes how much of captured time it waits for.
    pub fn set_window(&mut self, window: Duration) {
        self.window = window;
    }

    /// Takes an event in.
    pub fn push(&mut self, event: Event) {
        self.heap.push(Reverse(Entry { arrival: self.arrivals, event }));
        self.arrivals += 1;
    }

    /// The earliest event, if none that is earlier can be expected any more: the reader has come to
    /// `watermark`, the newest captured time it has seen.
    pub fn pop(&mut self, watermark: Timestamp) -> Option<Event> {
        let Reverse(earliest) = self.heap.peek()?;
        let settled = earliest.event.time + self.window <= watermark;
        if settled || self.heap.len() > self.count_max { self.pop_any() } else { None }
    }

    /// The earliest event, whatever may come: the reader has come to the end, or waits.
    pub fn pop_any(&mut self) -> Option<Event> {
        self.heap.pop().map(|Reverse(entry)| entry.event)
    }

    /// Number of events held.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether none are held.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.event.time, self.arrival).cmp(&(other.event.time, other.arrival))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, Outcome, Source};

    fn event(micros: i64, session: &str) -> Event {
        Event {
            time: Timestamp::from_micros(micros),
            session: session.into(),
            user: "".into(),
            database: "".into(),
            application: "".into(),
            action: Action::Connect,
            outcome: Outcome::default(),
            source: Source::Session,
            vxid: None,
            query_id: None,
            pipeline: None,
            wire: None,
        }
    }

    #[test]
    fn events_come_out_in_order_once_the_window_has_passed() {
        let mut reorder = Reorder::new(Duration::from_micros(10), 100);
        for (micros, session) in [(5, "a"), (3, "b"), (5, "c"), (14, "d")] {
            reorder.push(event(micros, session));
        }
        let pop = |reorder: &mut Reorder, watermark| {
            reorder.pop(Timestamp::from_micros(watermark)).map(|event| event.session.to_string())
        };
        assert_eq!(pop(&mut reorder, 12), None);
        assert_eq!(pop(&mut reorder, 15).as_deref(), Some("b"));
        assert_eq!(pop(&mut reorder, 15).as_deref(), Some("a"));
        assert_eq!(pop(&mut reorder, 15).as_deref(), Some("c"));
        assert_eq!(pop(&mut reorder, 15), None);
        assert_eq!(reorder.pop_any().map(|event| event.time.as_micros()), Some(14));
        assert!(reorder.is_empty());
    }

    #[test]
    fn a_full_buffer_lets_the_earliest_go() {
        let mut reorder = Reorder::new(Duration::from_secs(1), 2);
        for micros in [3, 1, 2] {
            reorder.push(event(micros, "a"));
        }
        let first = reorder.pop(Timestamp::from_micros(3));
        assert_eq!(first.map(|event| event.time.as_micros()), Some(1));
        assert_eq!(reorder.pop(Timestamp::from_micros(3)), None);
    }
}
