//! Parse settings: session parameters that affect what a statement means when PostgreSQL parses it.
//!
//! A prepared statement keeps the values that its literals had when it was parsed: the moment that
//! `'2024-01-01'` means as a `timestamptz` depends on `TimeZone`. So a shared statement is
//! identified by its text and by one set of values of these parameters ([`ParseSettings`]), and for
//! each server connection the pooler tracks which set will be in force when it processes the next
//! message ([`ParseState`]).
//!
//! The values in force are known from the server's ParameterStatus messages. The pooler queries
//! them if these are not sufficient: for parameters that the server does not report, and after
//! changes in the middle of a batch, which are reported only at its end.

mod changes;

use std::{array, sync::Arc};

pub(crate) use changes::{
    ParseSettingsChange, change_of, depends_on_parse_settings, skip_comments,
};

use crate::session::parameter::{SessionParameter, eq_name};

/// Length of [`NAMES`].
pub(crate) const COUNT: usize = 14;

/// The session parameters that can change the value of a literal or constant expression.
/// `search_path` and roles are not among them: PostgreSQL analyzes a prepared statement again after
/// they have changed.
///
/// The encoding comes first, because the values after it are sent in that encoding.
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

/// A value for each of [`NAMES`]; `None` if the server does not have the parameter.
pub(crate) type ParseSettingValues = [Option<Box<[u8]>>; COUNT];

/// Whether a parameter is one of [`NAMES`].
pub(crate) fn is_parse_setting(name: &[u8]) -> bool {
    parse_setting_index(name).is_some()
}

/// Returns the index of a parameter in [`NAMES`].
pub(crate) fn parse_setting_index(name: &[u8]) -> Option<usize> {
    NAMES.iter().position(|known| eq_name(known.as_bytes(), name))
}

/// Returns the query for the current values of [`NAMES`], in this order.
pub(crate) fn query() -> String {
    let value = |name| format!("pg_catalog.current_setting('{name}', true)");
    format!("SELECT {}", NAMES.map(value).join(", "))
}

/// A set of values of [`NAMES`] under which statements are parsed. Equal sets share one object and
/// one id.
#[derive(Debug)]
pub(crate) struct ParseSettings {
    /// Unique within the process; ids start at 1, so that 0 can mean "unknown".
    pub(crate) id: u64,
    pub(crate) values: ParseSettingValues,
}

impl ParseSettings {
    /// Returns the parameters to set to change from `in_force` to these values, and the parameters
    /// to set to change back.
    pub(crate) fn difference(
        &self,
        in_force: &Self,
    ) -> (Vec<SessionParameter>, Vec<SessionParameter>) {
        let values = NAMES.iter().zip(self.values.iter().zip(&in_force.values));
        let differ = values.filter_map(|(name, (own, other))| {
            let (own, other) = (own.as_ref()?, other.as_ref()?);
            (own != other)
                .then(|| (SessionParameter::new(name, own), SessionParameter::new(name, other)))
        });
        differ.unzip()
    }
}

/// The uncertainty about the values that will be in force when a server processes the next message.
/// Ordered from best to worst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Uncertainty {
    /// The values are known.
    #[default]
    None,
    /// The values will be known from reports, once all requests are answered and no batch is open.
    Reported,
    /// The values must be queried.
    Unreported,
}

/// The parse settings of a server connection, as far as they are known.
#[derive(Debug, Default)]
pub(crate) struct ParseState {
    /// The id of `current`, stored for fast comparison; 0 if the settings are unknown.
    pub(crate) key: u64,
    current: Option<Arc<ParseSettings>>,
    /// How uncertain the values are, because of messages that were already sent or because the
    /// values were never queried.
    pub(crate) uncertainty: Uncertainty,
    /// The worst uncertainty caused by changes since the connection was linked. The end of a
    /// transaction, or a statement whose text does not show it, may undo such a change.
    max_uncertainty: Uncertainty,
    /// The uncertainty that running the unnamed portal would cause.
    by_unnamed_portal: Uncertainty,
    /// The worst uncertainty that running a named portal would cause.
    by_named_portals: Uncertainty,
    /// Values after login of parameters that the server does not report; `None` until they have
    /// been queried.
    base: Option<Box<ParseSettingValues>>,
    /// Values from the last query, if parameters had been changed since the connection was linked:
    /// they are valid only for this link. The value of a reported parameter is discarded when a
    /// later one is known from the server's reports.
    queried: Option<Box<ParseSettingValues>>,
    /// Whether a query for the values was sent and its row has not arrived yet.
    pub(crate) is_querying: bool,
    /// Whether an unanswered message was sent on the assumption that `key` is correct.
    is_relied_on: bool,
    /// Whether parameters changed unexpectedly while a message relied on them: statements may have
    /// been parsed under other values than assumed.
    pub(crate) is_tainted: bool,
}

impl ParseState {
    /// Returns the settings in force, if known.
    #[inline]
    pub(crate) fn current(&self) -> Option<&Arc<ParseSettings>> {
        self.current.as_ref()
    }

    /// Records the settings that are now in force.
    pub(crate) fn set_current(&mut self, settings: Arc<ParseSettings>) {
        self.key = settings.id;
        self.current = Some(settings);
    }

    /// Records that the settings must be determined again before the next statement that depends on
    /// them.
    pub(crate) fn invalidate(&mut self) {
        self.key = 0;
        self.current = None;
    }

    /// Records that a message was sent that may change the settings, and how uncertain they are
    /// now.
    pub(crate) fn record_change(&mut self, uncertainty: Uncertainty) {
        if uncertainty != Uncertainty::None {
            self.uncertainty = self.uncertainty.max(uncertainty);
            self.max_uncertainty = self.max_uncertainty.max(uncertainty);
            self.invalidate();
        }
    }

    /// Returns the worst uncertainty caused by changes since the connection was linked.
    #[inline]
    pub(crate) fn max_uncertainty(&self) -> Uncertainty {
        self.max_uncertainty
    }

    /// Records how uncertain running a newly bound portal would make the settings.
    pub(crate) fn record_bind(&mut self, is_unnamed: bool, uncertainty: Uncertainty) {
        if is_unnamed {
            self.by_unnamed_portal = uncertainty;
        } else {
            self.by_named_portals = self.by_named_portals.max(uncertainty);
        }
    }

    /// Whether running a portal may change the settings, or an earlier change may be undone.
    #[inline]
    pub(crate) fn may_change(&self) -> bool {
        self.max_uncertainty.max(self.by_unnamed_portal).max(self.by_named_portals)
            != Uncertainty::None
    }

    /// Records the uncertainty that executing a portal causes; see [`ParseState::record_bind`].
    #[inline]
    pub(crate) fn record_execute(&mut self, is_unnamed: bool) {
        let uncertainty = if is_unnamed { self.by_unnamed_portal } else { self.by_named_portals };
        if uncertainty != Uncertainty::None {
            self.record_change(uncertainty);
        }
    }

    /// Records that a message was sent on the assumption that `key` is correct.
    #[inline]
    pub(crate) fn mark_relied_on(&mut self) {
        self.is_relied_on = true;
    }

    /// Records that all messages sent so far are answered.
    #[inline]
    pub(crate) fn clear_relied_on(&mut self) {
        self.is_relied_on = false;
    }

    /// Discards the known settings, because the server has reported an unexpected value. The
    /// connection is tainted if an unanswered message relied on them.
    pub(crate) fn handle_unexpected_change(&mut self) {
        self.is_tainted |= self.key != 0 && self.is_relied_on;
        self.invalidate();
    }

    /// Discards what was known only for the previous link, when the connection is linked to a
    /// client. Its parameters have their values after login, except those that the pooler has set.
    pub(crate) fn start_link(&mut self) {
        if self.may_change() || self.queried.is_some() {
            self.invalidate();
        }
        self.max_uncertainty = Uncertainty::None;
        self.by_unnamed_portal = Uncertainty::None;
        self.by_named_portals = Uncertainty::None;
        self.queried = None;
        self.is_querying = false;
        self.is_relied_on = false;
        self.uncertainty =
            if self.base.is_some() { Uncertainty::None } else { Uncertainty::Unreported };
    }

    /// Handles the result of the query for the values. `is_given` tells whether the pooler has set
    /// a parameter, so that its value may differ from that after login.
    pub(crate) fn handle_query_result(
        &mut self,
        values: ParseSettingValues,
        is_given: impl Fn(&str) -> bool,
    ) {
        self.is_querying = false;
        self.uncertainty = Uncertainty::None;
        self.invalidate();
        if self.max_uncertainty != Uncertainty::None {
            self.queried = Some(Box::new(values));
            return;
        }
        let base = self.base.get_or_insert_default();
        for ((value, base), name) in values.into_iter().zip(base.iter_mut()).zip(NAMES) {
            // If the pooler has set a parameter, its value after login is unknown.
            if base.is_none() && !is_given(name) {
                *base = value;
            }
        }
    }

    /// Returns the known value of the parameter `NAMES[at]`, which the server does not report and
    /// the pooler has not set.
    pub(crate) fn unreported_value(&self, at: usize) -> Option<&[u8]> {
        let known = self.queried.as_ref().or(self.base.as_ref());
        known.and_then(|values| values[at].as_deref())
    }

    /// Discards the queried value of `NAMES[at]`, because the server has reported a later one.
    pub(crate) fn discard_queried(&mut self, at: usize) {
        if let Some(values) = &mut self.queried {
            values[at] = None;
        }
    }

    /// Records that an implicit transaction ends: this undoes each SET LOCAL in it and, if it has
    /// failed, all its changes.
    #[inline]
    pub(crate) fn finish_implicit_transaction(&mut self) {
        if self.max_uncertainty != Uncertainty::None {
            self.record_change(self.max_uncertainty);
        }
    }

    /// Returns the value of `NAMES[at]` from the last query since the connection was linked.
    pub(crate) fn queried_value(&self, at: usize) -> Option<&[u8]> {
        self.queried.as_ref().and_then(|values| values[at].as_deref())
    }
}

/// Collects the value of each of [`NAMES`]; `value` gets its index.
pub(crate) fn values_from<'a>(
    value: impl FnMut(usize) -> Option<&'a [u8]>,
) -> [Option<&'a [u8]>; COUNT] {
    array::from_fn(value)
}

/// Converts owned values to borrowed ones.
pub(crate) fn borrowed(values: &ParseSettingValues) -> [Option<&[u8]>; COUNT] {
    values.each_ref().map(Option::as_deref)
}

/// Converts borrowed values to owned ones.
pub(crate) fn owned(values: &[Option<&[u8]>; COUNT]) -> ParseSettingValues {
    values.map(|value| value.map(Into::into))
}
