//! Reads the entries of `[databases]` and `[users]`: a name and a list of `key=value` pairs.

use super::{
    super::{
        ANY_DATABASE, Config, DatabaseConfig, LoadBalanceHosts, PeerAddress, SECRET_BYTES_MAX,
        StoredSecret, UserConfig,
        keys::{self, KeyValue as _, Notation, SettingKey},
        pairs,
    },
    IniKeyResult,
    keys::unknown,
};

/// Keys that an entry of `[databases]` may have, and the keys of `[pool.databases.NAME]` that they
/// set.
pub const DATABASE_KEYS: &[(&str, &str)] = &[
    ("application_name", "parameters"),
    ("auth_dbname", "auth-dbname"),
    ("auth_query", "auth-query"),
    ("auth_user", "auth-user"),
    ("client_encoding", "parameters"),
    ("connect_query", "connect-query"),
    ("datestyle", "parameters"),
    ("dbname", "dbname"),
    ("host", "hosts"),
    ("load_balance_hosts", "load-balance-hosts"),
    ("max_db_client_connections", "max-clients"),
    ("max_db_connections", "max-servers"),
    ("min_pool_size", "min-size"),
    ("password", "secret"),
    ("pool_mode", "mode"),
    ("pool_size", "pool-size"),
    ("port", "port"),
    ("query_wait_timeout", "query-wait-timeout"),
    ("reserve_pool", "reserve-size"),
    ("reserve_pool_size", "reserve-size"),
    ("server_lifetime", "server-lifetime"),
    ("timezone", "parameters"),
    ("user", "user"),
];

/// Reads a line of `[databases]` into an entry of `config.databases`.
pub(super) fn database(config: &mut Config, name: &str, text: &str) -> IniKeyResult {
    let name = unquoted(name);
    let mut database = DatabaseConfig::default();
    let mut warning = None;
    for (key, value) in pairs::parse(text).map_err(|error| error.to_string())? {
        let result = database_key(&mut database, key, &value);
        warning = result.map_err(|why| format!("{key}: {why}"))?.or(warning);
    }
    if name == ANY_DATABASE && database.dbname.is_some() && database.user.is_none() {
        warning = Some("all names refer to the same database of the server");
    }
    config.databases.insert(name, database);
    Ok(warning)
}

fn database_key(database: &mut DatabaseConfig, key: &str, value: &str) -> IniKeyResult {
    let own = || value.to_owned();
    match key {
        // An empty name or query is not a missing one.
        "dbname" => database.dbname = Some(own()),
        "user" => database.user = Some(own()),
        "connect_query" => database.connect_query = Some(own()),
        "password" if value.len() > SECRET_BYTES_MAX => {
            return Err("the secret is longer than 65,530 bytes".to_owned());
        }
        "password" => database.secret = Some(StoredSecret::parse(value)),
        // With 0, each connection is used only once.
        "server_lifetime" => {
            database.server_lifetime.get_or_insert_default().set(value, Notation::PgBouncer)?;
        }
        "load_balance_hosts" => {
            database.load_balance_hosts = match value {
                "round-robin" => LoadBalanceHosts::RoundRobin,
                "disable" => LoadBalanceHosts::First,
                _ => return Err(format!("{value:?} is neither round-robin nor disable")),
            }
        }
        "client_encoding" | "datestyle" | "timezone" | "application_name" => {
            database.parameters.insert(key.to_owned(), own());
        }
        _ => entry_key(database, DATABASE_KEYS, keys::DATABASE_KEYS, key, value)?,
    }
    Ok(None)
}

/// Sets the key of an entry that corresponds to `name`, one of PgBouncer's.
fn entry_key<T>(
    entry: &mut T,
    names: &[(&'static str, &'static str)],
    keys: &'static [SettingKey<T>],
    name: &str,
    value: &str,
) -> Result<(), String> {
    let target = names.iter().find(|(known, _)| *known == name);
    match target.and_then(|(_, path)| keys::find(keys, path)) {
        Some(key) => (key.get_mut)(entry).set(value, Notation::PgBouncer),
        None => Err(unknown(name, names.iter().map(|(name, _)| *name))),
    }
}

/// Keys that an entry of `[users]` may have, and the keys of `[pool.users.NAME]` that they set.
pub const USER_KEYS: &[(&str, &str)] = &[
    ("client_idle_timeout", "client-idle-timeout"),
    ("idle_transaction_timeout", "idle-transaction-timeout"),
    ("max_user_client_connections", "max-clients"),
    ("max_user_connections", "max-servers"),
    ("pool_mode", "mode"),
    ("pool_size", "pool-size"),
    ("query_timeout", "query-timeout"),
    ("query_wait_timeout", "query-wait-timeout"),
    ("reserve_pool_size", "reserve-size"),
    ("transaction_timeout", "transaction-timeout"),
];

/// Reads a line of `[users]` into an entry of `config.users`.
pub(super) fn user(config: &mut Config, name: &str, text: &str) -> IniKeyResult {
    let mut user = UserConfig::default();
    for (key, value) in pairs::parse(text).map_err(|error| error.to_string())? {
        entry_key(&mut user, USER_KEYS, keys::USER_KEYS, key, &value)
            .map_err(|why| format!("{key}: {why}"))?;
    }
    config.users.insert(unquoted(name), user);
    Ok(None)
}

/// Keys that an entry of `[peers]` may have.
const PEER_KEYS: [&str; 3] = ["host", "port", "pool_size"];

/// PgBouncer's default for the port of a peer.
const PEER_PORT: u16 = 6432;

/// Reads a line of `[peers]` into `config.peers`.
pub(super) fn peer(config: &mut Config, number: &str, text: &str) -> IniKeyResult {
    let number = number.parse::<u16>().ok().filter(|number| *number > 0);
    let number = number.ok_or("the number of a peer must be from 1 to 65535")?;
    let (mut host, mut port, mut warning) = (None, PEER_PORT, None);
    for (key, value) in pairs::parse(text).map_err(|error| error.to_string())? {
        match key {
            "host" => host = Some(value),
            "port" => {
                let wrong = || format!("port: {value:?} is not a port from 1 to 65535");
                port = value.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?;
            }
            "pool_size" => {
                value
                    .parse::<i32>()
                    .map_err(|_| format!("pool_size: {value:?} is not a number"))?;
                warning =
                    Some("pool_size has no effect: requests to a peer are limited to 8 at once");
            }
            _ => return Err(format!("{key}: {}", unknown(key, PEER_KEYS.into_iter()))),
        }
    }
    let host = host.filter(|host| !host.is_empty()).ok_or("host is missing")?;
    if host.contains(char::is_whitespace) || host.contains(',') {
        return Err(format!("host: {host:?} is not a host"));
    }
    config.peers.insert(number, PeerAddress { host, port: Some(port) });
    Ok(warning)
}

/// Removes the double quotes around an SQL identifier, if there are any.
pub(super) fn unquoted(name: &str) -> String {
    let inner = name.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    inner.map_or_else(|| name.to_owned(), |inner| inner.replace("\"\"", "\""))
}

#[test]
fn target_of_each_key_is_a_key_of_the_entry() {
    for (name, path) in DATABASE_KEYS {
        assert!(keys::find(keys::DATABASE_KEYS, path).is_some(), "{name}");
    }
    for (name, path) in USER_KEYS {
        assert!(keys::find(keys::USER_KEYS, path).is_some(), "{name}");
    }
}
