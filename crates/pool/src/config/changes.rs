//! What is different in settings that were read again, key by key; values of secrets are not shown.
//!
//! The lists of keys below take structs apart by their fields, so a new field that is missing there does
//! not compile.

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
    ApplicationName, Auth, AuthMethod, Capture, ClusterSettings, Config, CopyCapture, Database,
    Hints, KeyedTables, Limits, Listen, LoadBalanceHosts, Log, MirrorEntry, Notifications, Place,
    PoolMode, ProxySource, Routing, ServerEntry, ShardEntry, ShardHash, Sharding, ShutdownMode,
    Sizes, StoredSecret, Tcp, TextOrder, Timeouts, Tls, TlsLeg, User, Value,
};
use crate::{cluster::Strategy, hba::Hba};

/// A key whose value is another than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key's path below `[pool]`.
    pub key: String,
    /// The value before; `None` if there was none.
    pub before: Option<String>,
    /// The value now; `None` if there is none any more.
    pub now: Option<String>,
    /// Whether it takes effect at the next start only, so that all is as before.
    pub needs_restart: bool,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.before, &self.now) {
            (Some(before), Some(now)) if before == now => write!(f, "{}: another one", self.key)?,
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
    /// What is different in `now`.
    pub fn changes(&self, now: &Self) -> Vec<Change> {
        let mut changes = Vec::new();
        self.compare(now, "", &mut changes);
        for change in &mut changes {
            change.needs_restart = needs_restart(&change.key);
            // What is run at a login may hold what nobody else is to read.
            if change.key.ends_with(".connect-query") {
                change.before = Some("a query".to_owned());
                change.now.clone_from(&change.before);
            }
        }
        changes
    }

    /// Keeps those of `before` that hold from start to end.
    pub(crate) fn keep_fixed(&mut self, before: &Self) {
        let proxy_from = std::mem::take(&mut self.listen.proxy_from);
        self.listen = Listen { proxy_from, ..before.listen.clone() };
        self.workers = before.workers;
        self.capture.start = before.capture.start;
        self.tcp = before.tcp;
    }
}

/// Whether a key's value holds from start to end.
pub(crate) fn needs_restart(key: &str) -> bool {
    let is_place = key.starts_with("listen.") && key != "listen.proxy-from";
    key == "workers" || key == "capture.start" || is_place || key.starts_with("tcp.")
}

/// Something that may have changed.
trait Compare {
    /// Notes what is different in `now`.
    fn compare(&self, now: &Self, key: &str, changes: &mut Vec<Change>);
}

/// A value, as it is shown; `None` if nothing is set.
trait Shown {
    fn shown(&self) -> Option<String>;
}

impl<T: Shown + PartialEq> Compare for T {
    fn compare(&self, now: &Self, key: &str, changes: &mut Vec<Change>) {
        if self != now {
            // A value that is now not set is told as such, not as a key that is gone.
            let word = |value: &Self| value.shown().unwrap_or_else(|| "not set".to_owned());
            let (before, now) = (Some(word(self)), Some(word(now)));
            changes.push(Change { key: key.to_owned(), before, now, needs_restart: false });
        }
    }
}

/// `Struct { field, … }`: compares by fields, which are named as their keys are; those behind a semicolon
/// are no keys.
macro_rules! by_fields {
    ($($type:ty => $name:ident { $($field:ident),* $(,)? $(; $hidden:ident)* })*) => {$(
        impl Compare for $type {
            fn compare(&self, now: &Self, key: &str, changes: &mut Vec<Change>) {
                let $name { $($field,)* $($hidden: _,)* } = self;
                $($field.compare(&now.$field, &below(key, stringify!($field)), changes);)*
            }
        }
    )*};
}

by_fields! {
    Config => Config {
        listen, workers, mode, sizes, limits, timeouts, auth, tls, tracked_parameters,
        ignored_startup_parameters, reset_query, reset_query_always, max_prepared_statements,
        check_query, round_robin, application_name, simple_queries, shutdown_mode,
        allow_cleartext_password, log, notifications, capture,
        tcp, databases, users, admin_users,
        stats_users,
    }
    Listen => Listen {
        addresses, port, unix_directories, unix_mode, unix_group, backlog, defer_accept, takeover,
        proxy_from,
    }
    Sizes => Sizes { pool, min, reserve }
    Limits => Limits {
        clients, logins, clients_per_database, clients_per_user, servers_per_database, servers_per_user,
        servers_per_host,
        message_bytes,
    }
    Timeouts => Timeouts {
        client_login, client_startup, client_idle, query_wait, query_wait_notify, query, transaction,
        idle_transaction, cancel_wait, reserve_wait, server_connect, server_login_retry, server_idle,
        server_lifetime, server_check_delay, dns_max_ttl, shutdown, pool_idle,
        autodb_idle, suspend,
    }
    Auth => Auth {
        method, file, hba_file, ident_file, hba, user, dbname, query, scram_iterations,
    }
    Log => Log { connections, disconnections, pooler_errors, stats, stats_period }
    Notifications => Notifications { enabled, client_bytes }
    Capture => Capture {
        path, start, copy, copy_bytes_max, redact, redact_key, buffer_bytes, file_bytes, file_time,
    }
    Tcp => Tcp {
        keepalive, keepalive_idle, keepalive_interval, keepalive_count, user_timeout, buffer_bytes,
    }
    Tls => Tls { client, server }
    TlsLeg => TlsLeg { mode, certificate, key, ca_file, min_version, max_version }
    Database => Database {
        hosts, port, dbname, user, secret, allow_cleartext_password, mode, pool_size, min_size, reserve_size, max_servers,
        max_clients, weight, server_lifetime, query_wait_timeout, load_balance_hosts, connect_query,
        auth_user, auth_dbname, auth_query, parameters, servers, cluster, routing, sharding, shards,
        mirrors,
    }
    Routing => Routing {
        primary_reads, read_your_writes, hints, hint_names, read_only_functions, writing_functions,
    }
    Hints => Hints { shard, key, role }
    Sharding => Sharding { key, hash, tables, default, collation }
    ClusterSettings => ClusterSettings {
        strategy, role, ban, slow_start, check_failure_timeout, check_interval, check_timeout, check_user, max_lag,
        max_lag_bytes, require_same_system_identifier, primary_rejoin_delay, failover_timeout,
    }
    User => User {
        secret, mode, pool_size, reserve_size, max_servers, max_clients, query_timeout,
        query_wait_timeout, transaction_timeout, idle_transaction_timeout, client_idle_timeout;
        secret_is_listed
    }
}

impl<T: Compare + Entry> Compare for BTreeMap<String, T> {
    fn compare(&self, now: &Self, key: &str, changes: &mut Vec<Change>) {
        let mut note = |name: &str, before: Option<String>, now: Option<String>| {
            let key = format!("{key}.{name}");
            changes.push(Change { key, before, now, needs_restart: false });
        };
        for name in self.keys().filter(|name| !now.contains_key(*name)) {
            note(name, Some(String::new()), None);
        }
        for name in now.keys().filter(|name| !self.contains_key(*name)) {
            note(name, None, Some(String::new()));
        }
        for (name, before) in self {
            if let Some(now) = now.get(name) {
                before.compare(now, &format!("{key}.{name}"), changes);
            }
        }
    }
}

/// What stands under a name.
trait Entry {}
impl Entry for Database {}
impl Entry for User {}

/// The path of a key below another. The names of fields are those of keys, but for one.
fn below(key: &str, field: &str) -> String {
    let field = if field == "method" { "type".to_owned() } else { field.replace('_', "-") };
    if key.is_empty() { field } else { format!("{key}.{field}") }
}

macro_rules! shown {
    ($($type:ty: $value:ident => $shown:expr),* $(,)?) => {$(
        impl Shown for $type {
            fn shown(&self) -> Option<String> {
                let $value = self;
                Some($shown)
            }
        }
    )*};
}

shown! {
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
    TextOrder: it => match it {
        TextOrder::Unknown => "unknown".to_owned(),
        TextOrder::Bytes => "bytes".to_owned(),
    },
    Place: it => match it {
        Place::Shard(shard) => shard.to_string(),
        Place::Word(word) => word.clone(),
    },
    KeyedTables: it => {
        it.0.iter().map(|(name, key)| format!("{name} ({})", key.join(", "))).collect::<Vec<_>>().join(" ")
    },
    Vec<ShardEntry>: it => it.iter().map(shown_shard).collect::<Vec<_>>().join("; "),
    Vec<MirrorEntry>: it => it.iter().map(shown_mirror).collect::<Vec<_>>().join(", "),
    Vec<ServerEntry>: it => it.iter().map(shown_server).collect::<Vec<_>>().join(", "),
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

fn shown_server(entry: &ServerEntry) -> String {
    let port = entry.port.map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}{port} ({}, weight {})", entry.host, entry.role.as_str(), entry.weight)
}

fn shown_mirror(entry: &MirrorEntry) -> String {
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

fn shown_shard(entry: &ShardEntry) -> String {
    let ShardEntry { servers, dbname, values, rest, from, to } = entry;
    let mut shown = servers.iter().map(shown_server).collect::<Vec<_>>().join(", ");
    let mut add = |name: &str, value: String| shown.push_str(&format!(" {name} {value}"));
    let value = |value: &Value| match value {
        Value::Number(number) => number.to_string(),
        Value::Text(text) => format!("{text:?}"),
    };
    dbname.iter().for_each(|name| add("dbname", format!("{name:?}")));
    values.iter().for_each(|it| add("value", value(it)));
    from.iter().for_each(|it| add("from", value(it)));
    to.iter().for_each(|it| add("to", value(it)));
    if *rest {
        add("and", "the rest".to_owned());
    }
    shown
}

impl<T: Shown> Shown for Option<T> {
    fn shown(&self) -> Option<String> {
        self.as_ref().and_then(T::shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(before: &str, now: &str) -> Vec<String> {
        let read = |text: &str| toml::from_str::<Config>(text).unwrap();
        read(before).changes(&read(now)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_changed_is_named_and_nothing_else() {
        let before = "mode = 'session'\nsizes = { pool = 5 }\n\
                      [databases.shop]\nhosts = ['a']\nsecret = 'sesame'\nuser = 'app'\n\
                      [databases.old]\n[users.me]\nsecret = 'mine'\n";
        assert_eq!(told(before, before), [""; 0]);
        let now = "mode = 'transaction'\nsizes = { pool = 0 }\nworkers = 3\n\
                   timeouts = { query = '1500ms' }\nlisten = { port = 7 }\nauth = { type = 'md5' }\n\
                   [databases.shop]\nhosts = ['a', 'b:1']\nsecret = 'Sesame'\nuser = 'app'\n\
                   pool-size = 9\n[databases.new]\n[users.me]\nsecret = 'yours'\n";
        assert_eq!(
            told(before, now),
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
                "databases.shop.secret: another one",
                "databases.shop.pool-size: not set -> 9",
                "users.me.secret: another one",
            ]
        );
    }
}
