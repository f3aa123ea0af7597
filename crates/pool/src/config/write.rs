//! [`Config`] as the `[pool]` section of a `howdah.toml`.

use std::fmt::Write as _;

use ::toml::{Table, Value};
use serde::Serialize;

use super::{Config, Database, User};

/// Remarks about keys: the path below `[pool]`, and what to say of it.
pub(super) type Remarks<'a> = &'a [(String, String)];

impl Config {
    /// Writes everything that is not the default, with its secrets. What is read from a file that is
    /// named, such as a user list, stays there.
    pub fn to_toml(&self) -> String {
        self.to_toml_with(&[])
    }

    /// The same with a comment above each key that there is a remark about.
    pub(super) fn to_toml_with(&self, remarks: Remarks<'_>) -> String {
        let mut table = without(table(self), &table(&Self::default()));
        // Entries are compared with what an entry of its kind has that says nothing.
        let databases = entries(&self.databases, &table_of_default::<Database>());
        let users = entries(&self.users, &table_of_default::<User>());
        for (name, entries) in [("databases", databases), ("users", users)] {
            table.remove(name);
            if !entries.is_empty() {
                table.insert(name.to_owned(), entries.into());
            }
        }
        let mut text = String::new();
        section(&mut text, "pool", "", &table, remarks);
        text
    }
}

fn table<T: Serialize>(value: &T) -> Table {
    Table::try_from(value).expect("settings are tables of plain values, with texts as keys")
}

fn table_of_default<T: Serialize + Default>() -> Table {
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

/// What of a table is another than in the default. A key that is not there cannot be written, and is
/// nowhere where it could be but by default.
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

/// Writes a section: its values first, then those below it.
fn section(text: &mut String, header: &str, path: &str, table: &Table, remarks: Remarks<'_>) {
    let of = |value: &Value| matches!(value, Value::Table(_));
    let has_values = table.values().any(|value| !of(value));
    if has_values || table.is_empty() || header == "pool" {
        let gap = if text.is_empty() { "" } else { "\n" };
        let _ = writeln!(text, "{gap}[{header}]");
    }
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    for (key, value) in table.iter().filter(|(_, value)| !of(value)) {
        for (_, remark) in remarks.iter().filter(|(about, _)| *about == below(key)) {
            let _ = writeln!(text, "# {remark}");
        }
        let _ = match (key.as_str(), value) {
            // Permissions are read as octal digits.
            ("unix-mode", Value::Integer(mode)) => writeln!(text, "{key} = 0o{mode:o}"),
            _ => writeln!(text, "{} = {value}", quoted(key)),
        };
    }
    for (key, value) in table {
        if let Value::Table(inner) = value {
            section(text, &format!("{header}.{}", quoted(key)), &below(key), inner, remarks);
        }
    }
}

/// A key as TOML wants it.
fn quoted(key: &str) -> String {
    let is_bare = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    match !key.is_empty() && key.chars().all(is_bare) {
        true => key.to_owned(),
        // Basic strings: what a value would be written as may be in single quotes or on lines.
        false => {
            let mut quoted = String::from("\"");
            for letter in key.chars() {
                match letter {
                    '"' | '\\' => quoted.extend(['\\', letter]),
                    letter if letter.is_control() => {
                        let _ = write!(quoted, "\\u{:04x}", u32::from(letter));
                    }
                    letter => quoted.push(letter),
                }
            }
            quoted.push('"');
            quoted
        }
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
    fn what_is_written_reads_as_what_it_was() {
        let all = r#"
            [pool]
            mode = "transaction"
            workers = 4
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

    /// The paths of all values, tables left out.
    fn paths(table: &Table, path: &str, into: &mut Vec<String>) {
        for (key, value) in table {
            match value {
                Value::Table(inner) => paths(inner, &format!("{path}{key}."), into),
                _ => into.push(format!("{path}{key}")),
            }
        }
    }

    #[test]
    fn the_example_has_every_key_and_its_default() {
        use crate::config::EXAMPLE;
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
        // It is shown by an example of its own: the default is a long text.
        expected.retain(|path| path != "auth.query");
        for path in expected {
            assert!(found.contains(&path), "{path} is not in the example");
        }
        // What has no default is shown by example, and every example can be followed.
        let is_value = |line: &str| line.starts_with("# ") && line.contains(" = ");
        let followed = all(&|line| is_default(line) || is_value(line));
        let text = followed.replace("pg_hba.conf", "").replace("userlist.txt", "");
        ::toml::from_str::<Table>(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(plain.databases.remove("shop").unwrap().hosts.len(), 1);
        plain.users.clear();
        assert_eq!(plain, Config::default());
    }
}
