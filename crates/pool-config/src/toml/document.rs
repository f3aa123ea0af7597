//! [`PoolDocument`]: a TOML document, parsed with all of its errors and the lines of its keys.
//!
//! serde stops at the first error. To find all errors, the reader removes each invalid entry and
//! parses the rest again until no error remains.

use std::path::Path;

use serde::Deserialize as _;
use toml::{
    Deserializer, Spanned,
    de::{DeArray, DeTable, DeValue, Error},
};

use super::super::{
    Config,
    file::{ConfigErrors, Diagnostic},
};

/// Maximum number of reported errors. The document is parsed again for each of them.
const ERRORS_MAX: usize = 100;

/// Maximum number of valid keys listed in the error for an unknown one.
const KNOWN_KEYS_MAX: usize = 12;

/// The `[pool]` section of a document.
#[derive(Debug)]
pub(crate) struct PoolDocument {
    /// The settings, without invalid entries.
    pub(crate) config: Config,
    /// The errors, ordered by line.
    pub(crate) errors: Vec<Diagnostic>,
    /// Keys below `[pool]`, with their lines.
    pub(crate) keys: Vec<(String, usize)>,
}

/// The sections of `howdah.toml`, of which only `[pool]` is read here.
#[derive(serde::Deserialize)]
struct Sections {
    pool: Option<Config>,
}

impl PoolDocument {
    /// Parses a document. Entries with invalid values are removed and listed in the errors.
    ///
    /// # Errors
    ///
    /// The document is not valid TOML, has no section `[pool]`, has too many errors, or has one
    /// that cannot be fixed by removing an entry, such as a missing key.
    pub(crate) fn read(text: &str, file: &Path) -> Result<Self, ConfigErrors> {
        let line = |at: usize| 1 + text[..at.min(text.len())].matches('\n').count();
        let (mut document, syntax) = DeTable::parse_recoverable(text);
        if !syntax.is_empty() {
            let diagnostic = |error: &Error| {
                let at = error.span().map_or(0, |span| span.start);
                Diagnostic::new(file, line(at), "", error.message())
            };
            return Err(ConfigErrors(syntax.iter().take(ERRORS_MAX).map(diagnostic).collect()));
        }
        let mut keys = Vec::new();
        if let Some(pool) = document.get_ref().get("pool") {
            list_keys(pool, "", &mut |path, at| keys.push((path, line(at))));
        }
        let original = document.clone();
        let mut errors: Vec<Diagnostic> = Vec::new();
        let config = loop {
            let error = match Sections::deserialize(Deserializer::from(document.clone())) {
                Ok(Sections { pool: Some(config) }) => break config,
                Ok(Sections { pool: None }) => {
                    let text = "there is no [pool] section";
                    return Err(ConfigErrors(vec![Diagnostic::new(file, 0, "", text)]));
                }
                Err(error) => error,
            };
            let span = error.span();
            let at = span.as_ref().map_or(0, |span| span.start);
            let key = path_at(original.get_ref(), at).unwrap_or_default();
            let key = key.strip_prefix("pool.").unwrap_or(&key);
            // A misspelt key also causes an error for the missing required key.
            let is_consequence = error.message().starts_with("missing field")
                && errors.iter().any(|it| it.key.starts_with(&format!("{key}.")));
            if !is_consequence {
                errors.push(Diagnostic::new(file, line(at), key, rephrase_error(error.message())));
            }
            let is_removed = span.is_some() && remove_entry(document.get_mut(), at);
            if !is_removed || errors.len() >= ERRORS_MAX {
                return Err(ConfigErrors(errors));
            }
        };
        errors.sort_by_key(|error| error.line);
        Ok(Self { config, errors, keys })
    }
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

/// Replaces serde's message for an unknown key with the usual one; other messages are unchanged.
///
/// A message may quote an invalid value, but never a secret: `StoredSecret` reports its own errors
/// without the value.
fn rephrase_error(message: &str) -> String {
    let Some(rest) = message.strip_prefix("unknown field `") else { return message.to_owned() };
    let mut quoted = rest.split('`');
    let name = quoted.next().unwrap_or_default();
    // The rest is `, expected one of `, a name, `, `, a name, …
    let known: Vec<_> = quoted.skip(1).step_by(2).collect();
    let nearest = known.iter().map(|key| (strsim::damerau_levenshtein(name, key), *key)).min();
    match nearest.filter(|(distance, key)| *distance * 2 < key.len().max(3)) {
        Some((_, key)) => format!("unknown key (did you mean `{key}`?)"),
        None if known.len() > KNOWN_KEYS_MAX => {
            "unknown key (`howdah pool --example` has all of them)".to_owned()
        }
        None => format!("unknown key (known: {})", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(text: &str) -> Vec<String> {
        let found = match PoolDocument::read(text, Path::new("h.toml")) {
            Ok(document) => document.errors,
            Err(errors) => errors.0,
        };
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_error_has_line_and_key() {
        let text = "\
[pool]
banana = 3
mode = \"txn\"
timeouts = { query-wait = \"2 parsecs\", querry = 5 }
[pool.databases.shop]
hots = ['a']
pool-size = -1
[[pool.databases.shop.servers]]
hosst = 'a'
[[pool.databases.shop.servers]]
host = 'b'
wieght = 2
[pool.users.'a.b']
max-clients = 'many'
";
        let found = errors(text);
        let starts = [
            "h.toml:2: banana: unknown key (`howdah pool --example` has all of them)",
            "h.toml:3: mode: unknown variant `txn`, expected one of `session`, ",
            "h.toml:4: timeouts.querry: unknown key (did you mean `query`?)",
            "h.toml:4: timeouts.query-wait: \"2 parsecs\" is not a duration",
            "h.toml:6: databases.shop.hots: unknown key (did you mean `hosts`?)",
            "h.toml:7: databases.shop.pool-size: ",
            "h.toml:9: databases.shop.servers[0].hosst: unknown key (did you mean `host`?)",
            "h.toml:12: databases.shop.servers[1].wieght: unknown key (did you mean `weight`?)",
            "h.toml:14: users.a.b.max-clients: invalid type: string \"many\"",
        ];
        for start in starts {
            assert!(found.iter().any(|it| it.starts_with(start)), "{start}\n{}", found.join("\n"));
        }
        // The missing `host` of the first server is a consequence of the misspelt key.
        assert_eq!(found.len(), starts.len(), "{}", found.join("\n"));
    }

    #[test]
    fn invalid_plain_array_is_one_error() {
        assert_eq!(
            errors("[pool]\nadmin-users = ['a', 1, 2]\n"),
            ["h.toml:2: admin-users: invalid type: integer `1`, expected a string"]
        );
    }

    #[test]
    fn syntax_error_hides_other_errors() {
        let found = errors("[pool]\nmode = \nbanana = 3\n");
        assert!(found[0].starts_with("h.toml:2: "), "{found:?}");
        assert!(!found.concat().contains("banana"), "{found:?}");
    }
}
