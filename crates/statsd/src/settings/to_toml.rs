//! Writes settings as the `[statsd]` section of a howdah.toml.
//!
//! The keys come from serde, so the writer knows every setting that the reader knows. A key is
//! omitted if the section without it, read again, still yields equal settings: this finds defaults
//! without a second table of them.

use serde::Deserialize as _;
use toml::{Table, Value};

use super::StatsdSettings;

/// Maximum length of an array of sections whose keys are omitted one by one. Each attempt reads
/// the whole section again.
const SHORTENED_MAX: usize = 64;

impl StatsdSettings {
    /// Returns the `[statsd]` section with all keys that differ from their defaults, including
    /// secrets in URLs and connection strings.
    ///
    /// # Errors
    ///
    /// A path is not UTF-8, so TOML cannot express it.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        let mut escaped = self.clone();
        // A file is read with variables.
        escaped.static_tags.values_mut().for_each(|value| *value = value.replace('$', "$$"));
        let section = Value::from(escaped.changed_keys()?);
        let text = toml::to_string_pretty(&Table::from_iter([("statsd".to_owned(), section)]))?;
        // Modes are customarily octal, but serde has only decimal numbers.
        let octal = text.lines().map(with_octal_mode).collect::<String>();
        Ok(if escaped.is_in(&octal) { octal } else { text })
    }

    /// Returns the section's keys that differ from their defaults.
    pub(super) fn changed_keys(&self) -> Result<Table, toml::ser::Error> {
        let is_enough = |section: Value| Self::deserialize(section).is_ok_and(|read| read == *self);
        let complete = Value::try_from(self)?;
        let rounded = with_whole_numbers(complete.clone());
        let section = if is_enough(rounded.clone()) { rounded } else { complete };
        match shortened(section, &is_enough) {
            Value::Table(table) => Ok(table),
            _ => Ok(Table::new()),
        }
    }

    fn is_in(&self, text: &str) -> bool {
        let section = toml::from_str(text).ok().and_then(|mut file: Table| file.remove("statsd"));
        section.is_some_and(|section| Self::deserialize(section).is_ok_and(|read| read == *self))
    }
}

/// Omits keys while `is_enough` is true for what remains.
fn shortened(value: Value, is_enough: &dyn Fn(Value) -> bool) -> Value {
    match value {
        Value::Table(mut table) => {
            for key in table.keys().cloned().collect::<Vec<_>>() {
                let Some(inner) = table.remove(&key) else { continue };
                if is_enough(Value::Table(table.clone())) {
                    continue;
                }
                let others = table.clone();
                let inner = shortened(inner, &|inner| {
                    let mut table = others.clone();
                    table.insert(key.clone(), inner);
                    is_enough(Value::Table(table))
                });
                table.insert(key, inner);
            }
            Value::Table(table)
        }
        Value::Array(mut items)
            if items.len() <= SHORTENED_MAX && items.iter().all(Value::is_table) =>
        {
            for at in 0..items.len() {
                let others = items.clone();
                items[at] = shortened(items[at].clone(), &|item| {
                    let mut items = others.clone();
                    items[at] = item;
                    is_enough(Value::Array(items))
                });
            }
            Value::Array(items)
        }
        other => other,
    }
}

/// Replaces whole numbers of floating-point type by integers, which are shorter: `90` for `90.0`.
fn with_whole_numbers(value: Value) -> Value {
    match value {
        Value::Float(number) if number.fract() == 0.0 && number.abs() < 1e15 => {
            Value::Integer(number as i64)
        }
        Value::Array(items) => Value::Array(items.into_iter().map(with_whole_numbers).collect()),
        Value::Table(table) => {
            let pairs = table.into_iter().map(|(key, value)| (key, with_whole_numbers(value)));
            Value::Table(pairs.collect())
        }
        other => other,
    }
}

/// Returns a line with its newline, a socket's mode in octal.
fn with_octal_mode(line: &str) -> String {
    match line.strip_prefix("mode = ").and_then(|mode| mode.parse::<u32>().ok()) {
        Some(mode) => format!("mode = 0o{mode:o}\n"),
        None => format!("{line}\n"),
    }
}

#[cfg(test)]
#[path = "to_toml/tests.rs"]
mod tests;
