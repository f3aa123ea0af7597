//! Writes a [`Config`] as the `[pool]` section of a `howdah.toml`.

use std::fmt::Write as _;

use serde::Serialize;
use toml::{Table, Value};

use super::{Config, DatabaseConfig, UserConfig};

/// Comments on keys: pairs of a key's path below `[pool]` and the comment.
pub(super) type KeyComments<'a> = &'a [(String, String)];

impl Config {
    /// Returns a `[pool]` section with all settings that differ from their defaults, including
    /// secrets and the users of a user list that was loaded. HBA rules are not included.
    pub fn to_toml(&self) -> String {
        self.to_toml_with(&[])
    }

    /// Returns the same section as [`Config::to_toml`], with `comments` above their keys.
    pub(super) fn to_toml_with(&self, comments: KeyComments<'_>) -> String {
        let mut table = without(table(self), &table(&Self::default()));
        // `Config::default()` has no databases or users, so their entries are compared with a
        // default entry.
        let databases = entries(&self.databases, &default_table::<DatabaseConfig>());
        let users = entries(&self.users, &default_table::<UserConfig>());
        for (name, entries) in [("databases", databases), ("users", users)] {
            table.remove(name);
            if !entries.is_empty() {
                table.insert(name.to_owned(), entries.into());
            }
        }
        let mut text = String::new();
        section(&mut text, "pool", "", &table, comments);
        text
    }
}

fn table<T: Serialize>(value: &T) -> Table {
    Table::try_from(value).expect("settings are tables of plain values with string keys")
}

fn default_table<T: Serialize + Default>() -> Table {
    table(&T::default())
}

fn entries<T: Serialize>(
    entries: &std::collections::BTreeMap<String, T>,
    default: &Table,
) -> Table {
    let entry =
        |(name, entry): (&String, &T)| (name.clone(), Value::from(without(table(entry), default)));
    entries.iter().map(entry).collect()
}

/// Returns the values of a table that differ from the default. A key that is missing from the table
/// is not written; only keys without a default can be missing.
fn without(table: Table, default: &Table) -> Table {
    let differs = |(key, value): (String, Value)| match (value, default.get(&key)) {
        (Value::Table(table), Some(Value::Table(default))) => {
            let rest = without(table, default);
            (!rest.is_empty()).then_some((key, rest.into()))
        }
        (value, Some(default)) if value == *default => None,
        (value, _) => Some((key, value)),
    };
    table.into_iter().filter_map(differs).collect()
}

/// Writes a section: first its values, then its subsections.
fn section(text: &mut String, header: &str, path: &str, table: &Table, comments: KeyComments<'_>) {
    let is_table = |value: &Value| matches!(value, Value::Table(_));
    let has_values = table.values().any(|value| !is_table(value));
    if has_values || table.is_empty() || header == "pool" {
        let gap = if text.is_empty() { "" } else { "\n" };
        let _ = writeln!(text, "{gap}[{header}]");
    }
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    for (key, value) in table.iter().filter(|(_, value)| !is_table(value)) {
        for (_, comment) in comments.iter().filter(|(path, _)| *path == below(key)) {
            let _ = writeln!(text, "# {comment}");
        }
        let _ = match (key.as_str(), value) {
            // Permissions are more readable in octal.
            ("unix-mode", Value::Integer(mode)) => writeln!(text, "{key} = 0o{mode:o}"),
            _ => writeln!(text, "{} = {value}", quoted(key)),
        };
    }
    for (key, value) in table {
        if let Value::Table(inner) = value {
            section(text, &format!("{header}.{}", quoted(key)), &below(key), inner, comments);
        }
    }
}

/// Returns a key, quoted if TOML requires it.
fn quoted(key: &str) -> String {
    let is_bare = |char: char| char.is_ascii_alphanumeric() || "-_".contains(char);
    if !key.is_empty() && key.chars().all(is_bare) {
        key.to_owned()
    } else {
        let mut quoted = String::from("\"");
        for char in key.chars() {
            match char {
                '"' | '\\' => quoted.extend(['\\', char]),
                char if char.is_control() => {
                    let _ = write!(quoted, "\\u{:04x}", u32::from(char));
                }
                char => quoted.push(char),
            }
        }
        quoted.push('"');
        quoted
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read(text: &str) -> Config {
        Config::read_str(text, Path::new("h.toml")).unwrap().config
    }

    #[test]
    fn written_config_round_trips() {
        let all = r#"
            [pool]
            mode = "transaction"
            workers = 4
            peers = ["pool-1", "[::1]:7", "/run/pool:7"]
            os-user = "howdah"
            check-query = false
            application-name = "%a %%"
            simple-queries = false
            reset-query = "a 'quoted' \"thing\"\nand a line"
            [pool.listen]
            addresses = ["*", "10.0.0.1:6433"]
            unix-mode = 0o770
            unix-group = "g"
            proxy-from = ["unix", "10.0.0.0/8"]
            [pool.sizes]
            pool = 0
            [pool.limits]
            clients = 10000
            servers-per-user = 7
            [pool.timeouts]
            query-wait = "2m"
            query = 1.5
            client-login = 0
            server-lifetime = "250ms"
            [pool.log]
            stats = false
            [pool.adaptive]
            stateless-functions = ["app.*"]
            pinned-max = 3
            [pool.notifications]
            enabled = false
            client-bytes = 7
            [pool.tcp]
            keepalive-count = 3
            [pool.auth]
            type = "md5"
            user = "asker"
            [pool.tls.client]
            mode = "require"
            certificate = "cert.pem"
            key = "/etc/key.pem"
            min-version = "TLSv1.3"
            [pool.databases.shop]
            hosts = ["db1"]
            port = 5433
            user = "app"
            secret = "sesame \" ' open"
            pool-size = 0
            query-wait-timeout = 0
            server-lifetime = 5
            parameters = { application_name = "pooled", "a.b" = "c" }
            [pool.databases."*"]
            [pool.databases."my \"db\" \\ x"]
            [pool.users.app]
            mode = "session"
            max-servers = 0
            query-timeout = 0
            secret = "md5d41d8cd98f00b204e9800998ecf8427e"
        "#;
        for text in [all, "[pool.databases.a]\n"] {
            let config = read(text);
            let written = config.to_toml();
            assert_eq!(read(&written), config, "{written}");
        }
        assert_eq!(read("[pool.databases.a]\n").to_toml(), "[pool]\n\n[pool.databases.a]\n");
    }

    /// Adds the paths of all values that are not tables to `into`.
    fn paths(table: &Table, path: &str, into: &mut Vec<String>) {
        for (key, value) in table {
            match value {
                Value::Table(inner) => paths(inner, &format!("{path}{key}."), into),
                _ => into.push(format!("{path}{key}")),
            }
        }
    }

    #[test]
    fn example_has_every_key_and_default() {
        use crate::EXAMPLE;
        let is_default = |line: &str| line.starts_with('#') && !line.starts_with("# ");
        let uncommented = |line: &str| line.strip_prefix('#').unwrap_or(line).to_owned();
        let all = |pick: &dyn Fn(&str) -> bool| {
            let line = |line: &str| if pick(line) { uncommented(line) } else { line.to_owned() };
            EXAMPLE.lines().map(line).collect::<Vec<_>>().join("\n")
        };
        let mut plain = read(EXAMPLE);
        let with_defaults = read(&all(&is_default));
        assert_eq!(with_defaults, plain);
        let written: Table = all(&is_default).parse().unwrap();
        let (mut found, mut expected) = (Vec::new(), Vec::new());
        paths(written["pool"].as_table().unwrap(), "", &mut found);
        paths(&table(&Config::default()), "", &mut expected);
        // The example shows a shorter query, because the default is long.
        expected.retain(|path| path != "auth.query");
        for path in expected {
            assert!(found.contains(&path), "{path} is not in the example");
        }
        // Keys without a default have an example value, and every example is valid.
        let is_value = |line: &str| line.starts_with("# ") && line.contains(" = ");
        let with_examples = all(&|line| is_default(line) || is_value(line));
        let text = with_examples.replace("pg_hba.conf", "").replace("userlist.txt", "");
        toml::from_str::<Table>(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(plain.databases.remove("shop").unwrap().hosts.len(), 1);
        plain.users.clear();
        assert_eq!(plain, Config::default());
    }
}
