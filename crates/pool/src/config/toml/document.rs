//! A document with the places of its keys: what is read of it, all that is wrong with it, and on which
//! line a key stands.
//!
//! serde stops at the first mistake. Here the entry around each mistake is taken out and the rest read
//! again, until nothing is wrong with it.

use std::path::Path;

use serde::Deserialize as _;
use toml::{
    Deserializer, Spanned,
    de::{DeArray, DeTable, DeValue, Error},
};

use super::super::{
    Config,
    file::{Remark, Wrong},
};

/// Most mistakes that are listed: each costs a reading of the document.
const MISTAKES_MAX: usize = 100;

/// Most keys that are listed where one is unknown.
const KNOWN_KEYS_MAX: usize = 12;

/// What a document says of the pooler.
#[derive(Debug)]
pub(in crate::config) struct Document {
    /// The settings, without what is wrong.
    pub(in crate::config) config: Config,
    /// What is wrong, by line.
    pub(in crate::config) wrong: Vec<Remark>,
    /// Keys below `[pool]`, with their lines.
    pub(in crate::config) keys: Vec<(String, usize)>,
}

/// The section of all commands' file that is ours.
#[derive(serde::Deserialize)]
struct Sections {
    pool: Option<Config>,
}

impl Document {
    /// Reads a document.
    ///
    /// # Errors
    ///
    /// It is no TOML, or has no section `[pool]`.
    pub(in crate::config) fn read(text: &str, file: &Path) -> Result<Self, Wrong> {
        let line = |at: usize| 1 + text[..at.min(text.len())].matches('\n').count();
        let (mut document, syntax) = DeTable::parse_recoverable(text);
        if !syntax.is_empty() {
            let remark = |error: &Error| {
                let at = error.span().map_or(0, |span| span.start);
                Remark::new(file, line(at), "", error.message())
            };
            return Err(Wrong(syntax.iter().take(MISTAKES_MAX).map(remark).collect()));
        }
        let mut keys = Vec::new();
        if let Some(pool) = document.get_ref().get("pool") {
            list_keys(pool, "", &mut |path, at| keys.push((path, line(at))));
        }
        let original = document.clone();
        let mut wrong: Vec<Remark> = Vec::new();
        let config = loop {
            let error = match Sections::deserialize(Deserializer::from(document.clone())) {
                Ok(Sections { pool: Some(config) }) => break config,
                Ok(Sections { pool: None }) => {
                    let text = "it has no [pool] section";
                    return Err(Wrong(vec![Remark::new(file, 0, "", text)]));
                }
                Err(error) => error,
            };
            let span = error.span();
            let at = span.as_ref().map_or(0, |span| span.start);
            let key = path_at(original.get_ref(), at).unwrap_or_default();
            let key = key.strip_prefix("pool.").unwrap_or(&key);
            // A misspelt key leaves the one that was meant missing.
            let follows = error.message().starts_with("missing field")
                && wrong.iter().any(|it| it.key.starts_with(&format!("{key}.")));
            if !follows {
                wrong.push(Remark::new(file, line(at), key, words_of(error.message())));
            }
            let is_taken = span.is_some() && take_out(document.get_mut(), at);
            if !is_taken || wrong.len() >= MISTAKES_MAX {
                return Err(Wrong(wrong));
            }
        };
        wrong.sort_by_key(|remark| remark.line);
        Ok(Self { config, wrong, keys })
    }
}

/// The path of the innermost entry around an offset.
fn path_at(table: &DeTable<'_>, at: usize) -> Option<String> {
    let mut found = None;
    for (key, value) in table {
        let name = key.get_ref();
        // A table that stands in several places has the span of its header only: entries come first.
        if let Some(below) = path_within(value, at) {
            return Some(format!("{name}{below}"));
        }
        if key.span().contains(&at) || value.span().contains(&at) {
            found = Some(name.to_string());
        }
    }
    found
}

/// The same for what is within a value. Plain items of a list are no entries: the rest of the list would
/// mean something else.
fn path_within(value: &Spanned<DeValue<'_>>, at: usize) -> Option<String> {
    match value.get_ref() {
        DeValue::Table(table) => path_at(table, at).map(|below| format!(".{below}")),
        DeValue::Array(array) => {
            let mut items = array.iter().enumerate();
            let below = items.find_map(|(number, item)| {
                path_within(item, at).map(|below| format!("[{number}]{below}"))
            });
            let item = || array.iter().position(|item| is_entry(item, at));
            below.or_else(|| item().map(|number| format!("[{number}]")))
        }
        _ => None,
    }
}

/// Whether an item of a list is a table around an offset.
fn is_entry(item: &Spanned<DeValue<'_>>, at: usize) -> bool {
    item.get_ref().is_table() && item.span().contains(&at)
}

/// Takes the innermost entry around an offset out of a table; whether there is one.
fn take_out(table: &mut DeTable<'_>, at: usize) -> bool {
    if table.iter_mut().any(|(_, value)| take_out_of(value, at)) {
        return true;
    }
    let is_it = |(key, value): &(&Spanned<_>, &Spanned<_>)| {
        key.span().contains(&at) || value.span().contains(&at)
    };
    let found = table.iter().find(is_it).map(|(key, _)| key.get_ref().to_string());
    found.is_some_and(|name| table.remove(name.as_str()).is_some())
}

/// The same for what is within a value.
fn take_out_of(value: &mut Spanned<DeValue<'_>>, at: usize) -> bool {
    match value.get_mut() {
        DeValue::Table(table) => take_out(table, at),
        DeValue::Array(array) => {
            if array.iter_mut().any(|item| take_out_of(item, at)) {
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

/// Gives the path of every key within a value, and where it stands.
fn list_keys(value: &Spanned<DeValue<'_>>, path: &str, give: &mut dyn FnMut(String, usize)) {
    match value.get_ref() {
        DeValue::Table(table) => {
            for (key, value) in table {
                let name = key.get_ref();
                let path =
                    if path.is_empty() { name.to_string() } else { format!("{path}.{name}") };
                give(path.clone(), key.span().start);
                list_keys(value, &path, give);
            }
        }
        DeValue::Array(array) => {
            for (number, item) in array.iter().enumerate() {
                let path = format!("{path}[{number}]");
                give(path.clone(), item.span().start);
                list_keys(item, &path, give);
            }
        }
        _ => {}
    }
}

/// serde's words for a key that nobody knows, as they stand elsewhere; all others as they are.
///
/// The message may show the value it does not like, but never that of a secret: those are texts, and any
/// text will do.
fn words_of(message: &str) -> String {
    let Some(rest) = message.strip_prefix("unknown field `") else { return message.to_owned() };
    let mut quoted = rest.split('`');
    let name = quoted.next().unwrap_or_default();
    // What follows is `, expected one of `, a name, `, `, a name, …
    let known: Vec<_> = quoted.skip(1).step_by(2).collect();
    let nearest = known.iter().map(|key| (strsim::damerau_levenshtein(name, key), *key)).min();
    match nearest.filter(|(distance, key)| *distance * 2 < key.len().max(3)) {
        Some((_, key)) => format!("no such key (did you mean `{key}`?)"),
        None if known.len() > KNOWN_KEYS_MAX => {
            "no such key (`howdah pool --example` has all of them)".to_owned()
        }
        None => format!("no such key (known here: {})", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> Vec<String> {
        let found = match Document::read(text, Path::new("h.toml")) {
            Ok(document) => document.wrong,
            Err(wrong) => wrong.0,
        };
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_mistake_is_listed_with_line_and_key() {
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
        let found = wrong(text);
        let starts = [
            "h.toml:2: banana: no such key (`howdah pool --example` has all of them)",
            "h.toml:3: mode: unknown variant `txn`, expected one of `session`, ",
            "h.toml:4: timeouts.querry: no such key (did you mean `query`?)",
            "h.toml:4: timeouts.query-wait: \"2 parsecs\" is no duration",
            "h.toml:6: databases.shop.hots: no such key (did you mean `hosts`?)",
            "h.toml:7: databases.shop.pool-size: ",
            "h.toml:9: databases.shop.servers[0].hosst: no such key (did you mean `host`?)",
            "h.toml:12: databases.shop.servers[1].wieght: no such key (did you mean `weight`?)",
            "h.toml:14: users.a.b.max-clients: invalid type: string \"many\"",
        ];
        for start in starts {
            assert!(found.iter().any(|it| it.starts_with(start)), "{start}\n{}", found.join("\n"));
        }
        // That the first server has no host follows from what is said of it.
        assert_eq!(found.len(), starts.len(), "{}", found.join("\n"));
    }

    #[test]
    fn list_of_plain_values_is_judged_as_a_whole() {
        assert_eq!(
            wrong("[pool]\nadmin-users = ['a', 1, 2]\n"),
            ["h.toml:2: admin-users: invalid type: integer `1`, expected a string"]
        );
    }

    #[test]
    fn syntax_is_told_before_anything_else() {
        let found = wrong("[pool]\nmode = \nbanana = 3\n");
        assert!(found[0].starts_with("h.toml:2: "), "{found:?}");
        assert!(!found.concat().contains("banana"), "{found:?}");
    }
}
