//! Settings that go with a client from server to server.
//!
//! A server reports some of its settings, at login and whenever they change. What a client asked for
//! at its start, or was reported while it had a server, is what it is to find on the next one; where
//! it asked for nothing, that is what the server had after our login.
//!
//! Values travel as Bind parameters of `set_config`, never as SQL text: nothing in them can be taken
//! for anything but a value, whatever encoding or quoting rules the server is in.

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use hashbrown::HashSet;

use crate::parse_settings::{self, COUNT, NAMES, ParseState, is_parse_setting};

/// A setting with its value, in bytes as the wire has them.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Setting {
    /// Its name. PostgreSQL compares names without regard to ASCII case.
    pub name: Box<[u8]>,
    /// Its value.
    pub value: Box<[u8]>,
}

impl Setting {
    /// A name and a value; neither may hold a zero byte if it is to be sent.
    pub fn new(name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        Self { name: name.as_ref().into(), value: value.as_ref().into() }
    }
}

impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, value } = self;
        write!(f, "{}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
    }
}

/// What a client is to find on its server. Equal ones of a worker are one object, so whether a server
/// is as the client left the last one is mostly one comparison of addresses.
#[derive(Debug, Default)]
pub(crate) struct TrackedParameters {
    list: Box<[Setting]>,
    /// Whether a server has accepted them. Until then nothing is sent behind them: it would run even
    /// if they are refused.
    proven: AtomicBool,
}

impl TrackedParameters {
    pub(crate) fn prove(&self) {
        self.proven.store(true, Ordering::Relaxed);
    }

    pub(crate) fn are_proven(&self) -> bool {
        self.proven.load(Ordering::Relaxed) || self.list.is_empty()
    }

    /// Them, by name.
    pub(crate) fn list(&self) -> &[Setting] {
        &self.list
    }

    pub(crate) fn value(&self, name: &[u8]) -> Option<&[u8]> {
        let setting = self.list.iter().find(|setting| same_name(&setting.name, name))?;
        Some(&setting.value)
    }

    /// Without doubles: the later of two wins.
    fn list_of(settings: impl IntoIterator<Item = Setting>) -> Box<[Setting]> {
        let mut list: Vec<Setting> = Vec::new();
        for setting in settings {
            match list.iter_mut().find(|known| same_name(&known.name, &setting.name)) {
                Some(known) => *known = setting,
                None => list.push(setting),
            }
        }
        list.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        list.into()
    }
}

/// The wishes of a worker's clients, each once.
#[derive(Debug, Default)]
pub(crate) struct ParameterSets {
    known: HashSet<ByList>,
    clear_at: usize,
}

/// Entries before the first clearing.
const CLEAR_AT_LEAST: usize = 256;

impl ParameterSets {
    /// The object for a list of settings, the later of two of a name winning.
    pub(crate) fn intern(
        &mut self,
        settings: impl IntoIterator<Item = Setting>,
    ) -> Arc<TrackedParameters> {
        let wishes = ByList(Arc::new(TrackedParameters {
            list: TrackedParameters::list_of(settings),
            ..TrackedParameters::default()
        }));
        if let Some(ByList(known)) = self.known.get(&wishes) {
            return Arc::clone(known);
        }
        if self.known.len() >= self.clear_at.max(CLEAR_AT_LEAST) {
            self.known.retain(|ByList(wishes)| Arc::strong_count(wishes) > 1);
            self.clear_at = self.known.len() * 2;
        }
        let ByList(object) = &wishes;
        let object = Arc::clone(object);
        self.known.insert(wishes);
        object
    }

    /// The object for `wishes` with one more, or another value of one.
    pub(crate) fn with(
        &mut self,
        wishes: &TrackedParameters,
        name: &[u8],
        value: &[u8],
    ) -> Arc<TrackedParameters> {
        let added = std::iter::once(Setting::new(name, value));
        self.intern(wishes.list.iter().cloned().chain(added))
    }
}

/// Sets of parameters, compared by what they hold.
#[derive(Debug)]
struct ByList(Arc<TrackedParameters>);

impl Hash for ByList {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.list.hash(state);
    }
}

impl PartialEq for ByList {
    fn eq(&self, other: &Self) -> bool {
        self.0.list == other.0.list
    }
}

impl Eq for ByList {}

/// A setting that a server reports.
#[derive(Debug)]
struct Reported {
    name: Box<[u8]>,
    at_login: Box<[u8]>,
    now: Box<[u8]>,
}

/// A setting that a server has to be given.
#[derive(Debug)]
pub(crate) struct Missing {
    pub(crate) name: Box<[u8]>,
    /// `None` is the server's default.
    pub(crate) value: Option<Box<[u8]>>,
}

/// The settings of a server, as far as they are known.
#[derive(Debug, Default)]
pub(crate) struct ServerSettings {
    reported: Vec<Reported>,
    /// Settings it does not report and clients asked for.
    given: Vec<Setting>,
    /// Whose wishes it is known to fulfil.
    pub(crate) fulfils: Option<Arc<TrackedParameters>>,
    /// Whether the statement that sets a setting is prepared on it.
    pub(crate) setter_prepared: bool,
    /// Whose wishes were sent and are not confirmed yet.
    sent: Option<Arc<TrackedParameters>>,
    /// What is known of those that matter to parsing.
    pub(crate) parsing: ParseState,
}

impl ServerSettings {
    /// What a server has after its login.
    pub(crate) fn at_login(parameters: &[Setting]) -> Self {
        let reported = parameters.iter().map(|Setting { name, value }| Reported {
            name: name.clone(),
            at_login: value.clone(),
            now: value.clone(),
        });
        Self { reported: reported.collect(), ..Self::default() }
    }

    /// What it reported at its login.
    pub(crate) fn at_login_values(&self) -> Arc<[Setting]> {
        self.reported.iter().map(|known| Setting::new(&known.name, &known.at_login)).collect()
    }

    /// Takes a ParameterStatus. What it fulfils is for the caller to say, who knows for whom it was.
    pub(crate) fn report(&mut self, name: &[u8], value: &[u8]) {
        self.fulfils = None;
        let expected = self.value_in_force(name);
        if expected.is_none_or(|expected| *expected != *value) && is_parse_setting(name) {
            match self.sent {
                Some(_) => self.parsing.forget_current(), // It spells the value in its own way.
                None => self.parsing.value_changed(),
            }
        }
        self.note_reported(name, value);
    }

    /// Takes a ParameterStatus about a value that is set and set back by the pooler.
    pub(crate) fn report_passing(&mut self, name: &[u8], value: &[u8]) {
        self.note_reported(name, value);
    }

    fn note_reported(&mut self, name: &[u8], value: &[u8]) {
        if let Some(known) = self.reported.iter_mut().find(|known| *known.name == *name) {
            if *known.now != *value {
                known.now = value.into();
            }
        } else if self.reported.len() < REPORTED_MAX {
            let (name, value) = (name.into(), Box::<[u8]>::from(value));
            self.reported.push(Reported { name, at_login: value.clone(), now: value });
        }
    }

    /// The value that a reported setting has once the server has done what it was sent.
    fn value_in_force(&self, name: &[u8]) -> Option<&[u8]> {
        let known = self.reported.iter().find(|known| same_name(&known.name, name))?;
        Some(match &self.sent {
            Some(wishes) => wishes.value(name).unwrap_or(&known.at_login),
            None => &known.now,
        })
    }

    /// The values in force of settings that matter to parsing, once the server has done what it was sent.
    pub(crate) fn parse_values(&self) -> [Option<&[u8]>; COUNT] {
        parse_settings::values_of(|at| {
            let name = NAMES[at].as_bytes();
            if let Some(value) = self.parsing.queried(at) {
                return Some(value);
            }
            if let Some(value) = self.value_in_force(name) {
                return Some(value);
            }
            let given = match &self.sent {
                Some(wishes) => wishes.value(name),
                None => self.given_value(name),
            };
            given.or_else(|| self.parsing.unreported(at))
        })
    }

    fn given_value(&self, name: &[u8]) -> Option<&[u8]> {
        let given = self.given.iter().find(|given| same_name(&given.name, name))?;
        Some(&given.value)
    }

    /// Takes the answer to the query for settings that matter to parsing.
    pub(crate) fn parse_values_are(&mut self, values: parse_settings::Values) {
        let Self { given, parsing, .. } = self;
        let is_given = |name: &str| given.iter().any(|it| same_name(&it.name, name.as_bytes()));
        parsing.answer(values, is_given);
    }

    /// Whether it reports a setting.
    pub(crate) fn reports(&self, name: &[u8]) -> bool {
        self.value(name).is_some()
    }

    /// These are sent, for it to fulfil these wishes.
    pub(crate) fn sends(&mut self, missing: &[Missing], wishes: &Arc<TrackedParameters>) {
        if missing.iter().any(|missing| is_parse_setting(&missing.name)) {
            self.parsing.forget_current();
        }
        self.sent = Some(Arc::clone(wishes));
    }

    /// The value it reported last.
    pub(crate) fn value(&self, name: &[u8]) -> Option<&[u8]> {
        let known = self.reported.iter().find(|known| same_name(&known.name, name))?;
        Some(&known.now)
    }

    /// What has to be set for a client to find what it wishes; no value means the server's default.
    /// The encoding comes first: the values after it are in the client's.
    pub(crate) fn missing(&self, wishes: &TrackedParameters) -> Vec<Missing> {
        let mut missing = Vec::new();
        for known in self.reported.iter().filter(|known| is_settable(&known.name)) {
            let wished = wishes.value(&known.name).unwrap_or(&known.at_login);
            if *known.now != *wished {
                missing.push(Missing { name: known.name.clone(), value: Some(wished.into()) });
            }
        }
        for wish in &wishes.list {
            let given = self.given.iter().find(|given| same_name(&given.name, &wish.name));
            if self.value(&wish.name).is_none() && given.is_none_or(|g| g.value != wish.value) {
                let Setting { name, value } = wish.clone();
                missing.push(Missing { name, value: Some(value) });
            }
        }
        let unwished = |given: &&Setting| wishes.value(&given.name).is_none();
        let reset = |given: &Setting| Missing { name: given.name.clone(), value: None };
        missing.extend(self.given.iter().filter(unwished).map(reset));
        missing.sort_by_key(|missing| !same_name(&missing.name, b"client_encoding"));
        missing
    }

    /// What has to be set for these to be as they are wished. Of one that is not reported nobody knows
    /// what it is.
    pub(crate) fn missing_of(&self, wished: &[Setting]) -> Vec<Missing> {
        let missing = |wish: &Setting| {
            let known = self.reported.iter().find(|known| same_name(&known.name, &wish.name));
            let name = known.map_or(&wish.name, |known| &known.name).clone();
            let is_so = known.is_some_and(|known| known.now == wish.value) || !is_settable(&name);
            (!is_so).then(|| Missing { name, value: Some(wish.value.clone()) })
        };
        wished.iter().filter_map(missing).collect()
    }

    /// What was set is set.
    pub(crate) fn fulfil(&mut self, wishes: Arc<TrackedParameters>) {
        let unreported = wishes.list.iter().filter(|wish| self.value(&wish.name).is_none());
        self.given = unreported.cloned().collect();
        self.sent = None;
        self.fulfils = Some(wishes);
    }

    /// The values it reports of what `wishes` names, in its spelling.
    pub(crate) fn spelled(&self, wishes: &TrackedParameters) -> Vec<Setting> {
        let spelled = |wish: &Setting| match self.value(&wish.name) {
            Some(value) if is_settable(&wish.name) => Setting::new(&wish.name, value),
            _ => wish.clone(),
        };
        wishes.list.iter().map(spelled).collect()
    }

    /// Whether it was given a setting that it does not report, of whose name this is true.
    pub(crate) fn gave_any(&self, is_it: impl Fn(&[u8]) -> bool) -> bool {
        self.given.iter().any(|given| is_it(&given.name))
    }

    /// All settings went back to what they were at login. What is reported was or will be reported.
    pub(crate) fn was_reset(&mut self) {
        if self.gave_any(is_parse_setting) {
            self.parsing.forget_current();
        }
        self.given.clear();
        self.fulfils = None;
    }
}

/// Settings kept of a server; it reports about fifteen.
const REPORTED_MAX: usize = 200;

/// Whether a reported setting can be set by a session.
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

/// Whether two names mean the same setting.
pub(crate) fn same_name(a: &[u8], b: &[u8]) -> bool {
    a.eq_ignore_ascii_case(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(server: &ServerSettings, wishes: &TrackedParameters) -> Vec<String> {
        let show = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
        let missing = server.missing(wishes).into_iter();
        missing
            .map(|Missing { name, value }| match value {
                Some(value) => format!("{}={}", show(&name), show(&value)),
                None => format!("{} reset", show(&name)),
            })
            .collect()
    }

    #[test]
    fn only_differences_are_missing_and_the_encoding_comes_first() {
        let mut server = ServerSettings::at_login(&[
            Setting::new("server_version", "15"),
            Setting::new("DateStyle", "ISO"),
            Setting::new("client_encoding", "UTF8"),
        ]);
        let mut table = ParameterSets::default();
        let wishes = table.intern([
            Setting::new("datestyle", "German"),
            Setting::new("client_encoding", "SJIS"),
            Setting::new("server_version", "99"),
            Setting::new("work_mem", "1MB"),
            Setting::new("work_mem", "2MB"),
        ]);
        assert_eq!(
            missing(&server, &wishes),
            ["client_encoding=SJIS", "DateStyle=German", "work_mem=2MB"]
        );
        server.report(b"DateStyle", b"German");
        server.report(b"client_encoding", b"SJIS");
        server.fulfil(wishes);
        let plain = table.intern([]);
        assert_eq!(
            missing(&server, &plain),
            ["client_encoding=UTF8", "DateStyle=ISO", "work_mem reset"]
        );
        server.was_reset();
        assert_eq!(missing(&server, &plain), ["client_encoding=UTF8", "DateStyle=ISO"]);
    }

    #[test]
    fn equal_wishes_are_one_object() {
        let mut table = ParameterSets::default();
        let first = table.intern([Setting::new("a", "1"), Setting::new("b", "2")]);
        let second = table.intern([Setting::new("b", "2"), Setting::new("a", "1")]);
        assert!(Arc::ptr_eq(&first, &second));
        assert!(Arc::ptr_eq(&first, &table.with(&second, b"A", b"1")) || first.list.len() == 2);
        for i in 0..10 * CLEAR_AT_LEAST {
            table.intern([Setting::new("a", i.to_string())]);
        }
        assert!(table.known.len() <= CLEAR_AT_LEAST);
    }
}
