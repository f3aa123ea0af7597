//! [`EventFilter`]: the events that a filter keeps, in sessions that still make sense.

use std::collections::{BTreeMap, HashSet, VecDeque};

use howdah_traffic::{Action, Event, SessionId};

#[cfg(feature = "grammar")]
use crate::trust::Trust;
use crate::{
    filter::{Filter, Reason},
    memory::{Memory, again, is_remembered},
    share::SampleRate,
};

/// Events left out, by reason.
pub type Left = BTreeMap<Reason, u64>;

/// Keeps the events that are wanted.
///
/// Give it events in the order of time, and after each take what [`Self::poll`] has. When the first
/// wanted event of a session comes, what came before in that session and was not wanted, but is
/// needed, comes first: its login, named prepared statements and settings, at the time of that event and
/// with the source [`Inferred`](howdah_traffic::Source::Inferred). Once a session is in, its later
/// named statements, settings and end are kept with it, whatever application it calls itself.
///
/// The counts close: every event that is given is kept or counted by reason.
///
/// ```text
///   filter: from 10:00          log                         kept
///                               09:58 connect               10:02 connect (inferred)
///                               09:59 parse S_1             10:02 parse S_1 (inferred)
///                               09:59 execute S_1
///                               10:02 execute S_1           10:02 execute S_1
/// ```
#[derive(Debug, Default)]
pub struct EventFilter {
    filter: Filter,
    sample: Option<SampleRate>,
    #[cfg(feature = "grammar")]
    trust: Trust,
    /// What was left out of sessions that are not in yet.
    memory: Memory<Reason>,
    /// Sessions that have a kept event and have not ended.
    open: HashSet<SessionId>,
    ready: VecDeque<Event>,
    kept: u64,
    left: Left,
}

impl EventFilter {
    /// Keeps what `filter` wants, of the sessions that `sample` holds.
    pub fn new(filter: Filter, sample: Option<SampleRate>) -> Self {
        Self { filter, sample, ..Self::default() }
    }

    /// Whether it keeps everything.
    pub fn is_open(&self) -> bool {
        self.filter.is_empty() && self.sample.is_none()
    }

    /// Takes an event.
    pub fn push(&mut self, event: Event) {
        if self.is_open() {
            return self.keep(event);
        }
        match self.refuses(&event) {
            None => self.admit(event),
            Some(Reason::Application) if self.belongs(&event) => self.admit(event),
            Some(reason) => self.refuse(&event, reason),
        }
    }

    /// The next event that is kept.
    pub fn poll(&mut self) -> Option<Event> {
        self.ready.pop_front()
    }

    /// Number of events kept so far.
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// Events left out so far, by reason.
    pub fn left(&self) -> &Left {
        &self.left
    }

    fn refuses(&mut self, event: &Event) -> Option<Reason> {
        let by_name = self.filter.refuses(event);
        if by_name.is_some() {
            return by_name;
        }
        if self.sample.is_some_and(|share| !share.holds(&event.session)) {
            return Some(Reason::Sample);
        }
        #[cfg(feature = "grammar")]
        if self.filter.read_only {
            return self.trust.refuses(event);
        }
        None
    }

    /// Whether it goes with its session, which is in.
    fn belongs(&self, event: &Event) -> bool {
        let goes = matches!(event.action, Action::Disconnect) || is_remembered(&event.action);
        goes && self.open.contains(&event.session) && self.is_readable(event)
    }

    #[cfg(feature = "grammar")]
    fn is_readable(&self, event: &Event) -> bool {
        // The sieve looks at the application before it looks at the text.
        !self.filter.read_only || !matches!(event.action, Action::Parse { .. })
    }

    #[cfg(not(feature = "grammar"))]
    fn is_readable(&self, _event: &Event) -> bool {
        true
    }

    fn admit(&mut self, event: Event) {
        let begins = matches!(event.action, Action::Connect);
        if begins || !self.open.contains(&event.session) {
            let start = self.memory.take(&event.session);
            for (earlier, reason) in start.events {
                if begins {
                    break;
                }
                if let Some(count) = self.left.get_mut(&reason) {
                    *count -= 1;
                }
                self.keep(again(earlier, &event));
            }
        }
        if matches!(event.action, Action::Disconnect) {
            self.open.remove(&event.session);
            #[cfg(feature = "grammar")]
            self.trust.forget(&event.session);
        } else {
            self.open.insert(event.session.clone());
        }
        self.keep(event);
    }

    fn keep(&mut self, event: Event) {
        self.kept += 1;
        self.ready.push_back(event);
    }

    fn refuse(&mut self, event: &Event, reason: Reason) {
        *self.left.entry(reason).or_default() += 1;
        // It may yet turn out that its session is wanted.
        let may_matter = matches!(
            reason,
            Reason::Before | Reason::Application | Reason::User | Reason::Database
        );
        #[cfg(feature = "grammar")]
        if may_matter && self.filter.read_only && self.trust.refuses(event).is_some() {
            return;
        }
        if may_matter && self.could_be_wanted(event) {
            self.memory.note(event, reason);
        }
        if matches!(event.action, Action::Disconnect) {
            self.open.remove(&event.session);
        }
    }

    /// Whether a later event of the same session may be wanted: its names fit as far as they are known.
    fn could_be_wanted(&self, event: &Event) -> bool {
        let may = |names: &[String], name: &str| {
            names.is_empty() || name.is_empty() || names.iter().any(|wanted| wanted == name)
        };
        let filter = &self.filter;
        may(&filter.sessions, &event.session)
            && may(&filter.users, &event.user)
            && may(&filter.databases, &event.database)
            && self.sample.is_none_or(|share| share.holds(&event.session))
    }
}

#[cfg(test)]
mod tests;
