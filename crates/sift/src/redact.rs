//! [`Redactor`]: events without the values that people put into them.
//!
//! What goes: string, bit-string and number constants, bound values, comments, error messages,
//! `application_name`, and the words behind `SET name =` where the name is one that only an application
//! knows. What stays: names of roles, databases, schemas, tables, columns, functions, statements and
//! portals; times, durations, SQLSTATEs; NULL, TRUE, FALSE; the number 0; what of a value
//! is neither letter nor digit. A value that is written like a name, in double quotes, is one.
//!
//! Where a text cannot be taken apart safely, all of it goes.

mod key;
mod statement;
mod value;

use std::sync::Arc;

use howdah_traffic::{Action, Bound, Event, Parameter, Text, Wire};

pub use self::key::{KeyError, RedactionKey};
use self::value::Values;

/// Replaces values by others that look like them.
///
/// Equal values get equal replacements under one key, whether they stand in a text or are bound, so
/// that what was skewed stays skewed and what was cached stays cached. Letters become letters, digits
/// digits, dates dates; a text keeps its length in characters where these are ASCII. Two values
/// may get the same replacement, the likelier the shorter they are.
///
/// Without the key, the replacement of a value says nothing about it but its shape.
#[derive(Debug)]
pub struct Redactor {
    values: Values,
    /// Texts that could not be taken apart, and went as a whole.
    withheld: u64,
    last_application: Option<(Arc<str>, Arc<str>)>,
}

impl Redactor {
    /// With a key. The same key gives the same replacements.
    pub fn new(key: &RedactionKey) -> Self {
        Self { values: Values::new(key), withheld: 0, last_application: None }
    }

    /// Number of SQL texts that were replaced as a whole, and of function calls without their arguments: they
    /// cannot be replayed.
    pub fn withheld(&self) -> u64 {
        self.withheld
    }

    /// The event without values.
    pub fn redact(&mut self, mut event: Event) -> Event {
        event.application = self.application(&event.application);
        if let Some(wire) = &mut event.wire {
            self.wire(wire);
        }
        if let Some(error) = &mut event.outcome.error {
            // Messages quote values, each in its own way, and functions write their own.
            *error = format!("redacted {:08x}", self.values.token(error.as_bytes())).into();
        }
        match &mut event.action {
            Action::Simple { sql } | Action::Copy { sql, .. } | Action::Parse { sql, .. } => {
                self.sql(sql);
            }
            Action::Bind(bound) | Action::Execute(bound) | Action::Fetch(bound) => {
                self.bound(bound, event.wire.as_deref());
            }
            Action::Connect | Action::Disconnect | Action::Call { .. } | Action::Cancel => {}
        }
        event
    }

    /// Rows that were copied and arguments of function calls go as a whole: they are nothing but values. So do settings that only an
    /// application knows, and its name.
    fn wire(&mut self, wire: &mut Wire) {
        if let Some(copy) = &mut wire.copy_in {
            copy.data.iter_mut().for_each(|data| *data = None);
        }
        // Nothing tells what they mean, many are binary.
        self.withheld += u64::from(wire.arguments.take().is_some());
        let is_own = |name: &Text| {
            name.as_bytes().contains(&b'.')
                || name.as_bytes().eq_ignore_ascii_case(b"application_name")
        };
        for (_, value) in wire.settings.iter_mut().filter(|(name, _)| is_own(name)) {
            *value = format!("redacted {:08x}", self.values.token(value.as_bytes())).into();
        }
    }

    fn application(&mut self, name: &Arc<str>) -> Arc<str> {
        if name.is_empty() {
            return name.clone();
        }
        match &self.last_application {
            Some((known, redacted)) if known == name => redacted.clone(),
            _ => {
                let redacted: Arc<str> =
                    format!("app {:08x}", self.values.token(name.as_bytes())).into();
                self.last_application = Some((name.clone(), redacted.clone()));
                redacted
            }
        }
    }

    fn bound(&mut self, bound: &mut Bound, wire: Option<&Wire>) {
        self.sql(&mut bound.sql);
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

    fn sql(&mut self, sql: &mut Text) {
        *sql = match statement::redact(sql.as_bytes(), &self.values) {
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
