//! [`EventFilter`]: keeps matching events, in sessions that remain consistent.

use std::collections::{BTreeMap, HashSet, VecDeque};

use howdah_traffic::{Action, Event, SessionId};

use crate::filter::{
    criteria::{ExclusionReason, Filter},
    preambles::{SessionPreambles, is_preamble, repeat_at},
    read_only::ReadOnlyNames,
    sample_rate::SampleRate,
};

/// Numbers of excluded events, by reason.
pub type ExcludedCounts = BTreeMap<ExclusionReason, u64>;

/// Keeps the events that match a [`Filter`].
///
/// Push events in the order of time, and after each push fetch the events that [`Self::poll`]
/// returns. The first matching event of a session is preceded by earlier events that did not match
/// but that the session needs: its login, named prepared statements and settings. They get the time
/// of the matching event and the source [`Inferred`](howdah_traffic::Source::Inferred). From then
/// on, the session's settings, its end and, without [`Filter::read_only`], its named statements are
/// kept too, whatever application name it sets.
///
/// The counts add up: every pushed event is either kept or counted by reason.
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
    read_only_names: ReadOnlyNames,
    /// Excluded events that later events of their sessions may depend on.
    preambles: SessionPreambles<ExclusionReason>,
    /// Sessions that have a kept event and have not ended.
    open: HashSet<SessionId>,
    ready: VecDeque<Event>,
    kept: u64,
    excluded: ExcludedCounts,
}

impl EventFilter {
    /// Creates a filter that keeps the events matching `filter`, in the sessions selected by
    /// `sample`.
    pub fn new(filter: Filter, sample: Option<SampleRate>) -> Self {
        Self { filter, sample, ..Self::default() }
    }

    /// Whether all events are kept.
    pub fn keeps_everything(&self) -> bool {
        self.filter.is_empty() && self.sample.is_none()
    }

    /// Processes the next event. It and earlier events of its session may become ready for
    /// [`Self::poll`].
    pub fn push(&mut self, event: Event) {
        if self.keeps_everything() {
            return self.emit(event);
        }
        match self.exclusion_reason(&event) {
            None => self.admit(event),
            Some(ExclusionReason::Application) if self.belongs_to_open_session(&event) => {
                self.admit(event);
            }
            Some(reason) => self.exclude(&event, reason),
        }
    }

    /// Returns the next event to keep.
    pub fn poll(&mut self) -> Option<Event> {
        self.ready.pop_front()
    }

    /// Returns the number of events kept so far.
    pub fn kept_count(&self) -> u64 {
        self.kept
    }

    /// Returns the number of events excluded so far, by reason.
    pub fn excluded(&self) -> &ExcludedCounts {
        &self.excluded
    }

    fn exclusion_reason(&mut self, event: &Event) -> Option<ExclusionReason> {
        let by_name = self.filter.exclusion_reason(event);
        if by_name.is_some() {
            return by_name;
        }
        if self.sample.is_some_and(|sample| !sample.contains(&event.session)) {
            return Some(ExclusionReason::Sample);
        }
        if self.filter.read_only {
            return self.read_only_names.exclusion_reason(event);
        }
        None
    }

    /// Whether an event with another application name is kept: it ends a session that has kept
    /// events, or later statements of this session may depend on it.
    fn belongs_to_open_session(&self, event: &Event) -> bool {
        let goes = matches!(event.action, Action::Disconnect) || is_preamble(&event.action);
        goes && self.open.contains(&event.session) && self.can_pass_unchecked(event)
    }

    fn can_pass_unchecked(&self, event: &Event) -> bool {
        // The application is checked before the text, so it is not known whether an excluded Parse
        // is read-only.
        !self.filter.read_only || !matches!(event.action, Action::Parse { .. })
    }

    fn admit(&mut self, event: Event) {
        let begins = matches!(event.action, Action::Connect);
        if begins || !self.open.contains(&event.session) {
            let start = self.preambles.remove(&event.session);
            for (earlier, reason) in start.events {
                if begins {
                    break;
                }
                if let Some(count) = self.excluded.get_mut(&reason) {
                    *count -= 1;
                }
                self.emit(repeat_at(earlier, &event));
            }
        }
        if matches!(event.action, Action::Disconnect) {
            self.open.remove(&event.session);
            self.read_only_names.remove_session(&event.session);
        } else {
            self.open.insert(event.session.clone());
        }
        self.emit(event);
    }

    fn emit(&mut self, event: Event) {
        self.kept += 1;
        self.ready.push_back(event);
    }

    fn exclude(&mut self, event: &Event, reason: ExclusionReason) {
        *self.excluded.entry(reason).or_default() += 1;
        // A later event of the session may match.
        let may_matter = matches!(
            reason,
            ExclusionReason::Before
                | ExclusionReason::Application
                | ExclusionReason::User
                | ExclusionReason::Database
        );
        if may_matter
            && self.filter.read_only
            && self.read_only_names.exclusion_reason(event).is_some()
        {
            return;
        }
        if may_matter && self.may_be_included_later(event) {
            self.preambles.record(event, reason);
        }
        if matches!(event.action, Action::Disconnect) {
            self.open.remove(&event.session);
        }
    }

    /// Whether a later event of the same session may match, because the session is in the sample
    /// and its name, role and database match as far as they are known.
    fn may_be_included_later(&self, event: &Event) -> bool {
        let may = |names: &[String], name: &str| {
            names.is_empty() || name.is_empty() || names.iter().any(|wanted| wanted == name)
        };
        let filter = &self.filter;
        may(&filter.sessions, &event.session)
            && may(&filter.users, &event.user)
            && may(&filter.databases, &event.database)
            && self.sample.is_none_or(|sample| sample.contains(&event.session))
    }
}

#[cfg(test)]
mod tests;
