//! Changes single keys for the console's `SET key = value`. Keys may have PgBouncer's names or
//! those of `[pool]`.

use std::path::{Path, PathBuf};

use howdah_settings::parse_duration;

use super::{
    Config, ShutdownMode,
    file::LoadUsersError,
    needs_restart,
    pgbouncer::{KEYS, KeyEffect},
};

/// The reason why a key was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// The name is neither a key of PgBouncer nor one of the keys of `[pool]` that SET can change.
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
        let mut config = self.clone();
        if config.set_howdah_key(name, value).map_err(invalid)? {
            return Ok(config);
        }
        let known = KEYS.iter().find_map(|key| match key.effect {
            KeyEffect::Sets(ours, set) if key.name == name => Some((ours, set, value.to_owned())),
            KeyEffect::Sets(ours, set) if ours == name && !ours.is_empty() => {
                Some((ours, set, to_pgbouncer_syntax(ours, value)))
            }
            _ => None,
        });
        let Some((ours, set, value)) = known else {
            return Err(match KEYS.iter().find(|key| key.name == name).map(|key| key.effect) {
                Some(KeyEffect::Ignored(why)) => SetError::Ignored { name: name.to_owned(), why },
                _ if needs_restart(name) => SetError::NeedsRestart(name.to_owned()),
                _ => SetError::Unknown(name.to_owned()),
            });
        };
        if needs_restart(ours) {
            return Err(SetError::NeedsRestart(name.to_owned()));
        }
        set(&mut config, &value).map_err(invalid)?;
        if let Some(path) = config.file_key_mut(ours) {
            *path = folder.join(&*path);
        }
        match ours {
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

    /// Returns the key of `[pool]` for a name, which may be PgBouncer's name or the key itself;
    /// `None` if PgBouncer has no corresponding key.
    pub fn find_key(name: &str) -> Option<&'static str> {
        KEYS.iter().find_map(|key| match key.effect {
            KeyEffect::Sets(ours, _) if key.name == name || ours == name => Some(ours),
            _ => None,
        })
    }

    /// Returns the path that a key is set to; `None` if the key is unset or is not one of the paths
    /// that SET can change.
    pub fn file_key_mut(&mut self, key: &str) -> Option<&mut PathBuf> {
        let (client, server) = (&mut self.tls.client, &mut self.tls.server);
        match key {
            "auth.file" => self.auth.file.as_mut(),
            "auth.hba-file" => self.auth.hba_file.as_mut(),
            "auth.ident-file" => self.auth.ident_file.as_mut(),
            "tls.client.certificate" => client.certificate.as_mut(),
            "tls.client.key" => client.key.as_mut(),
            "tls.client.ca-file" => client.ca_file.as_mut(),
            "tls.server.certificate" => server.certificate.as_mut(),
            "tls.server.key" => server.key.as_mut(),
            "tls.server.ca-file" => server.ca_file.as_mut(),
            _ => None,
        }
    }
}

impl Config {
    /// Sets one of the keys that PgBouncer does not have, if `name` is one that SET can change.
    /// Returns whether it is.
    fn set_howdah_key(&mut self, name: &str, value: &str) -> Result<bool, String> {
        let timeout = || parse_duration(value).map(|it| Some(it).filter(|it| !it.is_zero()));
        match name {
            "timeouts.shutdown" => self.timeouts.shutdown = timeout()?,
            "timeouts.shutdown-delay" => self.timeouts.shutdown_delay = timeout()?,
            "timeouts.client-startup" => self.timeouts.client_startup = timeout()?,
            "limits.logins" => {
                let invalid = |_| format!("{value:?} is not a number from 0 to {}", u32::MAX);
                self.limits.logins = value.parse().map_err(invalid)?;
            }
            "shutdown-mode" => {
                let modes = [ShutdownMode::WaitForServers, ShutdownMode::WaitForClients];
                let found = modes.into_iter().find(|mode| mode.as_str() == value);
                let invalid =
                    || format!("{value:?} is neither wait-for-servers nor wait-for-clients");
                self.shutdown_mode = found.ok_or_else(invalid)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Converts the value of a `[pool]` key to the syntax of a `pgbouncer.ini`.
fn to_pgbouncer_syntax(key: &str, value: &str) -> String {
    match (key, value) {
        ("check-query", "") => "<empty>".to_owned(),
        ("check-query", "false") => String::new(),
        (_, "true") => "1".to_owned(),
        (_, "false") => "0".to_owned(),
        _ if key.starts_with("timeouts.")
            || key == "log.stats-period"
            || key == "capture.file-time" =>
        {
            match parse_duration(value) {
                Ok(duration) => duration.as_secs_f64().to_string(),
                Err(_) => value.to_owned(), // The key's parser reports the error.
            }
        }
        _ => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{DatabaseConfig, PoolMode};

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
        assert!(error("logfile", "x").contains("--log-level"));
        assert_eq!(error("wokers", "3"), "unrecognized parameter \"wokers\"");
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
