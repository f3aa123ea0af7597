//! Differences between two configurations, key by key. Values of secrets are not shown.
//!
//! The key lists below destructure each struct completely: the compiler rejects a list that lacks a
//! new field.

use std::{
    collections::BTreeMap,
    fmt,
    num::{NonZeroU32, NonZeroU64, NonZeroUsize},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use howdah_connect::{SslMode, tls::TlsVersion};
use howdah_route::RolePreference;

use super::{
    ApplicationName, AuthConfig, AuthMethod, CaptureConfig, ClusterConfig, Config, CopyCapture,
    DatabaseConfig, DefaultShardSetting, HintConfig, KeyedTables, LimitConfig, ListenConfig,
    LoadBalanceHosts, LogConfig, MirrorEntry, NotificationConfig, PoolMode, ProxySource,
    RoutingConfig, ServerEntry, ShardCollation, ShardEntry, ShardHash, ShardKeyValue,
    ShardingConfig, ShutdownMode, SizeConfig, StoredSecret, Strategy, TcpConfig, TimeoutConfig,
    TlsConfig, TlsSideConfig, UserConfig,
};
use crate::hba::Hba;

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
        self.compare(now, "", &mut changes);
        for change in &mut changes {
            change.needs_restart = needs_restart(&change.key);
            // A connect query may contain secrets.
            if change.key.ends_with(".connect-query") {
                change.before = Some("a query".to_owned());
                change.now.clone_from(&change.before);
            }
        }
        changes
    }

    /// Restores the values of `before` for keys that need a restart to change.
    pub fn retain_restart_keys(&mut self, before: &Self) {
        let proxy_from = std::mem::take(&mut self.listen.proxy_from);
        self.listen = ListenConfig { proxy_from, ..before.listen.clone() };
        self.workers = before.workers;
        self.os_user.clone_from(&before.os_user);
        self.capture.start = before.capture.start;
        self.tcp = before.tcp;
    }
}

/// Whether a change of the key takes effect only after a restart.
pub(crate) fn needs_restart(key: &str) -> bool {
    let is_socket = key.starts_with("listen.") && key != "listen.proxy-from";
    let is_process = ["workers", "os-user", "capture.start"].contains(&key);
    is_process || is_socket || key.starts_with("tcp.")
}

/// A part of the configuration that can be compared with its later version.
trait Compare {
    /// Adds the differences between `self` and `now` to `changes`; `key` is the path of `self`.
    fn compare(&self, now: &Self, key: &str, changes: &mut Vec<ConfigChange>);
}

/// A value that a [`ConfigChange`] can show.
trait DisplayValue {
    fn display_value(&self) -> Option<String>;
}

impl<T: DisplayValue + PartialEq> Compare for T {
    fn compare(&self, now: &Self, key: &str, changes: &mut Vec<ConfigChange>) {
        if self != now {
            // An unset value is shown as "not set", since `None` would mean a removed key.
            let text = |value: &Self| value.display_value().unwrap_or_else(|| "not set".to_owned());
            let (before, now) = (Some(text(self)), Some(text(now)));
            changes.push(ConfigChange { key: key.to_owned(), before, now, needs_restart: false });
        }
    }
}

/// Implements `Compare` for each listed struct, field by field. Keys are named after their fields;
/// fields after a semicolon are not keys.
macro_rules! by_fields {
    ($($type:ty => $name:ident { $($field:ident),* $(,)? $(; $hidden:ident)* })*) => {$(
        impl Compare for $type {
            fn compare(&self, now: &Self, key: &str, changes: &mut Vec<ConfigChange>) {
                let $name { $($field,)* $($hidden: _,)* } = self;
                $($field.compare(&now.$field, &child_key(key, stringify!($field)), changes);)*
            }
        }
    )*};
}

by_fields! {
    Config => Config {
        listen, workers, os_user, mode, sizes, limits, timeouts, auth, tls, tracked_parameters,
        ignored_startup_parameters, reset_query, reset_query_always, max_prepared_statements,
        check_query, round_robin, application_name, simple_queries, shutdown_mode,
        allow_cleartext_password, log, notifications, capture,
        tcp, databases, users, admin_users,
        stats_users,
    }
    ListenConfig => ListenConfig {
        addresses, port, unix_directories, unix_mode, unix_group, backlog, defer_accept, takeover,
        proxy_from,
    }
    SizeConfig => SizeConfig { pool, min, reserve }
    LimitConfig => LimitConfig {
        clients, logins, clients_per_database, clients_per_user, servers_per_database, servers_per_user,
        servers_per_host,
        message_bytes,
    }
    TimeoutConfig => TimeoutConfig {
        client_login, client_startup, client_idle, query_wait, query_wait_notify, query, transaction,
        idle_transaction, cancel_wait, reserve_wait, server_connect, server_login_retry, server_idle,
        server_lifetime, server_check_delay, dns_max_ttl, shutdown_delay, shutdown, pool_idle,
        autodb_idle, suspend,
    }
    AuthConfig => AuthConfig {
        method, file, hba_file, ident_file, hba, user, dbname, query, scram_iterations,
    }
    LogConfig => LogConfig { connections, disconnections, pooler_errors, stats, stats_period }
    NotificationConfig => NotificationConfig { enabled, client_bytes }
    CaptureConfig => CaptureConfig {
        path, start, copy, copy_bytes_max, redact, redact_key, buffer_bytes, file_bytes, file_time,
    }
    TcpConfig => TcpConfig {
        keepalive, keepalive_idle, keepalive_interval, keepalive_count, user_timeout, buffer_bytes,
    }
    TlsConfig => TlsConfig { client, server }
    TlsSideConfig => TlsSideConfig { mode, certificate, key, ca_file, min_version, max_version }
    DatabaseConfig => DatabaseConfig {
        hosts, port, dbname, user, secret, allow_cleartext_password, mode, pool_size, min_size, reserve_size, max_servers,
        max_clients, weight, server_lifetime, query_wait_timeout, load_balance_hosts, connect_query,
        auth_user, auth_dbname, auth_query, parameters, servers, cluster, routing, sharding, shards,
        mirrors,
    }
    RoutingConfig => RoutingConfig {
        primary_reads, read_your_writes, hints, hint_names, read_only_functions, writing_functions,
    }
    HintConfig => HintConfig { shard, key, role }
    ShardingConfig => ShardingConfig { key, hash, tables, default, collation }
    ClusterConfig => ClusterConfig {
        strategy, role, ban, slow_start, check_failure_timeout, check_interval, check_timeout, check_user, max_lag,
        max_lag_bytes, require_same_system_identifier, primary_rejoin_delay, failover_timeout,
    }
    UserConfig => UserConfig {
        secret, mode, pool_size, reserve_size, max_servers, max_clients, query_timeout,
        query_wait_timeout, transaction_timeout, idle_transaction_timeout, client_idle_timeout;
        secret_is_listed
    }
}

impl<T: Compare + NamedEntry> Compare for BTreeMap<String, T> {
    fn compare(&self, now: &Self, key: &str, changes: &mut Vec<ConfigChange>) {
        let mut add = |name: &str, before: Option<String>, now: Option<String>| {
            let key = format!("{key}.{name}");
            changes.push(ConfigChange { key, before, now, needs_restart: false });
        };
        for name in self.keys().filter(|name| !now.contains_key(*name)) {
            add(name, Some(String::new()), None);
        }
        for name in now.keys().filter(|name| !self.contains_key(*name)) {
            add(name, None, Some(String::new()));
        }
        for (name, before) in self {
            if let Some(now) = now.get(name) {
                before.compare(now, &format!("{key}.{name}"), changes);
            }
        }
    }
}

/// Marks the entry type of a map whose entries are compared by name.
trait NamedEntry {}
impl NamedEntry for DatabaseConfig {}
impl NamedEntry for UserConfig {}

/// Returns the path of a key below another. Keys are named like their fields, except `type`, whose
/// field is `method`.
fn child_key(key: &str, field: &str) -> String {
    let field = if field == "method" { "type".to_owned() } else { field.replace('_', "-") };
    if key.is_empty() { field } else { format!("{key}.{field}") }
}

macro_rules! display_values {
    ($($type:ty: $value:ident => $text:expr),* $(,)?) => {$(
        impl DisplayValue for $type {
            fn display_value(&self) -> Option<String> {
                let $value = self;
                Some($text)
            }
        }
    )*};
}

display_values! {
    bool: it => it.to_string(),
    u16: it => it.to_string(),
    u32: it => it.to_string(),
    NonZeroU32: it => it.to_string(),
    NonZeroUsize: it => it.to_string(),
    NonZeroU64: it => it.to_string(),
    Strategy: it => it.as_str().to_owned(),
    RolePreference: it => it.as_str().to_owned(),
    ShardHash: it => match it {
        ShardHash::Postgresql => "postgresql".to_owned(),
        ShardHash::Sha1 => "sha1".to_owned(),
    },
    ShardCollation: it => match it {
        ShardCollation::Unknown => "unknown".to_owned(),
        ShardCollation::Bytes => "bytes".to_owned(),
    },
    DefaultShardSetting: it => match it {
        DefaultShardSetting::Shard(shard) => shard.to_string(),
        DefaultShardSetting::Keyword(word) => word.clone(),
    },
    KeyedTables: it => {
        it.0.iter().map(|(name, key)| format!("{name} ({})", key.join(", "))).collect::<Vec<_>>().join(" ")
    },
    Vec<ShardEntry>: it => it.iter().map(format_shard).collect::<Vec<_>>().join("; "),
    Vec<MirrorEntry>: it => it.iter().map(format_mirror).collect::<Vec<_>>().join(", "),
    Vec<ServerEntry>: it => it.iter().map(format_server).collect::<Vec<_>>().join(", "),
    String: it => format!("{it:?}"),
    PathBuf: it => format!("{:?}", it.display().to_string()),
    Duration: it => format!("{it:?}"),
    PoolMode: it => it.as_str().to_owned(),
    ShutdownMode: it => it.as_str().to_owned(),
    AuthMethod: it => it.as_str().to_owned(),
    CopyCapture: it => it.as_str().to_owned(),
    LoadBalanceHosts: it => format!("{it:?}").to_lowercase(),
    SslMode: it => it.as_str().to_owned(),
    TlsVersion: it => it.as_str().to_owned(),
    StoredSecret: _it => "a secret".to_owned(),
    Arc<Hba>: _it => "rules".to_owned(),
    ApplicationName: it => format!("{:?}", it.to_string()),
    Vec<ProxySource>: it => format!("{it:?}"),
    Vec<String>: it => it.join(", "),
    Vec<PathBuf>: it => it.iter().map(|it| it.display().to_string()).collect::<Vec<_>>().join(", "),
    BTreeMap<String, String>: it => {
        it.iter().map(|(name, value)| format!("{name}={value:?}")).collect::<Vec<_>>().join(" ")
    },
}

fn format_server(entry: &ServerEntry) -> String {
    let port = entry.port.map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}{port} ({}, weight {})", entry.host, entry.role.as_str(), entry.weight)
}

fn format_mirror(entry: &MirrorEntry) -> String {
    let MirrorEntry { host, port, dbname, user, sample_rate, pool_size, .. } = entry;
    let MirrorEntry { secret, client_bytes, buffer_bytes, timeout, .. } = entry;
    let port = port.map(|port| format!(":{port}")).unwrap_or_default();
    let word = |name: &str, value: &Option<String>| {
        value.as_ref().map(|value| format!(", {name} {value:?}")).unwrap_or_default()
    };
    let (dbname, user) = (word("dbname", dbname), word("user", user));
    let secret = if secret.is_some() { ", a secret" } else { "" };
    format!(
        "{host}{port} (sample-rate {sample_rate}{dbname}{user}{secret}, pool-size {pool_size}, client-bytes \
         {client_bytes}, buffer-bytes {buffer_bytes}, timeout {timeout:?})"
    )
}

fn format_shard(entry: &ShardEntry) -> String {
    let ShardEntry { servers, dbname, values, rest, from, to } = entry;
    let mut text = servers.iter().map(format_server).collect::<Vec<_>>().join(", ");
    let mut add = |name: &str, value: String| text.push_str(&format!(" {name} {value}"));
    let value = |value: &ShardKeyValue| match value {
        ShardKeyValue::Number(number) => number.to_string(),
        ShardKeyValue::Text(text) => format!("{text:?}"),
    };
    dbname.iter().for_each(|name| add("dbname", format!("{name:?}")));
    values.iter().for_each(|it| add("value", value(it)));
    from.iter().for_each(|it| add("from", value(it)));
    to.iter().for_each(|it| add("to", value(it)));
    if *rest {
        add("and", "the rest".to_owned());
    }
    text
}

impl<T: DisplayValue> DisplayValue for Option<T> {
    fn display_value(&self) -> Option<String> {
        self.as_ref().and_then(T::display_value)
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
