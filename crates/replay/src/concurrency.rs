//! An estimate of the sessions of a capture, made before it is replayed.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, HashSet},
    time::{Duration, Instant},
};

use howdah_traffic::{Event, Kind, SessionId};

/// An estimate of the logins and the peak concurrency of a capture, based on the events at its
/// start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConcurrencyEstimate {
    /// Number of sessions by captured role and database; either is empty if not known.
    pub sessions: BTreeMap<(String, String), u64>,
    /// Peak number of sessions open at once.
    pub open_max: usize,
    /// Whether every session of the capture is counted in `sessions`.
    pub is_complete: bool,
}

/// Maximum number of pairs of role and database that are counted separately. Real workloads have
/// fewer, but damaged logs may not.
const PAIRS_MAX: usize = 1_000;

/// Maximum number of sessions that are tracked at once.
const SESSIONS_MAX: usize = 100_000;

impl ConcurrencyEstimate {
    /// Counts the sessions in the first thousand events, and in those that can be read before
    /// `timeout` has passed. Stops early at an event that cannot be read, which the replay will
    /// report, and at a hundred thousand open sessions.
    pub fn from_events<T: Borrow<Event>, E>(
        events: impl Iterator<Item = Result<T, E>>,
        timeout: Duration,
    ) -> Self {
        const EVENTS_MIN: usize = 1_000;
        const CHECK_EVERY_N: usize = 256;
        let start = Instant::now();
        let mut estimate = Self::default();
        let mut is_complete = true;
        let mut open: HashSet<SessionId> = HashSet::new();
        for (number, event) in events.enumerate() {
            let Ok(event) = event else { return estimate };
            let event: &Event = event.borrow();
            let late =
                number >= EVENTS_MIN && number % CHECK_EVERY_N == 0 && start.elapsed() > timeout;
            if late || open.len() >= SESSIONS_MAX {
                return estimate;
            }
            if event.action.kind() == Kind::Disconnect {
                open.remove(&event.session);
            } else if !open.contains(&event.session) {
                is_complete &= estimate.count(event);
                open.insert(event.session.clone());
                estimate.open_max = estimate.open_max.max(open.len());
            }
        }
        estimate.is_complete = is_complete;
        estimate
    }

    /// Counts a new session; `false` if there are too many pairs of role and database to count it.
    fn count(&mut self, event: &Event) -> bool {
        let pair = (event.user.to_string(), event.database.to_string());
        let has_room = self.sessions.len() < PAIRS_MAX || self.sessions.contains_key(&pair);
        if has_room {
            *self.sessions.entry(pair).or_default() += 1;
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use howdah_traffic::{Action, CapturedOutcome, Source, Timestamp};

    use super::*;

    fn event(session: &str, user: &str, action: Action) -> Result<Event, ()> {
        Ok(Event {
            time: Timestamp::from_micros(0),
            session: session.into(),
            user: user.into(),
            database: "shop".into(),
            application: "".into(),
            action,
            outcome: CapturedOutcome::default(),
            source: Source::Session,
            vxid: None,
            query_id: None,
            pipeline: None,
            wire: None,
        })
    }

    #[test]
    fn sessions_and_peak_concurrency_are_counted() {
        let events = [
            event("1", "app", Action::Connect),
            event("1", "app", Action::Simple { sql: "select 1".into() }),
            // A session that was open before the capture began.
            event("2", "app", Action::Simple { sql: "select 2".into() }),
            event("1", "app", Action::Disconnect),
            event("3", "report", Action::Connect),
        ];
        let estimate = ConcurrencyEstimate::from_events(events.into_iter(), Duration::MAX);
        let pair = |user: &str| (user.to_owned(), "shop".to_owned());
        assert_eq!(estimate.sessions, BTreeMap::from([(pair("app"), 2), (pair("report"), 1)]));
        assert_eq!(estimate.open_max, 2);
        assert!(estimate.is_complete);
    }

    #[test]
    fn endless_capture_stops_at_timeout() {
        let endless = std::iter::repeat_with(|| event("1", "app", Action::Connect));
        let estimate = ConcurrencyEstimate::from_events(endless, Duration::ZERO);
        assert!(!estimate.is_complete);
    }

    #[test]
    fn estimate_with_too_many_roles_is_not_complete() {
        let roles = (0..=PAIRS_MAX).map(|number| number.to_string());
        let events = roles.map(|role| event(&role, &role, Action::Connect));
        let estimate = ConcurrencyEstimate::from_events(events, Duration::MAX);
        assert_eq!(estimate.sessions.len(), PAIRS_MAX);
        assert!(!estimate.is_complete);
    }
}
