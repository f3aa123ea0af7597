//! Other clusters to which a sample of a database's traffic is mirrored:
//! `[[pool.databases.NAME.mirrors]]`.

use std::{collections::BTreeSet, num::NonZeroU32, time::Duration};

use howdah_connect::Endpoint;
use serde::{Deserialize, Serialize};

use super::{Config, DatabaseConfig, PoolMode, StoredSecret, database::endpoint, secret};

/// Maximum number of mirrors of a database.
pub const MIRRORS_MAX: usize = 8;

/// A server that receives mirrored traffic: an entry of `mirrors`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MirrorEntry {
    /// A name, an address or the directory of a unix socket, as in `hosts`, optionally with
    /// `:port`, which overrides `port`.
    pub host: String,
    /// The mirror's port; the database's `port` if `None`.
    pub port: Option<u16>,
    /// The database's name at the mirror; its name at the database's own servers if `None`.
    pub dbname: Option<String>,
    /// The role at the mirror; the role at the database's own servers if `None`.
    pub user: Option<String>,
    /// The secret of `user`; if `None`, the user's secret in `[pool.users]` or the user list.
    #[serde(default, serialize_with = "secret::serialize")]
    pub secret: Option<StoredSecret>,
    /// The share of clients whose transactions are mirrored, from 0 to 1.
    #[serde(default = "default_sample_rate")]
    pub sample_rate: f64,
    /// Maximum number of server connections per user.
    #[serde(default = "default_pool_size")]
    pub pool_size: NonZeroU32,
    /// Maximum bytes of one client's buffered and running transactions.
    #[serde(default = "default_client_bytes")]
    pub client_bytes: u32,
    /// Maximum bytes of all clients' buffered and running transactions together.
    #[serde(default = "default_buffer_bytes")]
    pub buffer_bytes: u32,
    /// Maximum time that a transaction may run at the mirror, and that it may wait for a
    /// connection.
    #[serde(default = "default_timeout", with = "howdah_settings::duration")]
    pub timeout: Duration,
}

fn default_sample_rate() -> f64 {
    1.0
}

fn default_pool_size() -> NonZeroU32 {
    NonZeroU32::new(20).expect("20 is not zero")
}

fn default_client_bytes() -> u32 {
    1 << 20
}

fn default_buffer_bytes() -> u32 {
    64 << 20
}

fn default_timeout() -> Duration {
    Duration::from_secs(60)
}

impl MirrorEntry {
    /// Creates an entry that mirrors all clients, with default limits.
    pub fn new(host: String, port: Option<u16>) -> Self {
        Self {
            host,
            port,
            dbname: None,
            user: None,
            secret: None,
            sample_rate: default_sample_rate(),
            pool_size: default_pool_size(),
            client_bytes: default_client_bytes(),
            buffer_bytes: default_buffer_bytes(),
            timeout: default_timeout(),
        }
    }

    fn endpoint(&self, port: u16) -> Result<Endpoint, String> {
        endpoint(&self.host, self.port.unwrap_or(port))
    }

    /// Returns the mirror's name: its endpoint, and the database if `dbname` is set.
    fn name(&self, port: u16) -> Result<String, String> {
        let endpoint = self.endpoint(port)?;
        Ok(match &self.dbname {
            Some(dbname) => format!("{endpoint}/{dbname}"),
            None => endpoint.to_string(),
        })
    }
}

/// A mirror as resolved for a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct MirrorPool {
    /// The mirror's name, unique within its database.
    pub name: String,
    /// Address of the mirror: host and port, or unix socket.
    pub endpoint: Endpoint,
    /// The configuration entry, with sample rate and limits.
    pub entry: MirrorEntry,
}

impl DatabaseConfig {
    /// Returns the mirrors of this database.
    ///
    /// # Errors
    ///
    /// The `host` of a mirror is not valid.
    pub fn mirror_pools(&self) -> Result<Vec<MirrorPool>, String> {
        let pool = |entry: &MirrorEntry| {
            let (name, endpoint) = (entry.name(self.port)?, entry.endpoint(self.port)?);
            Ok(MirrorPool { name, endpoint, entry: entry.clone() })
        };
        self.mirrors.iter().map(pool).collect()
    }

    /// Returns violated rules about mirrors: the key below the database, and the reason. `name` is
    /// the database's name for clients.
    pub(super) fn mirror_errors(&self, name: &str, config: &Config) -> Vec<(String, String)> {
        let mut errors = Vec::new();
        let mut rule = |is_violated: bool, key: String, why: &str| {
            if is_violated {
                errors.push((key, why.to_owned()));
            }
        };
        let list_key = || "mirrors".to_owned();
        let has_any = !self.mirrors.is_empty();
        rule(self.mirrors.len() > MIRRORS_MAX, list_key(), "more than 8 mirrors");
        rule(
            has_any && self.mode.unwrap_or(config.mode) == PoolMode::Session,
            list_key(),
            "mirrors need transaction or statement mode: set `mode`; in session mode, dropped \
             transactions would leave the mirror's session in another state",
        );
        rule(
            has_any && !self.shards.is_empty(),
            list_key(),
            "a sharded database cannot be mirrored: a mirror is one cluster with all of the data",
        );
        let own = self.endpoints(config).unwrap_or_default();
        let own_name = self.dbname.as_deref().unwrap_or(name);
        let mut names = BTreeSet::new();
        for (number, entry) in self.mirrors.iter().enumerate() {
            let mut rule = |is_violated: bool, key: &str, why: &str| {
                rule(is_violated, format!("mirrors[{number}].{key}"), why);
            };
            match entry.name(self.port) {
                Err(why) => rule(true, "host", &why),
                Ok(name) => rule(!names.insert(name), "host", "the mirror is listed twice"),
            }
            let is_own = entry.endpoint(self.port).is_ok_and(|endpoint| own.contains(&endpoint))
                && entry.dbname.as_deref().is_none_or(|dbname| dbname == own_name);
            rule(
                is_own,
                "host",
                "the mirror is the database itself: everything would be written twice",
            );
            rule(!(0.0..=1.0).contains(&entry.sample_rate), "sample-rate", "must be from 0 to 1");
            rule(entry.client_bytes < 1024, "client-bytes", "must be at least 1024");
            let too_small = entry.buffer_bytes < entry.client_bytes;
            rule(too_small, "buffer-bytes", "must be at least client-bytes");
            let too_short = entry.timeout < Duration::from_millis(10);
            rule(too_short, "timeout", "must be at least 10ms");
            let lone_secret = entry.secret.is_some() && entry.user.is_none();
            rule(lone_secret, "secret", "a secret needs a user");
            rule(entry.user.as_deref() == Some(""), "user", "the user name is empty");
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read(mirrors: &str, more: &str) -> Result<Config, String> {
        let text = format!(
            "[pool]\nmode = 'transaction'\n[pool.databases.app]\nhosts = ['db1']\nport = 5433\n{more}\n\
             {mirrors}"
        );
        let read = Config::read_str(&text, Path::new("h.toml"));
        read.map(|read| read.config).map_err(|error| error.to_string())
    }

    #[test]
    fn mirrors_are_read_and_written() {
        let two = "[[pool.databases.app.mirrors]]\nhost = 'new'\n\
                   [[pool.databases.app.mirrors]]\nhost = 'new:6000'\ndbname = 'x'\nsample-rate = 0.25\n\
                   user = 'me'\nsecret = 'sesame'\ntimeout = '5s'\npool-size = 3\n";
        let config = read(two, "").unwrap();
        let pool = config.pool("app", "her").unwrap();
        let names: Vec<_> = pool.mirrors.iter().map(|mirror| mirror.name.as_str()).collect();
        assert_eq!(names, ["new:5433", "new:6000/x"]);
        assert_eq!(
            (pool.mirrors[0].entry.sample_rate, pool.mirrors[1].entry.sample_rate),
            (1.0, 0.25)
        );
        let again = Config::read_str(&config.to_toml(), Path::new("h.toml")).unwrap().config;
        assert_eq!(again, config, "{}", config.to_toml());
        assert!(!format!("{config:?}").contains("sesame"));
        let none = read(two, "").unwrap();
        assert!(config.diff(&none).is_empty());
        let changes = config.diff(&read("", "").unwrap());
        let lines: Vec<_> = changes.iter().map(ToString::to_string).collect();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].starts_with("databases.app.mirrors: new (sample-rate 1"), "{lines:?}");
        assert!(!lines[0].contains("sesame"), "{lines:?}");
        let session = "[pool.users.her]\nmode = 'session'\n";
        let config = read(&format!("{two}{session}"), "").unwrap();
        assert!(config.pool("app", "her").unwrap().mirrors.is_empty());
        assert_eq!(config.pool("app", "him").unwrap().mirrors.len(), 2);
    }

    #[test]
    fn invalid_mirrors_are_reported_with_key() {
        let one = |more: &str| format!("[[pool.databases.app.mirrors]]\nhost = 'a'\n{more}\n");
        for (mirrors, more, key, why) in [
            (one(""), "mode = 'session'", "app.mirrors", "session mode"),
            (one("sample-rate = 1.5"), "", "mirrors[0].sample-rate", "from 0 to 1"),
            (one("sample-rate = nan"), "", "mirrors[0].sample-rate", "from 0 to 1"),
            (one("client-bytes = 5"), "", "mirrors[0].client-bytes", "at least 1024"),
            (one("buffer-bytes = 5000"), "", "mirrors[0].buffer-bytes", "at least client-bytes"),
            (one("secret = 'x'"), "", "mirrors[0].secret", "needs a user"),
            (one("timeout = 0"), "", "mirrors[0].timeout", "at least 10ms"),
            (format!("{}{}", one(""), one("")), "", "mirrors[1].host", "twice"),
            (one("").replace("'a'", "'db1'"), "", "mirrors[0].host", "database itself"),
            (one("dbname = 'app'").replace("'a'", "'db1:5433'"), "", "mirrors[0].host", "itself"),
            (one("").replace("'a'", "'a b'"), "", "mirrors[0].host", "is not a host"),
            (one("pool-size = 0"), "", "pool-size", "nonzero"),
            (one("hots = 1"), "", "hots", "unknown key (did you mean `host`?)"),
        ] {
            let error = read(&mirrors, more).unwrap_err();
            assert!(error.contains(key) && error.contains(why), "{mirrors}: {error}");
        }
    }
}
