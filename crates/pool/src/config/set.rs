//! One key changed at the console: `SET key = value`, by PgBouncer's names or by those of `[pool]`.

use std::time::Duration;

use super::{
    Config, durations, needs_restart,
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
    /// The settings with one changed. A value of a key of PgBouncer is written as in a
    /// `pgbouncer.ini`; one of ours as in TOML, without quotes, and a list with commas.
    ///
    /// # Errors
    ///
    /// There is no such key, it cannot be changed while the pooler runs, or the value cannot be.
    pub(crate) fn with(&self, name: &str, value: &str) -> Result<Self, SetError> {
        let wrong = |why: String| SetError::Wrong { name: name.to_owned(), why };
        let mut config = self.clone();
        if name == "timeouts.shutdown" {
            config.timeouts.shutdown =
                Some(duration(value).map_err(wrong)?).filter(|it| !it.is_zero());
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
        let first = config.wrong().next();
        match first {
            None => Ok(config),
            Some((key, why)) => Err(wrong(format!("{key}: {why}"))),
        }
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

    #[test]
    fn both_names_of_a_key_set_it() {
        let config = config();
        let sized = |name, value| config.with(name, value).unwrap().sizes.pool.unwrap().get();
        assert_eq!((sized("default_pool_size", "7"), sized("sizes.pool", "8")), (7, 8));
        let waits = |name, value| config.with(name, value).unwrap().timeouts.query_wait.unwrap();
        assert_eq!(waits("query_wait_timeout", "1.5"), Duration::from_millis(1500));
        assert_eq!(waits("timeouts.query-wait", "250ms"), Duration::from_millis(250));
        assert_eq!(config.with("pool_mode", "statement").unwrap().mode, PoolMode::Statement);
        assert!(config.with("round-robin", "true").unwrap().round_robin);
        assert_eq!(config.with("check-query", "false").unwrap().check_query, None);
        let shutdown = config.with("timeouts.shutdown", "1m").unwrap().timeouts.shutdown;
        assert_eq!(shutdown, Some(Duration::from_secs(60)));
    }

    #[test]
    fn what_cannot_be_set_says_why() {
        let said = |name: &str, value| config().with(name, value).unwrap_err().to_string();
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
}
