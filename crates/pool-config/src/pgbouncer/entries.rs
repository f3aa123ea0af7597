//! Reads the entries of `[databases]` and `[users]`: a name and a list of `key=value` pairs.

use super::{
    super::{
        ANY_DATABASE, Config, DatabaseConfig, LoadBalanceHosts, SECRET_BYTES_MAX, StoredSecret,
        UserConfig, pairs,
    },
    IniKeyResult,
    keys::{non_empty, number, pool_mode, port, seconds, timeout, unknown},
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
        "host" => {
            let hosts = value.split(',').map(str::trim).filter(|host| !host.is_empty());
            database.hosts = hosts.map(str::to_owned).collect();
        }
        "port" => database.port = port(value)?,
        "dbname" => database.dbname = Some(own()),
        "user" => database.user = Some(own()),
        "password" if value.len() > SECRET_BYTES_MAX => {
            return Err("the secret is longer than 65,530 bytes".to_owned());
        }
        "password" => database.secret = Some(StoredSecret::parse(value)),
        "pool_mode" => database.mode = Some(pool_mode(value)?),
        "pool_size" => database.pool_size = inherited(value)?,
        "min_pool_size" => database.min_size = inherited(value)?,
        "reserve_pool" | "reserve_pool_size" => database.reserve_size = inherited(value)?,
        "max_db_connections" => database.max_servers = inherited(value)?,
        "max_db_client_connections" => database.max_clients = inherited(value)?,
        "server_lifetime" => database.server_lifetime = Some(seconds(value)?),
        "query_wait_timeout" => {
            timeout(database.query_wait_timeout.get_or_insert_default(), value)?;
        }
        "load_balance_hosts" => {
            database.load_balance_hosts = match value {
                "round-robin" => LoadBalanceHosts::RoundRobin,
                "disable" => LoadBalanceHosts::First,
                _ => return Err(format!("{value:?} is neither round-robin nor disable")),
            }
        }
        "connect_query" => database.connect_query = Some(own()),
        "client_encoding" | "datestyle" | "timezone" | "application_name" => {
            database.parameters.insert(key.to_owned(), own());
        }
        "auth_user" => database.auth_user = non_empty(value),
        "auth_dbname" => database.auth_dbname = non_empty(value),
        "auth_query" => database.auth_query = non_empty(value),
        _ => return Err(unknown(key, DATABASE_KEYS.iter().map(|(name, _)| *name))),
    }
    Ok(None)
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
        user_key(&mut user, key, &value).map_err(|why| format!("{key}: {why}"))?;
    }
    config.users.insert(unquoted(name), user);
    Ok(None)
}

fn user_key(user: &mut UserConfig, key: &str, value: &str) -> Result<(), String> {
    match key {
        "pool_mode" => user.mode = Some(pool_mode(value)?),
        "pool_size" => user.pool_size = inherited(value)?,
        "reserve_pool_size" => user.reserve_size = inherited(value)?,
        "max_user_connections" => user.max_servers = inherited(value)?,
        "max_user_client_connections" => user.max_clients = inherited(value)?,
        "query_timeout" => timeout(user.query_timeout.get_or_insert_default(), value)?,
        "query_wait_timeout" => timeout(user.query_wait_timeout.get_or_insert_default(), value)?,
        "transaction_timeout" => timeout(user.transaction_timeout.get_or_insert_default(), value)?,
        "idle_transaction_timeout" => {
            timeout(user.idle_transaction_timeout.get_or_insert_default(), value)?;
        }
        "client_idle_timeout" => timeout(user.client_idle_timeout.get_or_insert_default(), value)?,
        _ => return Err(unknown(key, USER_KEYS.iter().map(|(name, _)| *name))),
    }
    Ok(())
}

/// Parses a number; `None` for -1, which means that the value of `[pgbouncer]` applies.
fn inherited(value: &str) -> Result<Option<u32>, String> {
    if value == "-1" { Ok(None) } else { number(value).map(Some) }
}

/// Removes the double quotes around an SQL identifier, if there are any.
pub(super) fn unquoted(name: &str) -> String {
    let inner = name.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    inner.map_or_else(|| name.to_owned(), |inner| inner.replace("\"\"", "\""))
}
