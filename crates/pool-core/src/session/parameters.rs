//! Session parameters that follow a client from server to server.
//!
//! A server reports some of its parameters at login and whenever they change. The pooler sets the
//! values that a client requested at startup, or that were reported while the client had a server,
//! on its next server. All other parameters keep the values that they had after the pooler's login.
//!
//! Values are sent as bound parameters of `set_config`, never as SQL text, so they cannot be
//! misinterpreted, whatever the server's encoding and quoting rules are.

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use hashbrown::HashSet;

use crate::{
    prepared::parse_settings::{
        self, COUNT, NAMES, ParseState, Uncertainty, is_parse_setting, parse_setting_index,
    },
    session::parameter::{SessionParameter, eq_name},
};

impl SessionParameter {
    /// Creates a parameter. Name and value of a parameter that is sent must not contain a zero
    /// byte.
    pub fn new(name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        Self { name: name.as_ref().into(), value: value.as_ref().into() }
    }
}

impl fmt::Debug for SessionParameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, value } = self;
        write!(f, "{}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
    }
}

/// The parameters that a client expects on its server. Within a worker, equal sets share one
/// object, so checking whether a server has the right ones is usually a comparison of addresses.
#[derive(Debug, Default)]
pub(crate) struct TrackedParameters {
    list: Box<[SessionParameter]>,
    /// Whether a server has accepted the values. Until then, the client's messages are held back:
    /// they would run even if the values were rejected.
    accepted: AtomicBool,
}

impl TrackedParameters {
    pub(crate) fn mark_accepted(&self) {
        self.accepted.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_accepted(&self) -> bool {
        self.accepted.load(Ordering::Relaxed) || self.list.is_empty()
    }

    /// Returns the parameters, sorted by name.
    pub(crate) fn list(&self) -> &[SessionParameter] {
        &self.list
    }

    pub(crate) fn value(&self, name: &[u8]) -> Option<&[u8]> {
        let parameter = self.list.iter().find(|parameter| eq_name(&parameter.name, name))?;
        Some(&parameter.value)
    }

    /// Removes duplicate names (the last value wins), and sorts by name.
    fn deduplicated(
        parameters: impl IntoIterator<Item = SessionParameter>,
    ) -> Box<[SessionParameter]> {
        let mut list: Vec<SessionParameter> = Vec::new();
        for parameter in parameters {
            match list.iter_mut().find(|known| eq_name(&known.name, &parameter.name)) {
                Some(known) => *known = parameter,
                None => list.push(parameter),
            }
        }
        list.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        list.into()
    }
}

/// The distinct parameter sets of a worker's clients.
#[derive(Debug, Default)]
pub(crate) struct ParameterSets {
    sets: HashSet<InternedParameters>,
    clear_at: usize,
}

/// Minimum number of entries before unused ones are evicted.
const CLEAR_THRESHOLD_MIN: usize = 256;

impl ParameterSets {
    /// Returns the shared object for a list of parameters. If names are equal, the last value wins.
    pub(crate) fn intern(
        &mut self,
        parameters: impl IntoIterator<Item = SessionParameter>,
    ) -> Arc<TrackedParameters> {
        let set = InternedParameters(Arc::new(TrackedParameters {
            list: TrackedParameters::deduplicated(parameters),
            ..TrackedParameters::default()
        }));
        if let Some(InternedParameters(known)) = self.sets.get(&set) {
            return Arc::clone(known);
        }
        if self.sets.len() >= self.clear_at.max(CLEAR_THRESHOLD_MIN) {
            self.sets.retain(|InternedParameters(set)| Arc::strong_count(set) > 1);
            self.clear_at = self.sets.len() * 2;
        }
        let InternedParameters(object) = &set;
        let object = Arc::clone(object);
        self.sets.insert(set);
        object
    }

    /// Returns the shared object for `set` with one parameter added or replaced.
    pub(crate) fn with(
        &mut self,
        set: &TrackedParameters,
        name: &[u8],
        value: &[u8],
    ) -> Arc<TrackedParameters> {
        let added = std::iter::once(SessionParameter::new(name, value));
        self.intern(set.list.iter().cloned().chain(added))
    }
}

/// A parameter set that is hashed and compared by content.
#[derive(Debug)]
struct InternedParameters(Arc<TrackedParameters>);

impl Hash for InternedParameters {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.list.hash(state);
    }
}

impl PartialEq for InternedParameters {
    fn eq(&self, other: &Self) -> bool {
        self.0.list == other.0.list
    }
}

impl Eq for InternedParameters {}

/// A parameter that a server reports by ParameterStatus, with its first reported value, usually
/// that at login, and its current one.
#[derive(Debug)]
struct ReportedParameter {
    name: Box<[u8]>,
    at_login: Box<[u8]>,
    current: Box<[u8]>,
}

/// A parameter that must be set on a server.
#[derive(Debug)]
pub(crate) struct MissingParameter {
    pub(crate) name: Box<[u8]>,
    /// The value to set; `None` sets the server's default.
    pub(crate) value: Option<Box<[u8]>>,
}

/// The parameters of a server connection, as far as they are known.
#[derive(Debug, Default)]
pub(crate) struct ServerParameters {
    reported: Vec<ReportedParameter>,
    /// Parameters that the pooler has set for a client and the server does not report.
    unreported: Vec<SessionParameter>,
    /// The parameter set that is known to be in force; `None` if that is uncertain.
    pub(crate) applied: Option<Arc<TrackedParameters>>,
    /// Whether the pooler's statement that sets a parameter is prepared on the server.
    pub(crate) is_setter_prepared: bool,
    /// The parameter set that was sent but is not confirmed yet.
    in_flight: Option<Arc<TrackedParameters>>,
    /// The parse settings in force, as far as they are known.
    pub(crate) parse_state: ParseState,
}

impl ServerParameters {
    /// Creates the state from the parameters that a server reported at login.
    pub(crate) fn at_login(parameters: &[SessionParameter]) -> Self {
        let reported =
            parameters.iter().map(|SessionParameter { name, value }| ReportedParameter {
                name: name.clone(),
                at_login: value.clone(),
                current: value.clone(),
            });
        Self { reported: reported.collect(), ..Self::default() }
    }

    /// Returns the values that the server reported at login.
    pub(crate) fn login_values(&self) -> Arc<[SessionParameter]> {
        self.reported
            .iter()
            .map(|known| SessionParameter::new(&known.name, &known.at_login))
            .collect()
    }

    /// Handles a ParameterStatus, and clears `applied`. The caller, which knows the request that
    /// caused the report, must restore `applied` if the set is still in force.
    pub(crate) fn handle_report(&mut self, name: &[u8], value: &[u8]) {
        self.applied = None;
        if let Some(at) = parse_setting_index(name) {
            // A value that was queried in the batch is known before its report arrives.
            let queried = self.parse_state.queried_value(at);
            let expected = queried.or_else(|| self.value_in_force(name));
            if expected.is_none_or(|expected| *expected != *value) {
                match self.in_flight {
                    Some(_) => self.parse_state.invalidate(), // The server may normalize it.
                    None => self.parse_state.handle_unexpected_change(),
                }
            }
            self.parse_state.discard_queried(at);
        }
        self.update_reported(name, value);
    }

    /// Handles a ParameterStatus for a value that the pooler sets temporarily.
    pub(crate) fn handle_temporary_report(&mut self, name: &[u8], value: &[u8]) {
        self.update_reported(name, value);
    }

    fn update_reported(&mut self, name: &[u8], value: &[u8]) {
        if let Some(known) = self.reported.iter_mut().find(|known| *known.name == *name) {
            if *known.current != *value {
                known.current = value.into();
            }
        } else if self.reported.len() < REPORTED_MAX {
            let (name, value) = (name.into(), Box::<[u8]>::from(value));
            self.reported.push(ReportedParameter { name, at_login: value.clone(), current: value });
        }
    }

    /// Returns the value that a reported parameter will have once the server has processed all
    /// messages sent.
    fn value_in_force(&self, name: &[u8]) -> Option<&[u8]> {
        let known = self.reported.iter().find(|known| eq_name(&known.name, name))?;
        Some(match &self.in_flight {
            Some(set) => set.value(name).unwrap_or(&known.at_login),
            None => &known.current,
        })
    }

    /// Returns the parse settings that will be in force once the server has processed all messages
    /// sent.
    pub(crate) fn parse_values(&self) -> [Option<&[u8]>; COUNT] {
        parse_settings::values_from(|at| {
            let name = NAMES[at].as_bytes();
            if let Some(value) = self.parse_state.queried_value(at) {
                return Some(value);
            }
            if let Some(value) = self.value_in_force(name) {
                return Some(value);
            }
            let unreported = match &self.in_flight {
                Some(set) => set.value(name),
                None => self.unreported_value(name),
            };
            unreported.or_else(|| self.parse_state.unreported_value(at))
        })
    }

    fn unreported_value(&self, name: &[u8]) -> Option<&[u8]> {
        let unreported =
            self.unreported.iter().find(|unreported| eq_name(&unreported.name, name))?;
        Some(&unreported.value)
    }

    /// Handles the values that the query for parse settings has returned.
    pub(crate) fn handle_parse_values(&mut self, values: parse_settings::ParseSettingValues) {
        let Self { unreported, parse_state: parsing, .. } = self;
        let is_given = |name: &str| unreported.iter().any(|it| eq_name(&it.name, name.as_bytes()));
        parsing.handle_query_result(values, is_given);
    }

    /// Records that all requests are answered and no batch is open, so that the last reported
    /// values are in force. A value that was queried before is discarded even if no report has
    /// followed: PostgreSQL does not report a value that was changed and changed back.
    pub(crate) fn trust_reports(&mut self) {
        for (at, name) in NAMES.iter().enumerate() {
            if self.reports(name.as_bytes()) {
                self.parse_state.discard_queried(at);
            }
        }
        self.parse_state.uncertainty = Uncertainty::None;
    }

    /// Whether the server reports a parameter.
    pub(crate) fn reports(&self, name: &[u8]) -> bool {
        self.value(name).is_some()
    }

    /// Records that the `missing` parameters were sent, to apply `set`.
    pub(crate) fn mark_sent(&mut self, missing: &[MissingParameter], set: &Arc<TrackedParameters>) {
        if missing.iter().any(|missing| is_parse_setting(&missing.name)) {
            self.parse_state.invalidate();
        }
        self.in_flight = Some(Arc::clone(set));
    }

    /// Returns the value that the server last reported for a parameter; `None` if it does not
    /// report the parameter.
    pub(crate) fn value(&self, name: &[u8]) -> Option<&[u8]> {
        let known = self.reported.iter().find(|known| eq_name(&known.name, name))?;
        Some(&known.current)
    }

    /// Returns the parameters that must be set for `set` to be in force. The encoding comes first,
    /// because the other values are in the client's encoding.
    pub(crate) fn missing(&self, set: &TrackedParameters) -> Vec<MissingParameter> {
        let mut missing = Vec::new();
        for known in self.reported.iter().filter(|known| is_settable(&known.name)) {
            let expected = set.value(&known.name).unwrap_or(&known.at_login);
            if *known.current != *expected {
                missing.push(MissingParameter {
                    name: known.name.clone(),
                    value: Some(expected.into()),
                });
            }
        }
        for parameter in &set.list {
            let unreported = self
                .unreported
                .iter()
                .find(|unreported| eq_name(&unreported.name, &parameter.name));
            if self.value(&parameter.name).is_none()
                && unreported.is_none_or(|g| g.value != parameter.value)
            {
                let SessionParameter { name, value } = parameter.clone();
                missing.push(MissingParameter { name, value: Some(value) });
            }
        }
        let is_obsolete = |unreported: &&SessionParameter| set.value(&unreported.name).is_none();
        let reset = |unreported: &SessionParameter| MissingParameter {
            name: unreported.name.clone(),
            value: None,
        };
        missing.extend(self.unreported.iter().filter(is_obsolete).map(reset));
        // Another role may lack the privilege to change the other parameters.
        missing.sort_by_key(|missing| match (&*missing.name, &missing.value) {
            (b"role", None) => 0,
            (name, _) if eq_name(name, b"client_encoding") => 1,
            (b"role", Some(_)) => 3,
            _ => 2,
        });
        missing
    }

    /// Returns those of the `expected` parameters that must be set; parameters that the server does
    /// not report are always included.
    pub(crate) fn missing_from(&self, expected: &[SessionParameter]) -> Vec<MissingParameter> {
        let missing = |parameter: &SessionParameter| {
            let known = self.reported.iter().find(|known| eq_name(&known.name, &parameter.name));
            let name = known.map_or(&parameter.name, |known| &known.name).clone();
            let is_equal =
                known.is_some_and(|known| known.current == parameter.value) || !is_settable(&name);
            (!is_equal).then(|| MissingParameter { name, value: Some(parameter.value.clone()) })
        };
        expected.iter().filter_map(missing).collect()
    }

    /// Records that `set`, which was sent to the server, is now in force.
    pub(crate) fn mark_applied(&mut self, set: Arc<TrackedParameters>) {
        let unreported = set.list.iter().filter(|parameter| self.value(&parameter.name).is_none());
        self.unreported = unreported.cloned().collect();
        self.in_flight = None;
        self.applied = Some(set);
    }

    /// Records the parameters of `set` that the server does not report as those in force.
    pub(crate) fn mark_unreported(&mut self, set: &Arc<TrackedParameters>) {
        let unreported = set.list.iter().filter(|parameter| self.value(&parameter.name).is_none());
        let unreported: Vec<SessionParameter> = unreported.cloned().collect();
        if unreported.iter().chain(&self.unreported).any(|it| is_parse_setting(&it.name)) {
            self.parse_state.invalidate();
        }
        self.unreported = unreported;
        self.applied = self.missing(set).is_empty().then(|| Arc::clone(set));
    }

    /// Whether the session's user is not the one that logged in.
    pub(crate) fn has_other_user(&self) -> bool {
        let user = self.reported.iter().find(|known| *known.name == *b"session_authorization");
        user.is_some_and(|known| known.current != known.at_login)
    }

    /// Returns a set in which reported parameters have their values as the server spells them.
    pub(crate) fn reported_spelling(&self, set: &TrackedParameters) -> Vec<SessionParameter> {
        let spelled = |parameter: &SessionParameter| match self.value(&parameter.name) {
            Some(value) if is_settable(&parameter.name) => {
                SessionParameter::new(&parameter.name, value)
            }
            _ => parameter.clone(),
        };
        set.list.iter().map(spelled).collect()
    }

    /// Whether the pooler has set an unreported parameter whose name satisfies `is_it`.
    pub(crate) fn has_unreported(&self, is_it: impl Fn(&[u8]) -> bool) -> bool {
        self.unreported.iter().any(|unreported| is_it(&unreported.name))
    }

    /// Discards the values that the pooler has set, because all parameters were reset to their
    /// values after login. New values of reported parameters arrive as ParameterStatus messages.
    pub(crate) fn handle_reset(&mut self) {
        if self.has_unreported(is_parse_setting) {
            self.parse_state.invalidate();
        }
        self.unreported.clear();
        self.applied = None;
    }
}

/// Maximum number of reported parameters stored for each server; a server usually reports about
/// fifteen.
const REPORTED_MAX: usize = 200;

/// Whether the pooler may set the parameter for a client. `false` for parameters that servers
/// report but that describe the server or its login.
pub(crate) fn is_settable(name: &[u8]) -> bool {
    const FIXED: [&[u8]; 6] = [
        b"server_version",
        b"server_encoding",
        b"integer_datetimes",
        b"is_superuser",
        b"session_authorization",
        b"in_hot_standby",
    ];
    !FIXED.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(server: &ServerParameters, set: &TrackedParameters) -> Vec<String> {
        let show = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
        let missing = server.missing(set).into_iter();
        missing
            .map(|MissingParameter { name, value }| match value {
                Some(value) => format!("{}={}", show(&name), show(&value)),
                None => format!("{} reset", show(&name)),
            })
            .collect()
    }

    #[test]
    fn only_differences_are_missing_and_encoding_comes_first() {
        let mut server = ServerParameters::at_login(&[
            SessionParameter::new("server_version", "15"),
            SessionParameter::new("DateStyle", "ISO"),
            SessionParameter::new("client_encoding", "UTF8"),
        ]);
        let mut sets = ParameterSets::default();
        let set = sets.intern([
            SessionParameter::new("datestyle", "German"),
            SessionParameter::new("client_encoding", "SJIS"),
            SessionParameter::new("server_version", "99"),
            SessionParameter::new("work_mem", "1MB"),
            SessionParameter::new("work_mem", "2MB"),
        ]);
        assert_eq!(
            missing(&server, &set),
            ["client_encoding=SJIS", "DateStyle=German", "work_mem=2MB"]
        );
        server.handle_report(b"DateStyle", b"German");
        server.handle_report(b"client_encoding", b"SJIS");
        server.mark_applied(set);
        let plain = sets.intern([]);
        assert_eq!(
            missing(&server, &plain),
            ["client_encoding=UTF8", "DateStyle=ISO", "work_mem reset"]
        );
        server.handle_reset();
        assert_eq!(missing(&server, &plain), ["client_encoding=UTF8", "DateStyle=ISO"]);
    }

    #[test]
    fn equal_parameters_are_interned_once() {
        let mut sets = ParameterSets::default();
        let first = sets.intern([SessionParameter::new("a", "1"), SessionParameter::new("b", "2")]);
        let second =
            sets.intern([SessionParameter::new("b", "2"), SessionParameter::new("a", "1")]);
        assert!(Arc::ptr_eq(&first, &second));
        assert!(Arc::ptr_eq(&first, &sets.with(&second, b"A", b"1")) || first.list.len() == 2);
        for i in 0..10 * CLEAR_THRESHOLD_MIN {
            sets.intern([SessionParameter::new("a", i.to_string())]);
        }
        assert!(sets.sets.len() <= CLEAR_THRESHOLD_MIN);
    }
}
