//! Changes single keys for the console's `SET key = value`. Keys may have PgBouncer's names or
//! those of `[pool]`.

use std::path::{Path, PathBuf};

use super::{
    Config,
    file::LoadUsersError,
    keys::{self, KeyChange, Notation},
    pgbouncer::{KEYS, KeyEffect},
};

/// The reason why a key was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// The name is neither a key of PgBouncer nor one of `[pool]`.
    #[error("unrecognized parameter {0:?}")]
    Unknown(String),
    /// The key is one of PgBouncer's, and has no effect in howdah.
    #[error("{name} has no effect: {why}")]
    Ignored {
        /// Name of the key.
        name: String,
        /// The reason from the table of PgBouncer's keys.
        why: &'static str,
    },
    /// The key can be changed only by a restart.
    #[error("parameter {0:?} cannot be changed without a restart")]
    NeedsRestart(String),
    /// The key can be changed only in the configuration file.
    #[error("parameter {0:?} can be changed only in the file, for the next reload")]
    FileOnly(String),
    /// The value is malformed, violates a rule, or names a file that cannot be used.
    #[error("{name}: {why}")]
    Invalid {
        /// Name of the key.
        name: String,
        /// The problem with the value.
        why: String,
    },
}

impl Config {
    /// Returns the configuration with one key changed. The result is not yet checked against the
    /// rules: see [`Config::first_violation`]. Values of PgBouncer's keys are written as in a
    /// `pgbouncer.ini`; those of `[pool]` as in TOML, but without quotes, and lists with commas.
    /// File names are relative to `folder`; user lists and HBA rules are loaded.
    ///
    /// # Errors
    ///
    /// The key is unknown, has no effect or cannot be changed without a restart, or the value is
    /// invalid.
    pub fn with_key_set(&self, name: &str, value: &str, folder: &Path) -> Result<Self, SetError> {
        let invalid = |why: String| SetError::Invalid { name: name.to_owned(), why };
        let known = KEYS.iter().find(|key| key.name == name);
        let path = match known.map(|key| key.effect) {
            Some(KeyEffect::Ignored { is_changeable: false, .. }) => {
                return Err(SetError::NeedsRestart(name.to_owned()));
            }
            // Tools set all keys to the values that SHOW CONFIG has.
            Some(KeyEffect::Ignored { .. })
                if known.is_some_and(|it| it.show(self).unwrap_or_default() == value) =>
            {
                return Ok(self.clone());
            }
            Some(KeyEffect::Ignored { why, .. }) => {
                return Err(SetError::Ignored { name: name.to_owned(), why });
            }
            Some(KeyEffect::Sets(path) | KeyEffect::Converts(path, ..)) => path,
            None => name,
        };
        let Some(key) = keys::find(keys::KEYS, path) else {
            return Err(SetError::Unknown(name.to_owned()));
        };
        match key.change {
            KeyChange::Set => {}
            KeyChange::Reload => return Err(SetError::FileOnly(name.to_owned())),
            KeyChange::Restart => return Err(SetError::NeedsRestart(name.to_owned())),
        }
        let mut config = self.clone();
        // A default stays a default, although SHOW CONFIG shows its value.
        if known.is_some_and(|known| known.show(self).as_deref() == Some(value)) {
            return Ok(config);
        }
        match (known, path) {
            (Some(known), _) => known.set(&mut config, value),
            // Only here is an empty text different from none.
            (None, "check-query") => {
                config.check_query = (value != "false").then(|| value.to_owned());
                Ok(())
            }
            (None, _) => (key.get_mut)(&mut config).set(value, Notation::Howdah),
        }
        .map_err(invalid)?;
        if let Some(file) = key.file_mut(&mut config) {
            *file = folder.join(&*file);
        }
        match path {
            "auth.file" => config.load_user_list().map_err(|error| {
                invalid(match error {
                    LoadUsersError::Unreadable(text) => text,
                    LoadUsersError::Line(diagnostic) => diagnostic.to_string(),
                })
            })?,
            "auth.hba-file" | "auth.ident-file" => {
                let errors = config.auth.load_rules();
                if !errors.is_empty() {
                    let lines: Vec<_> = errors.iter().map(ToString::to_string).collect();
                    return Err(invalid(lines.join("; ")));
                }
            }
            _ => {}
        }
        Ok(config)
    }

    /// Returns the first rule that the settings violate: key and reason.
    pub fn first_violation(&self) -> Option<(String, String)> {
        self.rule_violations().next()
    }

    /// Returns the key of `[pool]` for PgBouncer's name; `None` if PgBouncer has no such key.
    pub fn find_key(name: &str) -> Option<&'static str> {
        KEYS.iter().find(|key| key.name == name)?.target()
    }

    /// Returns the path that a key is set to; `None` if the key is unset or is not a path.
    pub fn file_key_mut(&mut self, key: &str) -> Option<&mut PathBuf> {
        keys::find(keys::KEYS, key)?.file_mut(self)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{DatabaseConfig, PoolMode, ShutdownMode};

    fn config() -> Config {
        let databases = [("shop".to_owned(), DatabaseConfig::default())].into();
        Config { databases, ..Config::default() }
    }

    /// Sets a key like the console's SET, including the check of all rules.
    fn with(config: &Config, name: &str, value: &str) -> Result<Config, String> {
        let edited =
            config.with_key_set(name, value, Path::new("")).map_err(|error| error.to_string())?;
        match edited.first_violation() {
            None => Ok(edited),
            Some((key, why)) => Err(format!("{key}: {why}")),
        }
    }

    #[test]
    fn key_is_set_by_either_name() {
        let config = config();
        let with = |name, value| with(&config, name, value);
        let sized = |name, value| with(name, value).unwrap().sizes.pool.unwrap().get();
        assert_eq!((sized("default_pool_size", "7"), sized("sizes.pool", "8")), (7, 8));
        let waits = |name, value| with(name, value).unwrap().timeouts.query_wait.unwrap();
        assert_eq!(waits("query_wait_timeout", "1.5"), Duration::from_millis(1500));
        assert_eq!(waits("timeouts.query-wait", "250ms"), Duration::from_millis(250));
        assert_eq!(with("pool_mode", "statement").unwrap().mode, PoolMode::Statement);
        assert!(with("round-robin", "true").unwrap().round_robin);
        assert_eq!(with("check-query", "false").unwrap().check_query, None);
        assert_eq!(with("check-query", "").unwrap().check_query.as_deref(), Some(""));
        let shutdown = with("timeouts.shutdown", "1m").unwrap().timeouts.shutdown;
        assert_eq!(shutdown, Some(Duration::from_secs(60)));
        let startup = with("timeouts.client-startup", "0").unwrap().timeouts.client_startup;
        assert_eq!(startup, None);
        assert_eq!(with("limits.logins", "500").unwrap().limits.logins, 500);
        let mode = with("shutdown-mode", "wait-for-clients").unwrap().shutdown_mode;
        assert_eq!(mode, ShutdownMode::WaitForClients);
    }

    #[test]
    fn invalid_set_reports_reason() {
        let error = |name: &str, value| with(&config(), name, value).unwrap_err();
        assert_eq!(
            error("workers", "3"),
            "parameter \"workers\" cannot be changed without a restart"
        );
        assert!(error("listen_port", "1").contains("without a restart"));
        assert!(error("pkt_buf", "1").contains("without a restart"));
        assert!(error("sbuf_loopcnt", "1").contains("served in turn"));
        assert_eq!(error("wokers", "3"), "unrecognized parameter \"wokers\"");
        assert!(error("capture.path", "/x").contains("only in the file"));
        assert!(error("max_client_conn", "0").contains("must be at least 1"));
        assert!(error("query_timeout", "soon").contains("not a number of seconds"));
        assert!(error("auth_type", "cert").contains("verify-ca"));
    }

    #[test]
    fn set_reads_named_file() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("users", "\"a\" \"one\"\n\"b\" \"\"\n");
        write("others", "\"a\" \"two\"\n");
        write("passwd", "root:x:0:0:root:/root:/bin/sh\n");
        write("hba", "local all all trust\n");
        let set = |config: &Config, name, value| config.with_key_set(name, value, folder.path());
        let first = set(&config(), "auth_file", "users").unwrap();
        assert_eq!(first.users.len(), 2);
        let second = set(&first, "auth.file", "others").unwrap();
        assert_eq!(second.users["a"].secret, Some(crate::StoredSecret::parse("two")));
        assert_eq!(second.users["b"].secret, None, "it is no longer listed");
        let refused = |name, value| set(&first, name, value).unwrap_err().to_string();
        assert!(refused("auth_file", "none").contains("cannot read the user list"));
        assert!(refused("auth_file", "passwd").contains("passwd:1: expected a user in"));
        assert!(set(&first, "auth_hba_file", "hba").unwrap().auth.hba.is_some());
        assert!(refused("auth_hba_file", "none").contains("none"));
        assert!(refused("auth_hba_file", "passwd").contains("passwd:1: "));
        let unset =
            set(&set(&first, "auth_hba_file", "hba").unwrap(), "auth_hba_file", "").unwrap();
        assert_eq!(unset.auth.hba, None);
    }
}
