//! [`SessionStates`]: the state that exists in a session, and since when.

use std::{sync::Arc, time::Duration};

use howdah_traffic::Timestamp;

use crate::state_kind::StateKind;

/// The state of one session. Its size is limited: of many objects of one kind, the names of the
/// last ones are not stored, so they are only removed with all others.
#[derive(Debug, Default)]
pub(crate) struct SessionStates {
    objects: Vec<StateObject>,
    periods: Vec<KindPeriod>,
    pinned_since: Option<Timestamp>,
    pinned: Duration,
}

/// An object of the session, such as a temporary table.
#[derive(Debug)]
struct StateObject {
    kind: StateKind,
    /// `None` for all objects whose names are not stored.
    name: Option<Arc<str>>,
    /// Number of times that it was acquired; 1 for kinds that are not counted.
    count: u64,
}

/// The times during which the session had state of a kind.
#[derive(Debug)]
pub(crate) struct KindPeriod {
    pub(crate) kind: StateKind,
    since: Option<Timestamp>,
    pub(crate) total: Duration,
}

/// Maximum number of objects whose names are stored.
const OBJECTS_MAX: usize = 256;

/// A removal of state, whose name is known if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Removal {
    Named(StateKind, Option<Arc<str>>),
    AllOfKind(StateKind),
    Everything,
}

impl Removal {
    /// Whether state of this kind and name is removed.
    pub(crate) fn matches(&self, kind: StateKind, name: Option<&Arc<str>>) -> bool {
        match self {
            Self::Named(own, own_name) => {
                // The key of a lock may not be known where it is acquired or released.
                let is_unknown = kind.is_counted() && (own_name.is_none() || name.is_none());
                *own == kind && (is_unknown || own_name.as_ref() == name)
            }
            Self::AllOfKind(own) => *own == kind,
            Self::Everything => kind.ends_with_discard_all(),
        }
    }
}

impl SessionStates {
    /// Whether the session has state that pins it to its server in adaptive mode.
    pub(crate) fn is_pinned(&self) -> bool {
        self.pinned_since.is_some()
    }

    /// Whether the session has ever had state of a kind.
    pub(crate) fn has_had(&self, kind: StateKind) -> bool {
        self.periods.iter().any(|period| period.kind == kind)
    }

    /// Adds state that exists from `at` on.
    pub(crate) fn add(&mut self, kind: StateKind, name: Option<Arc<str>>, at: Timestamp) {
        let is_full = self.objects.len() >= OBJECTS_MAX;
        let object = |name: &Option<Arc<str>>| {
            self.objects.iter().position(|it| it.kind == kind && it.name == *name)
        };
        let existing = object(&name).or_else(|| is_full.then(|| object(&None)).flatten());
        match existing {
            Some(index) => {
                let object = &mut self.objects[index];
                object.count += u64::from(kind.is_counted() || object.name != name);
            }
            None => {
                let name = name.filter(|_| !is_full);
                self.objects.push(StateObject { kind, name, count: 1 });
            }
        }
        self.update_periods(at);
    }

    /// Removes state at `at`.
    pub(crate) fn remove(&mut self, removal: &Removal, at: Timestamp) {
        match removal {
            Removal::Named(kind, name) => {
                let named = |name: Option<&Arc<str>>| {
                    self.objects.iter().position(|it| it.kind == *kind && it.name.as_ref() == name)
                };
                // An object without a known name may be the one that is removed.
                let similar = || {
                    self.objects.iter().rposition(|it| removal.matches(it.kind, it.name.as_ref()))
                };
                let index = named(name.as_ref()).or_else(|| named(None)).or_else(similar);
                let Some(index) = index else { return };
                let object = &mut self.objects[index];
                object.count -= 1;
                if object.count == 0 {
                    self.objects.swap_remove(index);
                }
            }
            other => self.objects.retain(|it| !other.matches(it.kind, it.name.as_ref())),
        }
        self.update_periods(at);
    }

    /// Ends all state at the end of the session, and returns the time during which the session was
    /// pinned, and the periods of each kind of state.
    pub(crate) fn end(mut self, at: Timestamp) -> (Duration, Vec<KindPeriod>) {
        self.objects.clear();
        self.update_periods(at);
        (self.pinned, self.periods)
    }

    /// Starts and ends periods, after the objects have changed.
    fn update_periods(&mut self, at: Timestamp) {
        for object in &self.objects {
            match self.periods.iter_mut().find(|period| period.kind == object.kind) {
                Some(period) => period.since = period.since.or(Some(at)),
                None => self.periods.push(KindPeriod {
                    kind: object.kind,
                    since: Some(at),
                    total: Duration::ZERO,
                }),
            }
        }
        for period in &mut self.periods {
            if let Some(since) = period.since
                && !self.objects.iter().any(|object| object.kind == period.kind)
            {
                period.total += at.saturating_since(since);
                period.since = None;
            }
        }
        let is_pinned = self.objects.iter().any(|object| object.kind.is_pinning());
        match self.pinned_since {
            None if is_pinned => self.pinned_since = Some(at),
            Some(since) if !is_pinned => {
                self.pinned += at.saturating_since(since);
                self.pinned_since = None;
            }
            _ => {}
        }
    }
}

#[test]
fn locks_are_counted_and_other_state_is_not() {
    let at = Timestamp::from_micros;
    let mut states = SessionStates::default();
    let one = Removal::Named(StateKind::AdvisoryLock, Some("1".into()));
    states.add(StateKind::AdvisoryLock, Some("1".into()), at(10));
    states.add(StateKind::AdvisoryLock, Some("1".into()), at(20));
    states.remove(&one, at(30));
    assert!(states.is_pinned());
    states.remove(&one, at(40));
    assert!(!states.is_pinned());
    for _ in 0..2 {
        states.add(StateKind::Setting, Some("work_mem".into()), at(50));
    }
    assert!(!states.is_pinned());
    states.remove(&Removal::Named(StateKind::Setting, Some("work_mem".into())), at(60));
    states.add(StateKind::Temporary, None, at(70));
    let (pinned, periods) = states.end(at(100));
    assert_eq!(pinned, Duration::from_micros(30 + 30));
    let totals: Vec<_> = periods.iter().map(|it| (it.kind, it.total.as_micros())).collect();
    assert_eq!(
        totals,
        [(StateKind::AdvisoryLock, 30), (StateKind::Setting, 10), (StateKind::Temporary, 30)]
    );
}

#[test]
fn number_of_objects_is_limited() {
    let at = Timestamp::from_micros;
    let mut states = SessionStates::default();
    for number in 0..10_000 {
        states.add(StateKind::Temporary, Some(format!("t{number}").into()), at(number));
    }
    assert!(states.objects.len() <= OBJECTS_MAX + 1);
    for number in 0..10_000 {
        let name: Arc<str> = format!("t{number}").into();
        states.remove(&Removal::Named(StateKind::Temporary, Some(name)), at(20_000 + number));
    }
    assert!(!states.is_pinned());
    states.add(StateKind::Function, Some("f".into()), at(40_000));
    states.remove(&Removal::Everything, at(50_000));
    assert!(!states.is_pinned());
}
