//! Other clusters on which a share of a database's traffic is run, too: `[[pool.databases.NAME.mirrors]]`.

use std::{collections::BTreeSet, num::NonZeroU32, time::Duration};

use howdah_connect::Endpoint;
use serde::{Deserialize, Serialize};

use super::{Config, Database, PoolMode, StoredSecret, database::endpoint, durations, secret};

/// Most mirrors of one database.
pub const MIRRORS_MAX: usize = 8;

/// A mirror: an entry of `mirrors`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MirrorEntry {
    /// As in `hosts`: a name, an address or the directory of a unix socket, with `:port` where it
    /// differs from `port`.
    pub host: String,
    /// The port; the database's if none is given.
    pub port: Option<u16>,
    /// What it calls the database; as the database's servers do if none is given.
    pub dbname: Option<String>,
    /// The user that we are there; as at the database's servers if none is given.
    pub user: Option<String>,
    /// Its secret; the user list's if none is given.
    #[serde(default, serialize_with = "secret::written")]
    pub secret: Option<StoredSecret>,
    /// The part of clients whose transactions are run there, from 0 to 1.
    #[serde(default = "all")]
    pub sample_rate: f64,
    /// Most server connections per user.
    #[serde(default = "pool_size")]
    pub pool_size: NonZeroU32,
    /// How many bytes of one client's transactions may wait or be under way.
    #[serde(default = "client_bytes")]
    pub client_bytes: u32,
    /// The same of all clients together.
    #[serde(default = "buffer_bytes")]
    pub buffer_bytes: u32,
    /// How long a transaction may take there, and wait for a connection.
    #[serde(default = "timeout", with = "durations::whole")]
    pub timeout: Duration,
}

fn all() -> f64 {
    1.0
}

fn pool_size() -> NonZeroU32 {
    NonZeroU32::new(20).expect("it is not zero")
}

fn client_bytes() -> u32 {
    1 << 20
}

fn buffer_bytes() -> u32 {
    64 << 20
}

fn timeout() -> Duration {
    Duration::from_secs(60)
}

impl MirrorEntry {
    /// A mirror of all clients with the usual limits.
    pub fn new(host: String, port: Option<u16>) -> Self {
        Self {
            host,
            port,
            dbname: None,
            user: None,
            secret: None,
            sample_rate: all(),
            pool_size: pool_size(),
            client_bytes: client_bytes(),
            buffer_bytes: buffer_bytes(),
            timeout: timeout(),
        }
    }

    fn endpoint(&self, port: u16) -> Result<Endpoint, String> {
        endpoint(&self.host, self.port.unwrap_or(port))
    }

    /// What it is known by: where it is, and its database if that has a name of its own.
    fn name(&self, port: u16) -> Result<String, String> {
        let endpoint = self.endpoint(port)?;
        Ok(match &self.dbname {
            Some(dbname) => format!("{endpoint}/{dbname}"),
            None => endpoint.to_string(),
        })
    }
}

/// A mirror as a pool has it.
#[derive(Clone, Debug, PartialEq)]
pub struct MirrorPool {
    /// What it is known by, among those of its database.
    pub name: String,
    /// Where it is.
    pub endpoint: Endpoint,
    /// What was given.
    pub entry: MirrorEntry,
}

impl Database {
    /// Where its traffic is run, too.
    ///
    /// # Errors
    ///
    /// A text that names no place.
    pub(crate) fn mirror_pools(&self) -> Result<Vec<MirrorPool>, String> {
        let pool = |entry: &MirrorEntry| {
            let (name, endpoint) = (entry.name(self.port)?, entry.endpoint(self.port)?);
            Ok(MirrorPool { name, endpoint, entry: entry.clone() })
        };
        self.mirrors.iter().map(pool).collect()
    }

    /// What cannot be of mirrors of the database that clients call `name`: key below it, and reason.
    pub(super) fn wrong_mirrors(&self, name: &str, config: &Config) -> Vec<(String, String)> {
        let mut wrong = Vec::new();
        let mut rule = |is_wrong: bool, key: String, why: &str| {
            if is_wrong {
                wrong.push((key, why.to_owned()));
            }
        };
        let whole = || "mirrors".to_owned();
        let has_any = !self.mirrors.is_empty();
        rule(self.mirrors.len() > MIRRORS_MAX, whole(), "more than 8 mirrors");
        rule(
            has_any && self.mode.unwrap_or(config.mode) == PoolMode::Session,
            whole(),
            "a database is mirrored in transaction or statement mode: give it a mode; in session mode \
             what a transaction that was dropped has left in the session would be missing",
        );
        rule(
            has_any && !self.shards.is_empty(),
            whole(),
            "a database of shards is not mirrored: a mirror is one cluster, and has all of the data",
        );
        let own = self.endpoints(config).unwrap_or_default();
        let own_name = self.dbname.as_deref().unwrap_or(name);
        let mut names = BTreeSet::new();
        for (number, entry) in self.mirrors.iter().enumerate() {
            let mut rule = |is_wrong: bool, key: &str, why: &str| {
                rule(is_wrong, format!("mirrors[{number}].{key}"), why);
            };
            match entry.name(self.port) {
                Err(why) => rule(true, "host", &why),
                Ok(name) => rule(!names.insert(name), "host", "the same mirror is there twice"),
            }
            let is_own = entry.endpoint(self.port).is_ok_and(|place| own.contains(&place))
                && entry.dbname.as_deref().is_none_or(|dbname| dbname == own_name);
            rule(is_own, "host", "it is the database itself: everything would be written twice");
            rule(!(0.0..=1.0).contains(&entry.sample_rate), "sample-rate", "must be from 0 to 1");
            rule(entry.client_bytes < 1024, "client-bytes", "must be at least 1024");
            let less = entry.buffer_bytes < entry.client_bytes;
            rule(less, "buffer-bytes", "must be at least as much as client-bytes");
            let short = entry.timeout < Duration::from_millis(10);
            rule(short, "timeout", "must be at least 10ms");
            let nobody = entry.secret.is_some() && entry.user.is_none();
            rule(nobody, "secret", "a secret without a user: whose is it?");
            rule(entry.user.as_deref() == Some(""), "user", "the user has no name");
        }
        wrong
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
        assert!(config.changes(&none).is_empty());
        let changes = config.changes(&read("", "").unwrap());
        let told: Vec<_> = changes.iter().map(ToString::to_string).collect();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("databases.app.mirrors: new (sample-rate 1"), "{told:?}");
        assert!(!told[0].contains("sesame"), "{told:?}");
        let session = "[pool.users.her]\nmode = 'session'\n";
        let config = read(&format!("{two}{session}"), "").unwrap();
        assert!(config.pool("app", "her").unwrap().mirrors.is_empty());
        assert_eq!(config.pool("app", "him").unwrap().mirrors.len(), 2);
    }

    #[test]
    fn what_cannot_be_names_its_key() {
        let one = |more: &str| format!("[[pool.databases.app.mirrors]]\nhost = 'a'\n{more}\n");
        for (mirrors, more, key, why) in [
            (one(""), "mode = 'session'", "app.mirrors", "session mode"),
            (one("sample-rate = 1.5"), "", "mirrors[0].sample-rate", "from 0 to 1"),
            (one("sample-rate = nan"), "", "mirrors[0].sample-rate", "from 0 to 1"),
            (one("client-bytes = 5"), "", "mirrors[0].client-bytes", "at least 1024"),
            (one("buffer-bytes = 5000"), "", "mirrors[0].buffer-bytes", "as much as client-bytes"),
            (one("secret = 'x'"), "", "mirrors[0].secret", "whose"),
            (one("timeout = 0"), "", "mirrors[0].timeout", "at least 10ms"),
            (format!("{}{}", one(""), one("")), "", "mirrors[1].host", "twice"),
            (one("").replace("'a'", "'db1'"), "", "mirrors[0].host", "database itself"),
            (one("dbname = 'app'").replace("'a'", "'db1:5433'"), "", "mirrors[0].host", "itself"),
            (one("").replace("'a'", "'a b'"), "", "mirrors[0].host", "is no host"),
            (one("pool-size = 0"), "", "pool-size", "nonzero"),
            (one("hots = 1"), "", "hots", "no such key (did you mean `host`?)"),
        ] {
            let said = read(&mirrors, more).unwrap_err();
            assert!(said.contains(key) && said.contains(why), "{mirrors}: {said}");
        }
    }
}
