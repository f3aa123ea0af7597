//! [`SessionPin`]: the state in a server's session that keeps its client from leaving it.

use std::fmt::Write as _;

use howdah_sql::{SessionEffects, StateKinds, UndetectableState};

use crate::{
    pinning::check_query::{StateQuestions, StateRow, is_quotable},
    session::parameter::SessionParameter,
    state::{limits::Permits, pool_stats::PoolStats},
    time::Time,
};

/// The state in the session of a linked server, in [`crate::PoolingMode::Adaptive`]: what the
/// client's statements may have left there, and what the last check has found.
#[derive(Debug, Default)]
pub(crate) struct SessionPin {
    /// State that the statements since the last check may have left or removed.
    suspected: Suspected,
    /// The check in flight.
    asked: Option<Box<AskedState>>,
    /// The kinds of state that the last checks have found.
    found: StateKinds,
    /// Names of found state, for users: up to [`NAMES_MAX`], each with its kind.
    names: Vec<(StateKinds, Box<str>)>,
    undetectable: Vec<UndetectableState>,
    /// The volatile functions that were called.
    functions: Vec<Box<str>>,
    /// Number of checks in a row that have failed.
    failures: u8,
    /// Since when the client is pinned, and its permit.
    pinned: Option<(Time, Permits)>,
}

#[derive(Debug, Default)]
struct Suspected {
    leaves: StateKinds,
    removes: StateKinds,
    settings: Vec<Box<str>>,
    undetectable: Vec<UndetectableState>,
    functions: Vec<Box<str>>,
}

/// A check in flight.
#[derive(Debug)]
struct AskedState {
    questions: StateQuestions,
    found: StateKinds,
    names: Vec<(StateKinds, Box<str>)>,
    settings: Vec<SessionParameter>,
    volatile: Vec<Box<str>>,
    has_failed: bool,
}

/// The values and functions that a check has found, for the client and its pool.
#[derive(Debug, Default)]
pub(crate) struct CheckResult {
    /// The values of the settings that were asked for.
    pub(crate) settings: Vec<SessionParameter>,
    /// Whether all changed settings are among them, except those of extensions.
    pub(crate) has_all_settings: bool,
    /// The functions that are not volatile.
    pub(crate) stable_functions: Vec<Box<str>>,
}

/// Number of names that are stored for users.
const NAMES_MAX: usize = 4;
/// Maximum number of settings by name; if there are more, all are checked.
const SETTINGS_MAX: usize = 32;
/// Number of checks in a row that may fail before the client counts as pinned.
const FAILURES_MAX: u8 = 2;

impl SessionPin {
    /// Whether the client must stay: the last check has found state, or could not be done.
    pub(crate) fn is_pinned(&self) -> bool {
        !self.found.is_none()
            || !self.undetectable.is_empty()
            || !self.functions.is_empty()
            || self.failures > FAILURES_MAX
    }

    /// Whether nothing is known or suspected, so that the pin can be dropped.
    pub(crate) fn is_clear(&self) -> bool {
        !self.is_pinned() && self.asked.is_none() && self.suspected.is_empty()
    }

    /// Whether there may be state of any kind that resetting the session removes.
    pub(crate) fn needs_reset(&self) -> bool {
        let is_asked = |asked: &AskedState| !asked.questions.functions.is_empty();
        !self.functions.is_empty()
            || !self.suspected.functions.is_empty()
            || self.asked.as_deref().is_some_and(is_asked)
            || self.undetectables().any(|state| state.ends_with_discard_all())
    }

    /// Whether there may be state that resetting the session does not remove.
    pub(crate) fn needs_close(&self) -> bool {
        self.undetectables().any(|state| !state.ends_with_discard_all())
    }

    fn undetectables(&self) -> impl Iterator<Item = &UndetectableState> {
        self.undetectable.iter().chain(&self.suspected.undetectable)
    }

    /// Records what a statement may leave or remove. `is_reported` tells whether the server reports
    /// a setting, which then follows the client; `is_stateless` whether a function leaves nothing.
    pub(crate) fn suspect(
        &mut self,
        effects: &SessionEffects,
        follows: StateKinds,
        is_reported: impl Fn(&str) -> bool,
        mut is_stateless: impl FnMut(&str) -> bool,
    ) {
        let suspected = &mut self.suspected;
        suspected.leaves.insert(effects.leaves.without(follows));
        suspected.removes.insert(effects.removes.without(follows));
        for name in effects.settings.iter().filter(|name| !is_reported(name)) {
            if !is_quotable(name) {
                push_new(&mut suspected.undetectable, UndetectableState::UnnamedSetting);
            } else if suspected.settings.len() >= SETTINGS_MAX {
                suspected.leaves.insert(StateKinds::SETTINGS);
            } else {
                push_new(&mut suspected.settings, name.clone());
            }
        }
        for state in &effects.undetectable {
            push_new(&mut suspected.undetectable, *state);
        }
        for name in effects.functions.iter().filter(|name| !is_stateless(name)) {
            if suspected.functions.len() >= howdah_sql::FUNCTIONS_MAX {
                push_new(&mut suspected.undetectable, UndetectableState::ManyFunctions);
            } else {
                push_new(&mut suspected.functions, name.clone());
            }
        }
    }

    /// Records that DISCARD ALL has succeeded, with no later request in flight.
    pub(crate) fn discarded_all(&mut self) {
        self.suspected = Suspected { removes: StateKinds::SETTINGS, ..Suspected::default() };
        self.found = StateKinds::NONE;
        self.names.clear();
        self.undetectable.retain(|state| !state.ends_with_discard_all());
        self.functions.clear();
        self.failures = 0;
    }

    /// Returns the query to send before the client can leave its server, if one is needed, and
    /// records it as sent. `followed` are the settings that follow the client and that the server
    /// does not report; a RESET may have changed them.
    pub(crate) fn start_check(
        &mut self,
        followed: &[&SessionParameter],
        is_other_user: bool,
    ) -> Option<String> {
        let suspected = std::mem::take(&mut self.suspected);
        for state in suspected.undetectable {
            push_new(&mut self.undetectable, state);
        }
        // The server reports the session user.
        if is_other_user {
            self.found.insert(StateKinds::AUTHORIZATION);
        } else {
            self.found = self.found.without(StateKinds::AUTHORIZATION);
        }
        let mut kinds = suspected.leaves;
        for kind in EACH_KIND {
            let is_there = match kind {
                StateKinds::SETTINGS => !followed.is_empty() || self.found.intersects(kind),
                _ => self.found.intersects(kind),
            };
            if suspected.removes.intersects(kind) && is_there {
                kinds.insert(kind);
            }
        }
        let kinds = kinds.without(StateKinds::AUTHORIZATION);
        let (asked, unnamed): (Vec<_>, Vec<_>) = suspected
            .functions
            .into_iter()
            .filter(|name| !self.functions.contains(name))
            .partition(|name| is_quotable(name) && **name != *"do");
        for name in unnamed {
            push_new(&mut self.functions, name);
        }
        let mut settings = suspected.settings;
        if kinds.intersects(StateKinds::SETTINGS) {
            // The list of all settings lacks those of extensions and applications.
            let names = followed.iter().filter_map(|it| std::str::from_utf8(&it.name).ok());
            for name in names.filter(|name| name.contains('.') && is_quotable(name)) {
                push_new(&mut settings, name.to_ascii_lowercase().into());
            }
        }
        let questions = StateQuestions { kinds, settings, functions: asked };
        if questions.is_empty() {
            return None;
        }
        let query = questions.query();
        self.asked = Some(Box::new(AskedState {
            questions,
            found: StateKinds::NONE,
            names: Vec::new(),
            settings: Vec::new(),
            volatile: Vec::new(),
            has_failed: false,
        }));
        Some(query)
    }

    /// Whether the server could not be asked, so that only another request of the client starts a
    /// new attempt.
    pub(crate) fn gave_up(&self) -> bool {
        self.failures > FAILURES_MAX
    }

    /// Allows another attempt to ask the server.
    pub(crate) fn retry(&mut self) {
        if self.gave_up() {
            self.failures = 0;
        }
    }

    /// Whether statements since the last check may have left or removed state.
    pub(crate) fn has_suspicion(&self) -> bool {
        !self.suspected.is_empty()
    }

    /// Records a row of the check's result.
    pub(crate) fn record_row(&mut self, row: StateRow<'_>) {
        let Some(asked) = &mut self.asked else { return };
        match row {
            StateRow::Found(kind, name) => {
                asked.found.insert(kind);
                if asked.names.len() < NAMES_MAX {
                    asked.names.push((kind, String::from_utf8_lossy(name).into()));
                }
            }
            StateRow::Setting(name, Some(value)) => {
                if is_followable(name, value) && asked.settings.len() < 2 * SETTINGS_MAX {
                    asked.settings.push(SessionParameter::new(name, value));
                } else {
                    asked.found.insert(StateKinds::SETTINGS);
                    let name = String::from_utf8_lossy(name).into();
                    asked.names.push((StateKinds::SETTINGS, name));
                }
            }
            StateRow::Setting(_, None) => {}
            StateRow::VolatileFunction(name) => {
                asked.volatile.push(String::from_utf8_lossy(name).into());
            }
        }
    }

    /// Records that the check in flight has failed, for example by a statement timeout or a cancel
    /// request.
    pub(crate) fn check_failed(&mut self) {
        if let Some(asked) = &mut self.asked {
            asked.has_failed = true;
        }
    }

    /// Records the end of the check in flight.
    pub(crate) fn finish_check(&mut self) -> Option<CheckResult> {
        let asked = *self.asked.take()?;
        let StateQuestions { kinds, settings, functions } = asked.questions;
        if asked.has_failed {
            self.failures = self.failures.saturating_add(1);
            // Ask again, unless it fails again and again.
            self.suspected.leaves.insert(kinds);
            self.suspected.settings.extend(settings);
            self.suspected.functions.extend(functions);
            return None;
        }
        self.failures = 0;
        // A setting that cannot follow stays found until it is asked for again.
        let mut checked = kinds;
        if !settings.is_empty() {
            checked.insert(StateKinds::SETTINGS);
        }
        self.found = self.found.without(checked);
        self.found.insert(asked.found);
        self.names.retain(|(kind, _)| !checked.intersects(*kind));
        self.names.extend(asked.names);
        self.names.truncate(NAMES_MAX);
        let (volatile, stable_functions): (Vec<_>, Vec<_>) =
            functions.into_iter().partition(|name| asked.volatile.contains(name));
        for name in volatile {
            push_new(&mut self.functions, name);
        }
        self.functions.truncate(howdah_sql::FUNCTIONS_MAX);
        Some(CheckResult {
            settings: asked.settings,
            has_all_settings: kinds.intersects(StateKinds::SETTINGS),
            stable_functions,
        })
    }

    /// Whether the client already counts as pinned.
    pub(crate) fn has_permit(&self) -> bool {
        self.pinned.is_some()
    }

    /// Counts the client as pinned from now on.
    pub(crate) fn set_pinned(&mut self, now: Time, permits: Permits) {
        self.pinned = Some((now, permits));
    }

    /// Records that the client is not pinned any more, and counts for how long it was.
    pub(crate) fn clear_pinned(&mut self, stats: &mut PoolStats, now: Time) {
        if let Some((since, _)) = self.pinned.take() {
            stats.pinned_time.add(since, now);
        }
    }

    /// Returns since when the client is pinned.
    pub(crate) fn pinned_since(&self) -> Option<Time> {
        self.pinned.as_ref().map(|(since, _)| *since)
    }

    /// Returns the reasons for which the client is pinned, for users.
    pub(crate) fn reasons(&self) -> String {
        let mut text = String::new();
        let mut add = |part: &dyn std::fmt::Display| {
            let comma = if text.is_empty() { "" } else { ", " };
            let _ = write!(text, "{comma}{part}");
        };
        for kind in EACH_KIND.into_iter().filter(|kind| self.found.intersects(*kind)) {
            let names: Vec<&str> =
                self.names.iter().filter(|(of, _)| *of == kind).map(|(_, name)| &**name).collect();
            match kind {
                StateKinds::TEMPORARY if names.is_empty() => add(&"temporary objects"),
                StateKinds::TEMPORARY => add(&format_args!("temporary: {}", names.join(", "))),
                StateKinds::LOCKS => add(&format_args!("advisory locks: {}", names.join(", "))),
                StateKinds::CURSORS => add(&format_args!("held cursor: {}", names.join(", "))),
                StateKinds::PREPARED => add(&format_args!("PREPARE: {}", names.join(", "))),
                StateKinds::CHANNELS => add(&format_args!("LISTEN: {}", names.join(", "))),
                StateKinds::SETTINGS => add(&format_args!("setting: {}", names.join(", "))),
                _ => add(&"session authorization"),
            }
        }
        for state in &self.undetectable {
            add(state);
        }
        if !self.functions.is_empty() {
            add(&format_args!("function: {}", self.functions.join(", ")));
        }
        if self.failures > FAILURES_MAX {
            add(&"its session state could not be read");
        }
        text
    }
}

impl Suspected {
    fn is_empty(&self) -> bool {
        self.leaves.is_none()
            && self.removes.is_none()
            && self.settings.is_empty()
            && self.undetectable.is_empty()
            && self.functions.is_empty()
    }
}

/// All kinds of state, in the order in which they are shown to users.
const EACH_KIND: [StateKinds; 7] = [
    StateKinds::TEMPORARY,
    StateKinds::LOCKS,
    StateKinds::CURSORS,
    StateKinds::PREPARED,
    StateKinds::CHANNELS,
    StateKinds::SETTINGS,
    StateKinds::AUTHORIZATION,
];

/// Whether another server would accept the value of a setting in the same way. The buffers for
/// temporary tables cannot change once one was used, and a search path may name the session's own
/// temporary schema.
fn is_followable(name: &[u8], value: &[u8]) -> bool {
    const VALUE_BYTES_MAX: usize = 8 << 10;
    name != b"temp_buffers"
        && value.len() <= VALUE_BYTES_MAX
        && !(name == b"search_path" && memchr::memmem::find(value, b"pg_temp").is_some())
}

fn push_new<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}

/// Functions of a database that are known not to be volatile, or are listed as stateless.
#[derive(Debug, Default)]
pub(crate) struct StableFunctions {
    names: hashbrown::HashSet<Box<str>>,
    expires: Time,
}

/// How long a function counts as stable without looking it up again, as it may be replaced.
const STABLE_FOR: std::time::Duration = std::time::Duration::from_secs(60);
const STABLE_MAX: usize = 1024;

impl StableFunctions {
    pub(crate) fn contains(&mut self, name: &str, now: Time) -> bool {
        if now >= self.expires {
            self.names.clear();
            return false;
        }
        self.names.contains(name)
    }

    pub(crate) fn extend(&mut self, names: Vec<Box<str>>, now: Time) {
        if self.names.is_empty() || self.names.len() >= STABLE_MAX {
            self.names.clear();
            self.expires = now + STABLE_FOR;
        }
        self.names.extend(names);
    }
}

/// Whether a function is listed, by its name with or without its schema.
pub(crate) fn is_listed(list: &[Box<str>], name: &str) -> bool {
    let bare = name.rsplit_once('.').map_or(name, |(_, bare)| bare);
    list.iter().any(|listed| match listed.split_once('.') {
        Some((schema, "*")) => name.split_once('.').is_some_and(|(its, _)| its == schema),
        Some(_) => **listed == *name,
        None => **listed == *bare,
    })
}
