//! Settings that decide what a statement means when PostgreSQL parses it.
//!
//! A prepared statement keeps the values that its literals had when it was parsed: `'2024-01-01'` as a
//! `timestamptz` is a moment that depends on `TimeZone`. So a statement that clients share is one text under
//! one set of values of these settings ([`ParseSettings`]), and a server connection knows which set is in
//! force there when the next message is processed ([`ParseState`]).
//!
//! What is in force is known from the server's reports, or from a query for it where reports do not tell:
//! settings that the server does not report, and changes in the middle of a batch, which are reported at its
//! end.

mod changes;

use std::{array, sync::Arc};

pub(crate) use changes::{Change, change_by, is_sensitive, skip_comments};

use crate::settings::{Setting, same_name};

/// Number of [`NAMES`].
pub(crate) const COUNT: usize = 14;

/// The settings that change what a literal or an expression of constants is turned into. `search_path` and
/// roles are not among them: PostgreSQL analyses a prepared statement anew when these have changed.
///
/// The encoding comes first, as the values after it are sent in it.
pub(crate) const NAMES: [&str; COUNT] = [
    "client_encoding",
    "DateStyle",
    "IntervalStyle",
    "TimeZone",
    "array_nulls",
    "backslash_quote",
    "bytea_output",
    "extra_float_digits",
    "lc_monetary",
    "quote_all_identifiers",
    "standard_conforming_strings",
    "timezone_abbreviations",
    "transform_null_equals",
    "xmloption",
];

/// A value for each of [`NAMES`]; `None` where the server does not have the setting.
pub(crate) type Values = [Option<Box<[u8]>>; COUNT];

/// Whether a setting is one of [`NAMES`].
pub(crate) fn is_parse_setting(name: &[u8]) -> bool {
    NAMES.iter().any(|known| same_name(known.as_bytes(), name))
}

/// The query for the values in force.
pub(crate) fn query() -> String {
    let value = |name| format!("pg_catalog.current_setting('{name}', true)");
    format!("SELECT {}", NAMES.map(value).join(", "))
}

/// Values of [`NAMES`] that statements are parsed under. Equal ones are one object with one id.
#[derive(Debug)]
pub(crate) struct ParseSettings {
    /// At least 1.
    pub(crate) id: u64,
    pub(crate) values: Values,
}

impl ParseSettings {
    /// What has to be set for these to be in force where others are, and what sets those again.
    pub(crate) fn difference(&self, in_force: &Self) -> (Vec<Setting>, Vec<Setting>) {
        let values = NAMES.iter().zip(self.values.iter().zip(&in_force.values));
        let differ = values.filter_map(|(name, (own, other))| {
            let (own, other) = (own.as_ref()?, other.as_ref()?);
            (own != other).then(|| (Setting::new(name, own), Setting::new(name, other)))
        });
        differ.unzip()
    }
}

/// What is known of the values in force when a server processes what is sent next. In the order of how
/// little that is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Doubt {
    /// They are known.
    #[default]
    None,
    /// The server will have reported them once everything is answered, in no open batch.
    Reported,
    /// Only a query for them tells.
    Unreported,
}

/// What is known of [`NAMES`] on a server connection.
#[derive(Debug, Default)]
pub(crate) struct ParseState {
    /// The id of `current`; 0 if that has to be found out.
    pub(crate) key: u64,
    current: Option<Arc<ParseSettings>>,
    /// What has been sent may change them.
    pub(crate) doubt: Doubt,
    /// The most that a change since the connection was linked makes doubtful: it may be undone by the end of
    /// a transaction, and by statements that do not say so.
    touched: Doubt,
    /// What running the unnamed portal makes doubtful, and what running any other does.
    by_unnamed_portal: Doubt,
    by_named_portals: Doubt,
    /// Values since the login of settings that are not reported.
    base: Option<Box<Values>>,
    /// Values by the last query, if settings had been changed before it.
    queried: Option<Box<Values>>,
    /// The query was sent, and its row has not come.
    pub(crate) awaits_answer: bool,
    /// Something has been sent that relies on `key` and is not answered.
    is_relied_on: bool,
    /// Settings were changed in a way that was not foreseen while something relied on them: statements may
    /// have been parsed under others than is known of them.
    pub(crate) is_tainted: bool,
}

impl ParseState {
    /// The settings in force, if they are known.
    #[inline]
    pub(crate) fn current(&self) -> Option<&Arc<ParseSettings>> {
        self.current.as_ref()
    }

    /// They have been found out.
    pub(crate) fn set_current(&mut self, settings: Arc<ParseSettings>) {
        self.key = settings.id;
        self.current = Some(settings);
    }

    /// They have to be found out before the next statement that depends on them.
    pub(crate) fn forget_current(&mut self) {
        self.key = 0;
        self.current = None;
    }

    /// Something was sent that changes them.
    pub(crate) fn change(&mut self, doubt: Doubt) {
        if doubt != Doubt::None {
            self.doubt = self.doubt.max(doubt);
            self.touched = self.touched.max(doubt);
            self.forget_current();
        }
    }

    /// The most that is doubtful because of changes since the connection was linked.
    #[inline]
    pub(crate) fn touched(&self) -> Doubt {
        self.touched
    }

    /// A portal was bound that changes them when it is run.
    pub(crate) fn bind(&mut self, is_unnamed: bool, doubt: Doubt) {
        match is_unnamed {
            true => self.by_unnamed_portal = doubt,
            false => self.by_named_portals = self.by_named_portals.max(doubt),
        }
    }

    /// Whether running some portal changes them, or what was changed may be undone.
    #[inline]
    pub(crate) fn may_change(&self) -> bool {
        self.touched.max(self.by_unnamed_portal).max(self.by_named_portals) != Doubt::None
    }

    /// A portal is run.
    #[inline]
    pub(crate) fn execute(&mut self, is_unnamed: bool) {
        let doubt = if is_unnamed { self.by_unnamed_portal } else { self.by_named_portals };
        if doubt != Doubt::None {
            self.change(doubt);
        }
    }

    /// Something that relies on `key` was sent.
    #[inline]
    pub(crate) fn rely(&mut self) {
        self.is_relied_on = true;
    }

    /// Everything that was sent is answered.
    #[inline]
    pub(crate) fn all_answered(&mut self) {
        self.is_relied_on = false;
    }

    /// A value was reported that is another than before.
    pub(crate) fn value_changed(&mut self) {
        self.is_tainted |= self.key != 0 && self.is_relied_on;
        self.forget_current();
    }

    /// The connection begins to work for a client, with its settings as after its login, but for those that
    /// are known to be given to it.
    pub(crate) fn link(&mut self) {
        if self.may_change() || self.queried.is_some() {
            self.forget_current();
        }
        self.touched = Doubt::None;
        self.by_unnamed_portal = Doubt::None;
        self.by_named_portals = Doubt::None;
        self.queried = None;
        self.awaits_answer = false;
        self.is_relied_on = false;
        self.doubt = if self.base.is_some() { Doubt::None } else { Doubt::Unreported };
    }

    /// The query was answered. Settings of which `is_given` is true are not as after the login.
    pub(crate) fn answer(&mut self, values: Values, is_given: impl Fn(&str) -> bool) {
        self.awaits_answer = false;
        self.doubt = Doubt::None;
        self.forget_current();
        if self.touched != Doubt::None {
            self.queried = Some(Box::new(values));
            return;
        }
        let base = self.base.get_or_insert_default();
        for ((value, base), name) in values.into_iter().zip(base.iter_mut()).zip(NAMES) {
            // Of a setting that is given its value after the login is not known: that it is another one is.
            if base.is_none() && !is_given(name) {
                *base = value;
            }
        }
    }

    /// The value of an unreported setting that nobody was given.
    pub(crate) fn unreported(&self, at: usize) -> Option<&[u8]> {
        let known = self.queried.as_ref().or(self.base.as_ref());
        known.and_then(|values| values[at].as_deref())
    }

    /// The value by the last query.
    pub(crate) fn queried(&self, at: usize) -> Option<&[u8]> {
        self.queried.as_ref().and_then(|values| values[at].as_deref())
    }
}

/// Values that are looked at where they are.
pub(crate) fn values_of<'a>(
    value: impl FnMut(usize) -> Option<&'a [u8]>,
) -> [Option<&'a [u8]>; COUNT] {
    array::from_fn(value)
}

/// Values where they are.
pub(crate) fn looked_at(values: &Values) -> [Option<&[u8]>; COUNT] {
    values.each_ref().map(Option::as_deref)
}

/// Copies of values.
pub(crate) fn owned(values: &[Option<&[u8]>; COUNT]) -> Values {
    values.map(|value| value.map(Into::into))
}
