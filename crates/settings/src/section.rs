//! [`SettingsSection`]: a section of a TOML file, read with all of its errors and the lines of its
//! keys.
//!
//! serde stops at the first error. To find all errors, the reader removes each invalid entry and
//! parses the rest again until no error remains.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::{Deserialize as _, de::DeserializeOwned};
use toml::{
    Deserializer, Spanned,
    de::{DeArray, DeTable, DeValue},
};

use crate::{Diagnostic, SettingsErrors, SettingsText, text::ERRORS_MAX};

/// The settings of a section, and what is needed to report problems with them.
#[derive(Clone, Debug)]
pub struct SettingsSection<T> {
    /// The settings, without invalid entries.
    pub settings: T,
    /// The invalid entries, ordered by line. Their keys are relative to the section.
    pub errors: Vec<Diagnostic>,
    /// The keys that the section sets, relative to it, with their lines.
    pub locations: KeyLocations,
}

impl SettingsText<'_> {
    /// Reads the section `name`. Invalid entries are removed and listed in the errors. `T` should
    /// have serde's `deny_unknown_fields`, so that unknown keys are errors. `all_keys` says where
    /// all keys are explained, such as a command to run.
    ///
    /// # Errors
    ///
    /// The text is not valid TOML, has no such section, has too many errors, or has one that cannot
    /// be fixed by removing an entry, such as a missing key.
    pub fn section<T: DeserializeOwned>(
        &self,
        name: &str,
        all_keys: Option<&str>,
    ) -> Result<SettingsSection<T>, SettingsErrors> {
        let sections = self.parse()?.into_iter();
        let mut document: DeTable<'_> = sections.filter(|(key, _)| key.get_ref() == name).collect();
        let Some(section) = document.values().next() else {
            let text = format!("there is no [{name}] section");
            return Err(SettingsErrors(vec![Diagnostic::new(self.file(), 0, "", text)]));
        };
        let mut keys = Vec::new();
        list_keys(section, "", &mut |path, at| {
            keys.push((path, self.file().to_owned(), self.line(at)));
        });
        let original = document.clone();
        let mut errors: Vec<Diagnostic> = Vec::new();
        let settings = loop {
            let spanned = Spanned::new(0..0, document.clone());
            let error = match BTreeMap::<String, T>::deserialize(Deserializer::from(spanned)) {
                Ok(mut sections) => match sections.remove(name) {
                    Some(settings) => break settings,
                    // The section itself is invalid: it is not a table.
                    None => return Err(SettingsErrors(errors)),
                },
                Err(error) => error,
            };
            let span = error.span();
            let at = span.as_ref().map_or(0, |span| span.start);
            let key = path_at(&original, at).unwrap_or_default();
            let key = key.strip_prefix(name).unwrap_or(&key).trim_start_matches('.');
            // A misspelt key also causes an error for the missing required key.
            let is_consequence = error.message().starts_with("missing field")
                && errors.iter().any(|it| it.key.starts_with(&format!("{key}.")));
            if !is_consequence {
                // A message may quote an invalid value, but never a secret: types of secrets
                // report their own errors without the value.
                errors.push(self.diagnostic(at, key, error.message()).reworded(all_keys));
            }
            let is_removed = span.is_some() && remove_entry(&mut document, at);
            if !is_removed || errors.len() >= ERRORS_MAX {
                return Err(SettingsErrors(errors));
            }
        };
        errors.sort_by_key(|error| error.line);
        Ok(SettingsSection { settings, errors, locations: KeyLocations::new(self.file(), keys) })
    }
}

/// The file and line of each key that a configuration sets.
#[derive(Clone, Debug)]
pub struct KeyLocations {
    /// The configuration file itself, without included files.
    file: PathBuf,
    /// Paths of keys, with file and line.
    keys: Vec<(String, PathBuf, usize)>,
}

impl KeyLocations {
    /// Creates the locations of keys: path, file and line. `file` is the file for all other keys.
    pub fn new(file: &Path, keys: Vec<(String, PathBuf, usize)>) -> Self {
        Self { file: file.to_owned(), keys }
    }

    /// Creates a diagnostic for a key, with the file and line of the key or, if it is not set, of
    /// its nearest parent that is. If there is none, the diagnostic has the configuration file and
    /// no line.
    pub fn diagnostic(&self, key: &str, text: impl Into<String>) -> Diagnostic {
        let parents = self.keys.iter().filter(|(path, ..)| is_same_or_child(key, path));
        let nearest = parents.max_by_key(|(path, ..)| path.len());
        let (file, line) = match nearest {
            Some((_, file, line)) => (file, *line),
            None => (&self.file, 0),
        };
        Diagnostic::new(file, line, key, text)
    }
}

/// Whether the key `key` is `other` or below it.
pub fn is_same_or_child(key: &str, other: &str) -> bool {
    key.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Returns the path of the innermost entry that contains an offset.
fn path_at(table: &DeTable<'_>, at: usize) -> Option<String> {
    let mut found = None;
    for (key, value) in table {
        let name = key.get_ref();
        // A table defined in several places has the span of its header only, so its entries are
        // searched first.
        if let Some(below) = path_in_value(value, at) {
            return Some(format!("{name}{below}"));
        }
        if key.span().contains(&at) || value.span().contains(&at) {
            found = Some(name.to_string());
        }
    }
    found
}

/// Returns the path within a value of the innermost entry that contains an offset. Array items that
/// are not tables are not entries, since removing one would change the array's meaning.
fn path_in_value(value: &Spanned<DeValue<'_>>, at: usize) -> Option<String> {
    match value.get_ref() {
        DeValue::Table(table) => path_at(table, at).map(|below| format!(".{below}")),
        DeValue::Array(array) => {
            let mut items = array.iter().enumerate();
            let below = items.find_map(|(number, item)| {
                path_in_value(item, at).map(|below| format!("[{number}]{below}"))
            });
            let item = || array.iter().position(|item| is_entry(item, at));
            below.or_else(|| item().map(|number| format!("[{number}]")))
        }
        _ => None,
    }
}

/// Whether an item of an array is a table that contains an offset.
fn is_entry(item: &Spanned<DeValue<'_>>, at: usize) -> bool {
    item.get_ref().is_table() && item.span().contains(&at)
}

/// Removes from `table` the innermost entry that contains an offset. Returns whether there was one.
fn remove_entry(table: &mut DeTable<'_>, at: usize) -> bool {
    if table.iter_mut().any(|(_, value)| remove_from_value(value, at)) {
        return true;
    }
    let is_it = |(key, value): &(&Spanned<_>, &Spanned<_>)| {
        key.span().contains(&at) || value.span().contains(&at)
    };
    let found = table.iter().find(is_it).map(|(key, _)| key.get_ref().to_string());
    found.is_some_and(|name| table.remove(name.as_str()).is_some())
}

/// Removes from a value the innermost entry that contains an offset. Returns whether there was one.
fn remove_from_value(value: &mut Spanned<DeValue<'_>>, at: usize) -> bool {
    match value.get_mut() {
        DeValue::Table(table) => remove_entry(table, at),
        DeValue::Array(array) => {
            if array.iter_mut().any(|item| remove_from_value(item, at)) {
                return true;
            }
            let before = array.len();
            let items = std::mem::replace(array, DeArray::new()).into_iter();
            *array = items.filter(|item| !is_entry(item, at)).collect();
            array.len() < before
        }
        _ => false,
    }
}

/// Calls `add` with the path and offset of every key within a value.
fn list_keys(value: &Spanned<DeValue<'_>>, path: &str, add: &mut dyn FnMut(String, usize)) {
    match value.get_ref() {
        DeValue::Table(table) => {
            for (key, value) in table {
                let name = key.get_ref();
                let path =
                    if path.is_empty() { name.to_string() } else { format!("{path}.{name}") };
                add(path.clone(), key.span().start);
                list_keys(value, &path, add);
            }
        }
        DeValue::Array(array) => {
            for (number, item) in array.iter().enumerate() {
                let path = format!("{path}[{number}]");
                add(path.clone(), item.span().start);
                list_keys(item, &path, add);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
    struct TestSection {
        mode: String,
        #[serde(with = "crate::limit")]
        max_clients: Option<NonZeroU32>,
        servers: Vec<TestServer>,
        databases: BTreeMap<String, TestSection>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct TestServer {
        host: String,
        #[serde(default, rename = "weight")]
        _weight: u32,
    }

    fn errors(text: &str) -> Vec<String> {
        let text = SettingsText::new(text, Path::new("h.toml"));
        let found = match text.section::<TestSection>("pool", None) {
            Ok(section) => section.errors,
            Err(errors) => errors.0,
        };
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_error_has_line_and_key() {
        let text = "\
[other]
banana = 3
[pool]
mdoe = 'x'
max-clients = -1
[[pool.databases.'a.b'.servers]]
hosst = 'a'
[[pool.databases.'a.b'.servers]]
host = 'b'
wieght = 2
[pool.databases.shop]
max-clients = 5_000_000_000
xyzxyz = 1
";
        assert_eq!(
            errors(text),
            [
                "h.toml:4: mdoe: unknown key (did you mean `mode`?)",
                "h.toml:5: max-clients: invalid value: integer `-1`, expected u64",
                // The missing `host` of the first server is a consequence of the misspelt key.
                "h.toml:7: databases.a.b.servers[0].hosst: unknown key (did you mean `host`?)",
                "h.toml:10: databases.a.b.servers[1].wieght: unknown key (did you mean `weight`?)",
                "h.toml:12: databases.shop.max-clients: 5000000000 is too large",
                "h.toml:13: databases.shop.xyzxyz: unknown key (known: databases, max-clients, \
                 mode, servers)",
            ]
        );
    }

    #[test]
    fn missing_or_invalid_section_is_an_error() {
        assert_eq!(errors("[pol]\n"), ["h.toml: there is no [pool] section"]);
        let found = errors("\npool = 1\n");
        assert!(found.len() == 1 && found[0].starts_with("h.toml:2: invalid type"), "{found:?}");
    }

    #[test]
    fn syntax_errors_hide_other_errors() {
        let found = errors("[pool]\nmode = \nbanana = 3\n");
        assert!(found[0].starts_with("h.toml:2: "), "{found:?}");
        assert!(!found.concat().contains("banana"), "{found:?}");
    }

    #[test]
    fn location_of_a_missing_key_is_that_of_its_parent() {
        let text = SettingsText::new("[pool]\n\n[pool.databases.a]\n", Path::new("h.toml"));
        let section = text.section::<TestSection>("pool", None).unwrap();
        assert_eq!(section.settings.databases.len(), 1);
        let shown = |key: &str| section.locations.diagnostic(key, "is wrong").to_string();
        assert_eq!(shown("databases.a.mode"), "h.toml:3: databases.a.mode: is wrong");
        assert_eq!(shown("mode"), "h.toml: mode: is wrong");
    }
}
