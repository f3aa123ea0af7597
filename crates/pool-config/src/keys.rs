//! The keys of the settings: one row for each.
//!
//! A row names a field, and says whether SET and a reload can change it. What a reload changed
//! ([`Config::diff`](super::Config::diff)), what SET may change, what SHOW CONFIG shows and what
//! the keys of PgBouncer set all walk these tables. A new setting is a field and a row here.

mod value;

use std::path::PathBuf;

pub(crate) use self::value::{KeyValue, Notation};
use super::{Config, DatabaseConfig, UserConfig};

/// A key of the settings `T`: a field, by its path below `[pool]` or below an entry.
pub(crate) struct SettingKey<T> {
    fields: &'static [&'static str],
    /// How the value can be changed while the pooler runs.
    pub(crate) change: KeyChange,
    /// Text that reports show instead of the value, if it may contain a secret.
    pub(crate) placeholder: Option<&'static str>,
    pub(crate) get: fn(&T) -> &dyn KeyValue,
    pub(crate) get_mut: fn(&mut T) -> &mut dyn KeyValue,
    pub(crate) is_equal: fn(&T, &T) -> bool,
    /// Copies the value from the first settings to the second.
    pub(crate) copy: fn(&T, &mut T),
}

/// How a key can be changed while the pooler runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyChange {
    /// By the console's SET, or in the file.
    Set,
    /// In the file.
    Reload,
    /// Only by a restart.
    Restart,
}

impl<T> SettingKey<T> {
    /// Returns the path of the key. Keys are named like their fields, except `type`, whose field is
    /// `method`.
    pub(crate) fn path(&self) -> String {
        let name =
            |field: &&str| if *field == "method" { "type".into() } else { field.replace('_', "-") };
        self.fields.iter().map(name).collect::<Vec<_>>().join(".")
    }

    /// Returns the value if it is the path of a file, which may be relative to the folder of the
    /// configuration file.
    pub(crate) fn file_mut<'s>(&self, settings: &'s mut T) -> Option<&'s mut PathBuf> {
        // Sockets are not files of the configuration.
        let is_socket = self.fields[0] == "listen";
        (self.get_mut)(settings).file_mut().filter(|_| !is_socket)
    }
}

/// Returns the row of a path.
pub(crate) fn find<T>(
    keys: &'static [SettingKey<T>],
    path: &str,
) -> Option<&'static SettingKey<T>> {
    keys.iter().find(|key| key.path() == path)
}

macro_rules! keys {
    ($($change:ident $first:ident$(.$field:ident)* $(=> $placeholder:literal)?;)*) => {
        &[$(SettingKey {
            fields: &[stringify!($first), $(stringify!($field)),*],
            change: KeyChange::$change,
            placeholder: keys!(@optional $($placeholder)?),
            get: |it| &it.$first$(.$field)*,
            get_mut: |it| &mut it.$first$(.$field)*,
            is_equal: |one, other| one.$first$(.$field)* == other.$first$(.$field)*,
            copy: |from, to| to.$first$(.$field)*.clone_from(&from.$first$(.$field)*),
        }),*]
    };
    (@optional) => { None };
    (@optional $value:literal) => { Some($value) };
}

/// The keys of `[pool]`, without those of databases and users.
pub(crate) const KEYS: &[SettingKey<Config>] = keys![
    Restart listen.addresses;
    Restart listen.port;
    Restart listen.unix_directories;
    Restart listen.unix_mode;
    Restart listen.unix_group;
    Restart listen.backlog;
    Restart listen.defer_accept;
    Restart listen.takeover;
    Reload listen.proxy_from;
    Set peers;
    Restart workers;
    Restart os_user;
    Set mode;
    Set sizes.pool;
    Set sizes.min;
    Set sizes.reserve;
    Set limits.clients;
    Set limits.logins;
    Set limits.clients_per_database;
    Set limits.clients_per_user;
    Set limits.servers_per_database;
    Set limits.servers_per_user;
    Reload limits.servers_per_host;
    Set limits.message_bytes;
    Set timeouts.client_login;
    Set timeouts.client_startup;
    Set timeouts.client_idle;
    Set timeouts.query_wait;
    Set timeouts.query_wait_notify;
    Set timeouts.query;
    Set timeouts.transaction;
    Set timeouts.idle_transaction;
    Set timeouts.cancel_wait;
    Set timeouts.reserve_wait;
    Set timeouts.server_connect;
    Set timeouts.server_login_retry;
    Set timeouts.server_idle;
    Set timeouts.server_lifetime;
    Set timeouts.server_check_delay;
    Set timeouts.dns_max_ttl;
    Set timeouts.shutdown_delay;
    Set timeouts.shutdown;
    Set timeouts.pool_idle;
    Set timeouts.autodb_idle;
    Set timeouts.suspend;
    Set timeouts.server_fast_close;
    Set auth.method;
    Set auth.file;
    Set auth.hba_file;
    Set auth.ident_file;
    // The contents of the two files above, which are no key of their own.
    Reload auth.hba;
    Set auth.user;
    Set auth.dbname;
    Set auth.query;
    Set auth.scram_iterations;
    Set auth.pass_through;
    Set auth.pass_through_recheck;
    Set auth.login_notice;
    Set tls.client.mode;
    Set tls.client.certificate;
    Set tls.client.key;
    Set tls.client.ca_file;
    Set tls.client.min_version;
    Set tls.client.max_version;
    Set tls.client.ciphers;
    Set tls.client.tls13_ciphers;
    Set tls.server.mode;
    Set tls.server.certificate;
    Set tls.server.key;
    Set tls.server.ca_file;
    Set tls.server.min_version;
    Set tls.server.max_version;
    Set tls.server.ciphers;
    Set tls.server.tls13_ciphers;
    Set tracked_parameters;
    Set ignored_startup_parameters;
    Set reset_query;
    Set reset_query_always;
    Set max_prepared_statements;
    Set check_query;
    Set round_robin;
    Set application_name;
    Set simple_queries;
    Set shutdown_mode;
    Reload allow_cleartext_password;
    Set log.connections;
    Set log.disconnections;
    Set log.pooler_errors;
    Set log.stats;
    Set log.stats_period;
    Set adaptive.stateless_functions;
    Set adaptive.pinned_max;
    Set adaptive.pinned_idle;
    Set adaptive.pinned_time;
    Restart log.file;
    Restart log.pid_file;
    Restart log.syslog;
    Restart log.syslog_name;
    Restart log.syslog_facility;
    Reload notifications.enabled;
    Reload notifications.client_bytes;
    Reload capture.path;
    Restart capture.start;
    Reload capture.copy;
    Reload capture.copy_bytes_max;
    Reload capture.results;
    Reload capture.redact;
    Reload capture.redact_key;
    Reload capture.buffer_bytes;
    Reload capture.file_bytes;
    Reload capture.file_time;
    Restart tcp.keepalive;
    Restart tcp.keepalive_idle;
    Restart tcp.keepalive_interval;
    Restart tcp.keepalive_count;
    Restart tcp.user_timeout;
    Restart tcp.buffer_bytes;
    Set admin_users;
    Set stats_users;
];

/// The keys of an entry of `databases`.
pub(crate) const DATABASE_KEYS: &[SettingKey<DatabaseConfig>] = keys![
    Reload hosts;
    Reload port;
    Reload local_socket => "a directory";
    Reload dbname;
    Reload user;
    Reload secret;
    Reload allow_cleartext_password;
    Reload mode;
    Reload pool_size;
    Reload min_size;
    Reload reserve_size;
    Reload max_servers;
    Reload max_clients;
    Reload weight;
    Reload server_lifetime;
    Reload query_wait_timeout;
    Reload load_balance_hosts;
    Reload connect_query => "a query";
    Reload auth_user;
    Reload auth_dbname;
    Reload auth_query;
    Reload parameters;
    Reload servers;
    Reload cluster.strategy;
    Reload cluster.role;
    Reload cluster.ban;
    Reload cluster.slow_start;
    Reload cluster.check_failure_timeout;
    Reload cluster.check_interval;
    Reload cluster.check_timeout;
    Reload cluster.check_user;
    Reload cluster.max_lag;
    Reload cluster.max_lag_bytes;
    Reload cluster.require_same_system_identifier;
    Reload cluster.primary_rejoin_delay;
    Reload cluster.failover_timeout;
    Reload routing.primary_reads;
    Reload routing.read_your_writes;
    Reload routing.hints;
    Reload routing.hint_names.shard;
    Reload routing.hint_names.key;
    Reload routing.hint_names.role;
    Reload routing.read_only_functions;
    Reload routing.writing_functions;
    Reload sharding.key;
    Reload sharding.hash;
    Reload sharding.tables;
    Reload sharding.default;
    Reload sharding.collation;
    Reload shards;
    Reload mirrors;
];

/// The keys of an entry of `users`.
pub(crate) const USER_KEYS: &[SettingKey<UserConfig>] = keys![
    Reload secret;
    Reload secret_command => "a command";
    Reload secret_lifetime;
    Reload secret_file;
    Reload mode;
    Reload pool_size;
    Reload reserve_size;
    Reload max_servers;
    Reload max_clients;
    Reload query_timeout;
    Reload query_wait_timeout;
    Reload transaction_timeout;
    Reload idle_transaction_timeout;
    Reload client_idle_timeout;
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde::de::DeserializeOwned;

    use super::*;

    /// Adds the paths of all fields of the settings `T`. A struct lists its fields in the error for
    /// an unknown one; any other value has another error.
    fn list_fields<T: DeserializeOwned>(path: &str, found: &mut BTreeSet<String>) {
        let text = format!("{path}'?' = 1");
        let error = toml::from_str::<T>(&text).err().expect("an error").message().to_owned();
        let Some(fields) = error.strip_prefix("unknown field `?`, expected ") else {
            found.insert(path.trim_end_matches('.').to_owned());
            return;
        };
        for field in fields.split('`').skip(1).step_by(2) {
            list_fields::<T>(&format!("{path}{field}."), found);
        }
    }

    #[track_caller]
    fn assert_complete<T: DeserializeOwned>(keys: &[SettingKey<T>], others: &[&str]) {
        let mut fields = BTreeSet::new();
        list_fields::<T>("", &mut fields);
        others.iter().for_each(|other| assert!(fields.remove(*other), "{other}"));
        let rows: BTreeSet<_> = keys.iter().map(SettingKey::path).collect();
        assert_eq!(rows.len(), keys.len(), "a key has two rows");
        let missing: Vec<_> = fields.difference(&rows).collect();
        assert!(missing.is_empty(), "fields without a row: {missing:?}");
        let unknown: Vec<_> = rows.difference(&fields).filter(|row| *row != "auth.hba").collect();
        assert!(unknown.is_empty(), "rows without a field: {unknown:?}");
    }

    #[test]
    fn every_field_has_a_row_and_every_row_a_field() {
        assert_complete(KEYS, &["databases", "users"]);
        assert_complete(DATABASE_KEYS, &[]);
        assert_complete(USER_KEYS, &[]);
    }

    #[test]
    fn every_key_is_in_the_reference_and_in_the_example() {
        fn names<T>(keys: &[SettingKey<T>]) -> impl Iterator<Item = String> {
            keys.iter().map(SettingKey::path).filter(|path| path != "auth.hba")
        }
        let last = |path: &str| {
            let path = if path.contains(".hint-names.") { "routing.hint-names" } else { path };
            path.rsplit('.').next().unwrap_or(path).to_owned()
        };
        let reference = include_str!("../../../docs/src/reference/pool.md");
        for path in names(KEYS).chain(names(DATABASE_KEYS)).chain(names(USER_KEYS)) {
            let is_explained = reference.contains(&format!("`{}`", last(&path)));
            assert!(is_explained, "{path} is not in the reference");
        }
        for path in names(KEYS) {
            let is_shown = crate::EXAMPLE.contains(&format!("{} = ", last(&path)));
            assert!(is_shown, "{path} is not in the example");
        }
    }

    #[test]
    fn every_key_for_set_can_be_set() {
        let mut config = Config::default();
        for key in KEYS.iter().filter(|key| key.change == KeyChange::Set) {
            for notation in [Notation::Howdah, Notation::PgBouncer] {
                let error = (key.get_mut)(&mut config).set("?", notation).err();
                assert_ne!(error.as_deref(), Some(value::NOT_SETTABLE), "{}", key.path());
            }
        }
    }

    #[test]
    fn secret_is_never_shown() {
        let secret = Some(crate::StoredSecret::parse("sesame"));
        let user = UserConfig { secret: secret.clone(), ..UserConfig::default() };
        let mut mirror = crate::MirrorEntry::new("m".to_owned(), None);
        mirror.secret.clone_from(&secret);
        let (mirrors, connect_query) = (vec![mirror], Some("set x = 'sesame'".to_owned()));
        let database =
            DatabaseConfig { secret, mirrors, connect_query, ..DatabaseConfig::default() };
        let config = Config {
            databases: [("d".to_owned(), database)].into(),
            users: [("u".to_owned(), user)].into(),
            ..Config::default()
        };
        let mut without = config.clone();
        without.databases.insert("d".to_owned(), DatabaseConfig::default());
        without.users.insert("u".to_owned(), UserConfig::default());
        for changes in [config.diff(&without), without.diff(&config)] {
            let shown: Vec<_> = changes.iter().map(ToString::to_string).collect();
            assert_eq!(shown.len(), 4, "{shown:?}");
            assert!(!shown.concat().contains("sesame"), "{shown:?}");
        }
    }
}
