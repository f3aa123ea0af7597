//! A look at the sessions of a capture before it is played.

use std::{
    collections::{BTreeMap, HashSet},
    time::{Duration, Instant},
};

use howdah_traffic::{Event, Kind, SessionId};

/// Who comes, and how many at once, in as much of a capture as could be read in a given time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Survey {
    /// Sessions by captured role and database, either empty if not known.
    pub sessions: BTreeMap<(String, String), u64>,
    /// Most sessions open at once.
    pub open_max: usize,
    /// Whether that was the whole capture.
    pub complete: bool,
}

/// Pairs of role and database that are told apart. Nobody has more; damaged logs may.
const PAIRS_MAX: usize = 1_000;

/// Sessions that are followed at once, and known by name.
const SESSIONS_MAX: usize = 100_000;

impl Survey {
    /// Reads a thousand events, and on until `patience` has passed. An event that cannot be read ends it: the replay
    /// will meet it, too.
    pub fn of<E>(events: impl Iterator<Item = Result<Event, E>>, patience: Duration) -> Self {
        const EVENTS_MIN: usize = 1_000;
        const NOW_AND_THEN: usize = 256;
        let start = Instant::now();
        let mut survey = Self::default();
        let mut open: HashSet<SessionId> = HashSet::new();
        for (number, event) in events.enumerate() {
            let Ok(event) = event else { return survey };
            let late =
                number >= EVENTS_MIN && number % NOW_AND_THEN == 0 && start.elapsed() > patience;
            if late || open.len() >= SESSIONS_MAX {
                return survey;
            }
            if event.action.kind() == Kind::Disconnect {
                open.remove(&event.session);
            } else if !open.contains(&event.session) {
                survey.count(&event);
                open.insert(event.session);
                survey.open_max = survey.open_max.max(open.len());
            }
        }
        survey.complete = true;
        survey
    }

    fn count(&mut self, event: &Event) {
        let pair = (event.user.to_string(), event.database.to_string());
        if self.sessions.len() < PAIRS_MAX || self.sessions.contains_key(&pair) {
            *self.sessions.entry(pair).or_default() += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use howdah_traffic::{Action, Outcome, Source, Timestamp};

    use super::*;

    fn event(session: &str, user: &str, action: Action) -> Result<Event, ()> {
        Ok(Event {
            time: Timestamp::from_micros(0),
            session: session.into(),
            user: user.into(),
            database: "shop".into(),
            application: "".into(),
            action,
            outcome: Outcome::default(),
            source: Source::Session,
            vxid: None,
            query_id: None,
            pipeline: None,
            wire: None,
        })
    }

    #[test]
    fn sessions_are_counted_once_and_those_open_at_once() {
        let events = [
            event("1", "app", Action::Connect),
            event("1", "app", Action::Simple { sql: "select 1".into() }),
            // One that was open before the capture began.
            event("2", "app", Action::Simple { sql: "select 2".into() }),
            event("1", "app", Action::Disconnect),
            event("3", "report", Action::Connect),
        ];
        let survey = Survey::of(events.into_iter(), Duration::MAX);
        let pair = |user: &str| (user.to_owned(), "shop".to_owned());
        assert_eq!(survey.sessions, BTreeMap::from([(pair("app"), 2), (pair("report"), 1)]));
        assert_eq!(survey.open_max, 2);
        assert!(survey.complete);
    }

    #[test]
    fn an_endless_capture_is_left_after_a_while() {
        let endless = std::iter::repeat_with(|| event("1", "app", Action::Connect));
        let survey = Survey::of(endless, Duration::ZERO);
        assert!(!survey.complete);
    }
}
