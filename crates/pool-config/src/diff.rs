//! Differences between two configurations, key by key. Values of secrets are not shown.

use std::{collections::BTreeMap, fmt};

use super::{
    Config,
    keys::{DATABASE_KEYS, KEYS, KeyChange, SettingKey, USER_KEYS},
};

/// A changed key, or an added or removed entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigChange {
    /// The key's path below `[pool]`.
    pub key: String,
    /// The value before the change; `None` if the key is an entry that was added.
    pub before: Option<String>,
    /// The value after the change, empty for an added entry; `None` if the entry was removed.
    pub now: Option<String>,
    /// Whether the change takes effect only at the next start.
    pub needs_restart: bool,
}

impl fmt::Display for ConfigChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.before, &self.now) {
            (Some(before), Some(now)) if before == now => write!(f, "{}: changed", self.key)?,
            (Some(before), Some(now)) => write!(f, "{}: {before} -> {now}", self.key)?,
            (None, Some(now)) if now.is_empty() => write!(f, "{}: added", self.key)?,
            (None, Some(now)) => write!(f, "{}: {now}", self.key)?,
            (Some(_), None) => write!(f, "{}: removed", self.key)?,
            (None, None) => f.write_str(&self.key)?,
        }
        if self.needs_restart { f.write_str(" (needs a restart)") } else { Ok(()) }
    }
}

impl Config {
    /// Returns the keys whose values differ between `self` and `now`.
    pub fn diff(&self, now: &Self) -> Vec<ConfigChange> {
        let mut changes = Vec::new();
        compare(KEYS, self, now, "", &mut changes);
        compare_entries(DATABASE_KEYS, "databases", &self.databases, &now.databases, &mut changes);
        compare_entries(USER_KEYS, "users", &self.users, &now.users, &mut changes);
        changes
    }

    /// Restores the values of `before` for keys that need a restart to change.
    pub fn retain_restart_keys(&mut self, before: &Self) {
        for key in KEYS.iter().filter(|key| key.change == KeyChange::Restart) {
            (key.copy)(before, self);
        }
    }
}

/// Adds the keys whose values differ; `parent` is the path of the settings, with a dot at its end.
fn compare<T>(
    keys: &[SettingKey<T>],
    before: &T,
    now: &T,
    parent: &str,
    changes: &mut Vec<ConfigChange>,
) {
    for key in keys.iter().filter(|key| !(key.is_equal)(before, now)) {
        // An unset value is shown as "not set", since `None` would mean a removed key.
        let text = |settings| match key.placeholder {
            Some(placeholder) => placeholder.to_owned(),
            None => (key.get)(settings).report().unwrap_or_else(|| "not set".to_owned()),
        };
        changes.push(ConfigChange {
            key: format!("{parent}{}", key.path()),
            before: Some(text(before)),
            now: Some(text(now)),
            needs_restart: key.change == KeyChange::Restart,
        });
    }
}

/// Adds removed and added entries of a map, and the changed keys of the others.
fn compare_entries<T>(
    keys: &[SettingKey<T>],
    map: &str,
    before: &BTreeMap<String, T>,
    now: &BTreeMap<String, T>,
    changes: &mut Vec<ConfigChange>,
) {
    let mut add = |name: &str, before: Option<String>, now: Option<String>| {
        let key = format!("{map}.{name}");
        changes.push(ConfigChange { key, before, now, needs_restart: false });
    };
    for name in before.keys().filter(|name| !now.contains_key(*name)) {
        add(name, Some(String::new()), None);
    }
    for name in now.keys().filter(|name| !before.contains_key(*name)) {
        add(name, None, Some(String::new()));
    }
    for (name, before) in before {
        if let Some(now) = now.get(name) {
            compare(keys, before, now, &format!("{map}.{name}."), changes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(before: &str, now: &str) -> Vec<String> {
        let read = |text: &str| toml::from_str::<Config>(text).unwrap();
        read(before).diff(&read(now)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn diff_lists_changed_keys_only() {
        let before = "mode = 'session'\nsizes = { pool = 5 }\n\
                      [databases.shop]\nhosts = ['a']\nsecret = 'sesame'\nuser = 'app'\n\
                      [databases.old]\n[users.me]\nsecret = 'mine'\n";
        assert_eq!(changes(before, before), [""; 0]);
        let now = "mode = 'transaction'\nsizes = { pool = 0 }\nworkers = 3\n\
                   timeouts = { query = '1500ms' }\nlisten = { port = 7 }\nauth = { type = 'md5' }\n\
                   [databases.shop]\nhosts = ['a', 'b:1']\nsecret = 'Sesame'\nuser = 'app'\n\
                   pool-size = 9\n[databases.new]\n[users.me]\nsecret = 'yours'\n";
        assert_eq!(
            changes(before, now),
            [
                "listen.port: 6432 -> 7 (needs a restart)",
                "workers: not set -> 3 (needs a restart)",
                "mode: session -> transaction",
                "sizes.pool: 5 -> not set",
                "timeouts.query: not set -> 1.5s",
                "auth.type: scram-sha-256 -> md5",
                "databases.old: removed",
                "databases.new: added",
                "databases.shop.hosts: a -> a, b:1",
                "databases.shop.secret: changed",
                "databases.shop.pool-size: not set -> 9",
                "users.me.secret: changed",
            ]
        );
    }
}
