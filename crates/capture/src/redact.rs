//! [`Redactor`]: removes users' values from events.
//!
//! Removed: string, bit-string and number constants, bound values, rows of COPY, arguments of
//! function calls, comments, error messages, `application_name`, and values in `SET name =` where
//! the name is that of an application's own setting. Preserved: names of roles, databases, schemas,
//! tables, columns, functions and, [unless requested](Redactor::with_names), statements, portals,
//! cursors, savepoints and channels; times, durations, SQLSTATEs; NULL, TRUE, FALSE; the numbers 0
//! and 1; words of a type such as `infinity` and `month`; offsets from UTC and lengths of networks;
//! ASCII characters of a value that are not alphanumeric. A value that is
//! written like a name, in double quotes, counts as a name.
//!
//! A text that cannot be tokenized safely is replaced as a whole.

mod key;
mod names;
mod statement;
mod stream;
mod value;

use std::sync::Arc;

use howdah_traffic::{Action, Bound, Event, Parameter, Text, WireDetail};

pub use self::key::{KeyError, RedactionKey};
use self::value::ValueRedactor;

/// A redactor of events, which replaces their values with others of the same shape.
///
/// With one key, equal values get equal replacements, whether they are constants or bound values in
/// text form, so that skew and cacheability are preserved. An alphabetic character is replaced by
/// an alphabetic character, a digit by a digit and a date by a date, so that a replacement is
/// valid for the type of its value. A text keeps its length in characters if these are ASCII. Two
/// values may get the same replacement; the shorter they are, the more likely.
///
/// Without the key, replacements reveal only the shapes of the values, and which values are equal.
#[derive(Debug)]
pub struct Redactor {
    values: ValueRedactor,
    /// Whether names of cursors, savepoints, prepared statements and channels are replaced.
    redacts_names: bool,
    /// Number of texts that were replaced as a whole, because they could not be tokenized, plus
    /// that of function calls that lost their arguments.
    withheld: u64,
    last_application: Option<(Arc<str>, Arc<str>)>,
}

impl Redactor {
    /// Creates a redactor; the same key gives the same replacements.
    pub fn new(key: &RedactionKey) -> Self {
        Self {
            values: ValueRedactor::new(key),
            redacts_names: false,
            withheld: 0,
            last_application: None,
        }
    }

    /// Also replaces the names of cursors, savepoints, prepared statements, portals and channels.
    /// Equal names get equal replacements, in the protocol and in SQL. A channel that is a bound
    /// value of `pg_notify` gets the replacement of a value.
    #[must_use]
    pub fn with_names(self) -> Self {
        Self { redacts_names: true, ..self }
    }

    /// Returns the number of SQL texts that were replaced as a whole plus that of function calls
    /// that lost their arguments. Neither can be replayed.
    pub fn withheld(&self) -> u64 {
        self.withheld
    }

    /// Returns the event with its values replaced.
    pub fn redact(&mut self, mut event: Event) -> Event {
        event.application = self.redact_application(&event.application);
        if let Some(wire) = &mut event.wire {
            self.redact_wire(wire);
        }
        if let Some(error) = &mut event.outcome.error {
            // Messages quote values in various ways, and functions can write any message.
            *error = format!("redacted {:08x}", self.values.token(error.as_bytes())).into();
        }
        match &mut event.action {
            Action::Simple { sql } | Action::Copy { sql, .. } => self.redact_sql(sql),
            Action::Parse { statement, sql } => {
                self.redact_name(statement);
                self.redact_sql(sql);
            }
            Action::Bind(bound) | Action::Execute(bound) | Action::Fetch(bound) => {
                self.redact_bound(bound, event.wire.as_deref());
            }
            Action::Connect | Action::Disconnect | Action::Call { .. } | Action::Cancel => {}
        }
        event
    }

    /// Removes copied rows, results and arguments of function calls, which consist only of values,
    /// and replaces the values of `application_name` and of the application's own settings.
    fn redact_wire(&mut self, wire: &mut WireDetail) {
        if let Some(copy) = &mut wire.copy_in {
            copy.data.iter_mut().for_each(|data| *data = None);
        }
        wire.result = None;
        // The types of arguments are unknown, and many are binary.
        self.withheld += u64::from(wire.arguments.take().is_some());
        let is_application_setting = |name: &Text| {
            name.as_bytes().contains(&b'.')
                || name.as_bytes().eq_ignore_ascii_case(b"application_name")
        };
        for (_, value) in wire.settings.iter_mut().filter(|(name, _)| is_application_setting(name))
        {
            *value = format!("redacted {:08x}", self.values.token(value.as_bytes())).into();
        }
    }

    fn redact_application(&mut self, name: &Arc<str>) -> Arc<str> {
        if name.is_empty() {
            return name.clone();
        }
        match &self.last_application {
            Some((cached, redacted)) if cached == name => redacted.clone(),
            _ => {
                let redacted: Arc<str> =
                    format!("app {:08x}", self.values.token(name.as_bytes())).into();
                self.last_application = Some((name.clone(), redacted.clone()));
                redacted
            }
        }
    }

    fn redact_bound(&mut self, bound: &mut Bound, wire: Option<&WireDetail>) {
        self.redact_name(&mut bound.statement);
        self.redact_name(&mut bound.portal);
        self.redact_sql(&mut bound.sql);
        for (index, parameter) in bound.parameters.iter_mut().flatten().enumerate() {
            match parameter {
                Parameter::Null => {}
                Parameter::Value(value) if wire.is_some_and(|wire| wire.is_binary(index)) => {
                    *value = self.values.redact_binary(value.as_bytes()).into();
                }
                Parameter::Value(value) | Parameter::Truncated(value) => {
                    *value = self.values.redact(value.as_bytes()).into();
                }
            }
        }
    }

    fn redact_name(&self, name: &mut Text) {
        if self.redacts_names && !name.as_bytes().is_empty() {
            *name = self.values.name(name.as_bytes()).into();
        }
    }

    fn redact_sql(&mut self, sql: &mut Text) {
        *sql = match statement::redact(sql.as_bytes(), &self.values, self.redacts_names) {
            Some(redacted) => redacted.into(),
            None => {
                self.withheld += 1;
                format!("redacted '{:08x}'", self.values.token(sql.as_bytes())).into()
            }
        };
    }
}

#[cfg(test)]
mod tests;
