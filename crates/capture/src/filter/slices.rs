//! [`Slices`]: splits a stream of events by time.

use std::{collections::HashSet, time::Duration};

use howdah_traffic::{Action, Event, SessionId, Timestamp};

use crate::filter::preambles::{SessionPreambles, repeat_at};

/// A splitter of events, given in the order of time, into slices of equal length.
///
/// A session that continues in the next slice is started again there: its login, named prepared
/// statements and settings are repeated at the time of its first event in the slice, with the
/// source [`Inferred`](howdah_traffic::Source::Inferred). So every slice can be replayed
/// alone.
#[derive(Debug)]
pub struct Slices {
    length: Duration,
    first: Option<Timestamp>,
    number: u64,
    preambles: SessionPreambles<()>,
    /// Sessions with an event in the current slice.
    started: HashSet<SessionId>,
    repeated: u64,
}

impl Slices {
    /// Creates a splitter into slices of `length`, the first of which starts with the first event.
    /// A length below a microsecond counts as one microsecond.
    pub fn new(length: Duration) -> Self {
        Self {
            length: length.max(Duration::from_micros(1)),
            first: None,
            number: 0,
            preambles: SessionPreambles::default(),
            started: HashSet::new(),
            repeated: 0,
        }
    }

    /// Returns the number of the event's slice, from 0, and the events that must precede it there.
    pub fn push(&mut self, event: &Event) -> (u64, Vec<Event>) {
        let first = *self.first.get_or_insert(event.time);
        let micros = event.time.saturating_since(first).as_micros() / self.length.as_micros();
        // The number never decreases: late events belong to the current slice.
        let number = u64::try_from(micros).unwrap_or(u64::MAX).max(self.number);
        if number > self.number {
            self.number = number;
            self.started.clear();
        }
        let repeated = if self.started.insert(event.session.clone())
            && !matches!(event.action, Action::Connect)
        {
            self.preambles
                .get(&event.session)
                .iter()
                .map(|(earlier, ())| repeat_at(earlier.clone(), event))
                .collect()
        } else {
            Vec::new()
        };
        self.repeated += repeated.len() as u64;
        self.preambles.record(event, ());
        (self.number, repeated)
    }

    /// Returns the start time of a slice. If no event has arrived, slices start at the Unix epoch.
    pub fn start_time(&self, number: u64) -> Timestamp {
        let micros = self.length.as_micros().saturating_mul(u128::from(number));
        let offset = Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
        self.first.unwrap_or_default() + offset
    }

    /// Returns the number of events repeated so far.
    pub fn repeated(&self) -> u64 {
        self.repeated
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use howdah_traffic::{CapturedOutcome, Source};

    #[test]
    fn every_slice_starts_its_sessions() {
        let event = |seconds: i64, action| Event {
            time: Timestamp::from_micros(seconds * 1_000_000),
            session: "a".into(),
            user: "".into(),
            database: "".into(),
            application: "".into(),
            action,
            outcome: CapturedOutcome::default(),
            source: Source::Session,
            vxid: None,
            query_id: None,
            pipeline: None,
            wire: None,
        };
        let parse = |name: &str| Action::Parse { statement: name.into(), sql: "select 1".into() };
        let mut slices = Slices::new(Duration::from_secs(10));
        assert_eq!(slices.push(&event(100, Action::Connect)), (0, vec![]));
        assert_eq!(slices.push(&event(105, parse("p"))), (0, vec![]));
        let (number, before) = slices.push(&event(131, Action::Cancel));
        assert_eq!((number, before.len()), (3, 2));
        assert!(before.iter().all(|one| one.time.as_micros() == 131_000_000));
        assert_eq!(slices.push(&event(132, Action::Cancel)), (3, vec![]));
        // An event that is one slice late, and the end of the session.
        assert_eq!(slices.push(&event(120, Action::Disconnect)), (3, vec![]));
        assert_eq!(slices.push(&event(145, Action::Cancel)), (4, vec![]));
        assert_eq!(slices.repeated(), 2);
        assert_eq!(slices.start_time(3), Timestamp::from_micros(130_000_000));
    }
}
