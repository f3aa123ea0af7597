//! One key changed at the console: `SET key = value`, by PgBouncer's names or by those of `[pool]`.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    Config, ShutdownMode, durations,
    file::UsersError,
    needs_restart,
    pgbouncer::{Effect, KEYS},
};

/// A key was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SetError {
    /// Nobody knows it.
    #[error("unrecognized parameter {0:?}")]
    Unknown(String),
    /// It means nothing here.
    #[error("{name}: {why}")]
    Nothing {
        /// The key.
        name: String,
        /// Why.
        why: &'static str,
    },
    /// It holds from start to end.
    #[error("parameter {0:?} cannot be changed without a restart")]
    Fixed(String),
    /// The value cannot be.
    #[error("{name}: {why}")]
    Wrong {
        /// The key.
        name: String,
        /// Why.
        why: String,
    },
}

impl Config {
    /// The settings with one changed, not yet checked as a whole: see [`Config::broken_rule`]. A value of
    /// a key of PgBouncer is written as in a `pgbouncer.ini`; one of ours as in TOML, without quotes, and
    /// a list with commas. A file's name is relative to `folder`; user lists and rules are read.
    ///
    /// # Errors
    ///
    /// There is no such key, it cannot be changed while the pooler runs, or the value cannot be.
    pub(crate) fn edited(&self, name: &str, value: &str, folder: &Path) -> Result<Self, SetError> {
        let wrong = |why: String| SetError::Wrong { name: name.to_owned(), why };
        let mut config = self.clone();
        if config.set_own(name, value).map_err(wrong)? {
            return Ok(config);
        }
        let known = KEYS.iter().find_map(|key| match key.effect {
            Effect::Sets(ours, set) if key.name == name => Some((ours, set, value.to_owned())),
            Effect::Sets(ours, set) if ours == name && !ours.is_empty() => {
                Some((ours, set, in_pgbouncers_words(ours, value)))
            }
            _ => None,
        });
        let Some((ours, set, value)) = known else {
            return Err(match KEYS.iter().find(|key| key.name == name).map(|key| key.effect) {
                Some(Effect::Nothing(why)) => SetError::Nothing { name: name.to_owned(), why },
                _ if needs_restart(name) => SetError::Fixed(name.to_owned()),
                _ => SetError::Unknown(name.to_owned()),
            });
        };
        if needs_restart(ours) {
            return Err(SetError::Fixed(name.to_owned()));
        }
        set(&mut config, &value).map_err(wrong)?;
        if let Some(path) = config.file_of(ours) {
            *path = folder.join(&*path);
        }
        match ours {
            "auth.file" => config.read_users().map_err(|mistake| {
                wrong(match mistake {
                    UsersError::Unreadable(text) => text,
                    UsersError::Line(remark) => remark.to_string(),
                })
            })?,
            "auth.hba-file" | "auth.ident-file" => {
                let mistakes = config.auth.read_rules();
                if !mistakes.is_empty() {
                    let lines: Vec<_> = mistakes.iter().map(ToString::to_string).collect();
                    return Err(wrong(lines.join("; ")));
                }
            }
            _ => {}
        }
        Ok(config)
    }

    /// The first rule that the settings break: key and reason.
    pub(crate) fn broken_rule(&self) -> Option<(String, String)> {
        self.wrong().next()
    }

    /// The key of `[pool]` that this name of either kind is for.
    pub(crate) fn key_named(name: &str) -> Option<&'static str> {
        KEYS.iter().find_map(|key| match key.effect {
            Effect::Sets(ours, _) if key.name == name || ours == name => Some(ours),
            _ => None,
        })
    }

    /// The file that a key names, if it is such a key.
    pub(crate) fn file_of(&mut self, key: &str) -> Option<&mut PathBuf> {
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
    /// Sets a key that PgBouncer does not have. Gives whether it is one.
    fn set_own(&mut self, name: &str, value: &str) -> Result<bool, String> {
        let timeout = || duration(value).map(|it| Some(it).filter(|it| !it.is_zero()));
        match name {
            "timeouts.shutdown" => self.timeouts.shutdown = timeout()?,
            "timeouts.client-startup" => self.timeouts.client_startup = timeout()?,
            "limits.logins" => {
                let wrong = |_| format!("{value:?} is not a number from 0 to {}", u32::MAX);
                self.limits.logins = value.parse().map_err(wrong)?;
            }
            "shutdown-mode" => {
                let modes = [ShutdownMode::WaitForServers, ShutdownMode::WaitForClients];
                let found = modes.into_iter().find(|mode| mode.as_str() == value);
                let wrong =
                    || format!("{value:?} is neither wait-for-servers nor wait-for-clients");
                self.shutdown_mode = found.ok_or_else(wrong)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn duration(value: &str) -> Result<Duration, String> {
    let wrong = || format!("{value:?} is no duration: write 250ms, 15s, 1m, 1h, 1d or seconds");
    durations::with_unit(value).ok_or_else(wrong)
}

/// A value of a key of ours, as PgBouncer would have it written.
fn in_pgbouncers_words(key: &str, value: &str) -> String {
    match (key, value) {
        ("check-query", "") => "<empty>".to_owned(),
        ("check-query", "false") => String::new(),
        (_, "true") => "1".to_owned(),
        (_, "false") => "0".to_owned(),
        _ if key.starts_with("timeouts.")
            || key == "log.stats-period"
            || key == "capture.file-time" =>
        {
            match durations::with_unit(value) {
                Some(duration) => duration.as_secs_f64().to_string(),
                None => value.to_owned(), // Its own reader says what is wrong with it.
            }
        }
        _ => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Database, PoolMode};

    fn config() -> Config {
        let databases = [("shop".to_owned(), Database::default())].into();
        Config { databases, ..Config::default() }
    }

    /// What SET does with them.
    fn with(config: &Config, name: &str, value: &str) -> Result<Config, String> {
        let edited =
            config.edited(name, value, Path::new("")).map_err(|error| error.to_string())?;
        match edited.broken_rule() {
            None => Ok(edited),
            Some((key, why)) => Err(format!("{key}: {why}")),
        }
    }

    #[test]
    fn both_names_of_a_key_set_it() {
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
    fn what_cannot_be_set_says_why() {
        let said = |name: &str, value| with(&config(), name, value).unwrap_err();
        assert_eq!(
            said("workers", "3"),
            "parameter \"workers\" cannot be changed without a restart"
        );
        assert!(said("listen_port", "1").contains("without a restart"));
        assert!(said("logfile", "x").contains("--log-level"));
        assert_eq!(said("wokers", "3"), "unrecognized parameter \"wokers\"");
        assert!(said("max_client_conn", "0").contains("must be at least 1"));
        assert!(said("query_timeout", "soon").contains("no number of seconds"));
        assert!(said("auth_type", "cert").contains("verify-ca"));
    }

    #[test]
    fn files_are_read_when_they_are_set() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("users", "\"a\" \"one\"\n\"b\" \"\"\n");
        write("others", "\"a\" \"two\"\n");
        write("passwd", "root:x:0:0:root:/root:/bin/sh\n");
        write("hba", "local all all trust\n");
        let set = |config: &Config, name, value| config.edited(name, value, folder.path());
        let first = set(&config(), "auth_file", "users").unwrap();
        assert_eq!(first.users.len(), 2);
        let second = set(&first, "auth.file", "others").unwrap();
        assert_eq!(second.users["a"].secret, Some(crate::config::StoredSecret::parse("two")));
        assert_eq!(second.users["b"].secret, None, "it is not listed any more");
        let refused = |name, value| set(&first, name, value).unwrap_err().to_string();
        assert!(refused("auth_file", "none").contains("cannot read the user list"));
        assert!(refused("auth_file", "passwd").contains("passwd:1: a user must stand between"));
        assert!(set(&first, "auth_hba_file", "hba").unwrap().auth.hba.is_some());
        assert!(refused("auth_hba_file", "none").contains("none"));
        assert!(refused("auth_hba_file", "passwd").contains("passwd:1: "));
        let unset =
            set(&set(&first, "auth_hba_file", "hba").unwrap(), "auth_hba_file", "").unwrap();
        assert_eq!(unset.auth.hba, None);
    }
}
