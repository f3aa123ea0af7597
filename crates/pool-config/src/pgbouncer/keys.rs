//! The table of keys of section `[pgbouncer]`, and parsers for their values.

use std::{num::NonZeroU32, time::Duration};

use howdah_connect::{SslMode, tls::TlsVersion};
use howdah_settings::{duration_from_seconds, nearest};

use super::super::{ApplicationName, AuthMethod, Config, PoolMode, TlsSideConfig};

/// A row of the table of `[pgbouncer]` keys.
#[derive(Clone, Copy, Debug)]
pub struct PgbouncerKey {
    /// The key as written in a `pgbouncer.ini`.
    pub name: &'static str,
    /// The `[pool]` key that it sets, or the reason why it is ignored.
    pub effect: KeyEffect,
}

/// The effect of a key on the configuration, if any.
#[derive(Clone, Copy, Debug)]
pub enum KeyEffect {
    /// The key sets a key of `[pool]`.
    Sets(
        /// Path of the `[pool]` key, such as `auth.dbname`.
        &'static str,
        /// Parses the value and stores it in the configuration.
        fn(&mut Config, &str) -> Result<(), String>,
    ),
    /// The key has no effect; the text is the reason, which is logged as a warning.
    Ignored(&'static str),
}

/// Applies a key and its value to `config`.
pub(super) fn apply(config: &mut Config, name: &str, value: &str) -> super::IniKeyResult {
    match KEYS.iter().find(|key| key.name == name).map(|key| key.effect) {
        Some(KeyEffect::Sets(_, set)) => set(config, value).map(|()| None),
        Some(KeyEffect::Ignored(why)) => Ok(Some(why)),
        None => Err(unknown(name, KEYS.iter().map(|key| key.name))),
    }
}

/// Returns the error message for an unknown key, which suggests the most similar known key.
pub(super) fn unknown(name: &str, known: impl Iterator<Item = &'static str>) -> String {
    match nearest(name, known) {
        Some(key) => format!("unknown key (did you mean `{key}`?)"),
        None => "unknown key".to_owned(),
    }
}

const fn sets(
    name: &'static str,
    ours: &'static str,
    set: fn(&mut Config, &str) -> Result<(), String>,
) -> PgbouncerKey {
    PgbouncerKey { name, effect: KeyEffect::Sets(ours, set) }
}

const fn ignored(name: &'static str, why: &'static str) -> PgbouncerKey {
    PgbouncerKey { name, effect: KeyEffect::Ignored(why) }
}

const LOGGING: &str =
    "logging is configured by --log-level and --log-format; the log goes to stderr";
const DNS: &str =
    "names are resolved by the operating system for each new connection and every `dns_max_ttl`";
const CIPHERS: &str = "the defaults of rustls are used, which include no weak ones";

/// All keys of the section, ordered by name.
pub const KEYS: &[PgbouncerKey] = &[
    sets("admin_users", "admin-users", |config, value| list(&mut config.admin_users, value)),
    sets("application_name_add_host", "application-name", |config, value| {
        let mut adds = false;
        flag(&mut adds, value)?;
        config.application_name =
            if adds { Some(ApplicationName::WITH_HOST.parse()?) } else { None };
        Ok(())
    }),
    sets("auth_dbname", "auth.dbname", |config, value| {
        config.auth.dbname = non_empty(value);
        Ok(())
    }),
    sets("auth_file", "auth.file", |config, value| {
        config.auth.file = non_empty(value);
        Ok(())
    }),
    sets("auth_hba_file", "auth.hba-file", |config, value| {
        config.auth.hba_file = non_empty(value);
        Ok(())
    }),
    sets("auth_ident_file", "auth.ident-file", |config, value| {
        config.auth.ident_file = non_empty(value);
        Ok(())
    }),
    ignored("auth_ldap_options", "LDAP is not supported"),
    sets("auth_query", "auth.query", |config, value| {
        config.auth.query = value.to_owned();
        Ok(())
    }),
    sets("auth_type", "auth.type", |config, value| {
        config.auth.method = auth_method(value)?;
        Ok(())
    }),
    sets("auth_user", "auth.user", |config, value| {
        config.auth.user = non_empty(value);
        Ok(())
    }),
    sets("autodb_idle_timeout", "timeouts.autodb-idle", |config, value| {
        timeout(&mut config.timeouts.autodb_idle, value)
    }),
    sets("cancel_wait_timeout", "timeouts.cancel-wait", |config, value| {
        timeout(&mut config.timeouts.cancel_wait, value)
    }),
    sets("client_idle_timeout", "timeouts.client-idle", |config, value| {
        timeout(&mut config.timeouts.client_idle, value)
    }),
    sets("client_login_timeout", "timeouts.client-login", |config, value| {
        timeout(&mut config.timeouts.client_login, value)
    }),
    ignored("client_tls13_ciphers", CIPHERS),
    sets("client_tls_ca_file", "tls.client.ca-file", |config, value| {
        config.tls.client.ca_file = non_empty(value);
        Ok(())
    }),
    sets("client_tls_cert_file", "tls.client.certificate", |config, value| {
        config.tls.client.certificate = non_empty(value);
        Ok(())
    }),
    ignored("client_tls_ciphers", CIPHERS),
    ignored("client_tls_dheparams", CIPHERS),
    ignored("client_tls_ecdhcurve", CIPHERS),
    sets("client_tls_key_file", "tls.client.key", |config, value| {
        config.tls.client.key = non_empty(value);
        Ok(())
    }),
    sets("client_tls_protocols", "tls.client.min-version", |config, value| {
        protocols(&mut config.tls.client, value)
    }),
    sets("client_tls_sslmode", "tls.client.mode", |config, value| {
        config.tls.client.mode = Some(ssl_mode(value)?);
        Ok(())
    }),
    ignored("conffile", "the configuration file is given by -c"),
    sets("default_pool_size", "sizes.pool", |config, value| limit(&mut config.sizes.pool, value)),
    sets("disable_pqexec", "simple-queries", |config, value| {
        let mut disables = false;
        flag(&mut disables, value)?;
        config.simple_queries = !disables;
        Ok(())
    }),
    sets("dns_max_ttl", "timeouts.dns-max-ttl", |config, value| {
        config.timeouts.dns_max_ttl = seconds(value)?;
        Ok(())
    }),
    ignored("dns_nxdomain_ttl", DNS),
    ignored("dns_zone_check_period", DNS),
    sets("idle_transaction_timeout", "timeouts.idle-transaction", |config, value| {
        timeout(&mut config.timeouts.idle_transaction, value)
    }),
    sets("ignore_startup_parameters", "ignored-startup-parameters", |config, value| {
        list(&mut config.ignored_startup_parameters, value)
    }),
    ignored("job_name", "the name of a Windows service"),
    sets("listen_addr", "listen.addresses", |config, value| {
        list(&mut config.listen.addresses, value)
    }),
    sets("listen_backlog", "listen.backlog", |config, value| {
        config.listen.backlog = number(value)?;
        Ok(())
    }),
    sets("listen_port", "listen.port", |config, value| {
        config.listen.port = port(value)?;
        Ok(())
    }),
    sets("log_connections", "log.connections", |config, value| {
        flag(&mut config.log.connections, value)
    }),
    sets("log_disconnections", "log.disconnections", |config, value| {
        flag(&mut config.log.disconnections, value)
    }),
    sets("log_pooler_errors", "log.pooler-errors", |config, value| {
        flag(&mut config.log.pooler_errors, value)
    }),
    sets("log_stats", "log.stats", |config, value| flag(&mut config.log.stats, value)),
    ignored("logfile", LOGGING),
    ignored("login_notify_message", "clients get no notice at login"),
    sets("max_client_conn", "limits.clients", |config, value| {
        config.limits.clients = number(value)?;
        Ok(())
    }),
    sets("max_db_client_connections", "limits.clients-per-database", |config, value| {
        limit(&mut config.limits.clients_per_database, value)
    }),
    sets("max_db_connections", "limits.servers-per-database", |config, value| {
        limit(&mut config.limits.servers_per_database, value)
    }),
    sets("max_packet_size", "limits.message-bytes", |config, value| {
        config.limits.message_bytes = number(value)?;
        Ok(())
    }),
    sets("max_prepared_statements", "max-prepared-statements", |config, value| {
        config.max_prepared_statements = number(value)?;
        Ok(())
    }),
    sets("max_user_client_connections", "limits.clients-per-user", |config, value| {
        limit(&mut config.limits.clients_per_user, value)
    }),
    sets("max_user_connections", "limits.servers-per-user", |config, value| {
        limit(&mut config.limits.servers_per_user, value)
    }),
    sets("min_pool_size", "sizes.min", |config, value| {
        config.sizes.min = number(value)?;
        Ok(())
    }),
    ignored("peer_id", "one process uses every core; there are no peers"),
    ignored("pidfile", "the process stays in the foreground, so its supervisor knows its id"),
    ignored("pkt_buf", "a worker has one buffer for all its connections"),
    sets("pool_idle_timeout", "timeouts.pool-idle", |config, value| {
        timeout(&mut config.timeouts.pool_idle, value)
    }),
    sets("pool_mode", "mode", |config, value| {
        config.mode = pool_mode(value)?;
        Ok(())
    }),
    sets("query_timeout", "timeouts.query", |config, value| {
        timeout(&mut config.timeouts.query, value)
    }),
    sets("query_wait_notify", "timeouts.query-wait-notify", |config, value| {
        timeout(&mut config.timeouts.query_wait_notify, value)
    }),
    sets("query_wait_timeout", "timeouts.query-wait", |config, value| {
        timeout(&mut config.timeouts.query_wait, value)
    }),
    sets("reserve_pool_size", "sizes.reserve", |config, value| {
        config.sizes.reserve = number(value)?;
        Ok(())
    }),
    sets("reserve_pool_timeout", "timeouts.reserve-wait", |config, value| {
        timeout(&mut config.timeouts.reserve_wait, value)
    }),
    ignored("resolv_conf", DNS),
    ignored("sbuf_loopcnt", "connections are served in turn without a limit on loops"),
    sets("scram_iterations", "auth.scram-iterations", |config, value| {
        let iterations = NonZeroU32::new(number(value)?);
        config.auth.scram_iterations = iterations.ok_or("must be at least 1")?;
        Ok(())
    }),
    sets("server_check_delay", "timeouts.server-check-delay", |config, value| {
        config.timeouts.server_check_delay = seconds(value)?;
        Ok(())
    }),
    sets("server_check_query", "check-query", |config, value| {
        config.check_query = match value {
            "" => None,
            "<empty>" => Some(String::new()),
            query => Some(query.to_owned()),
        };
        Ok(())
    }),
    sets("server_connect_timeout", "timeouts.server-connect", |config, value| {
        timeout(&mut config.timeouts.server_connect, value)
    }),
    ignored("server_fast_close", "a session keeps its server until it ends"),
    sets("server_idle_timeout", "timeouts.server-idle", |config, value| {
        timeout(&mut config.timeouts.server_idle, value)
    }),
    sets("server_lifetime", "timeouts.server-lifetime", |config, value| {
        config.timeouts.server_lifetime = seconds(value)?;
        Ok(())
    }),
    sets("server_login_retry", "timeouts.server-login-retry", |config, value| {
        config.timeouts.server_login_retry = seconds(value)?;
        Ok(())
    }),
    sets("server_reset_query", "reset-query", |config, value| {
        config.reset_query = value.to_owned();
        Ok(())
    }),
    sets("server_reset_query_always", "reset-query-always", |config, value| {
        flag(&mut config.reset_query_always, value)
    }),
    sets("server_round_robin", "round-robin", |config, value| flag(&mut config.round_robin, value)),
    ignored("server_tls13_ciphers", CIPHERS),
    sets("server_tls_ca_file", "tls.server.ca-file", |config, value| {
        config.tls.server.ca_file = non_empty(value);
        Ok(())
    }),
    sets("server_tls_cert_file", "tls.server.certificate", |config, value| {
        config.tls.server.certificate = non_empty(value);
        Ok(())
    }),
    ignored("server_tls_ciphers", CIPHERS),
    sets("server_tls_key_file", "tls.server.key", |config, value| {
        config.tls.server.key = non_empty(value);
        Ok(())
    }),
    sets("server_tls_protocols", "tls.server.min-version", |config, value| {
        protocols(&mut config.tls.server, value)
    }),
    sets("server_tls_sslmode", "tls.server.mode", |config, value| {
        config.tls.server.mode = Some(ssl_mode(value)?);
        Ok(())
    }),
    ignored("service_name", "the name of a Windows service"),
    ignored("so_reuseport", "one process uses every core, see workers"),
    sets("stats_period", "log.stats-period", |config, value| {
        config.log.stats_period = seconds(value)?;
        Ok(())
    }),
    sets("stats_users", "stats-users", |config, value| list(&mut config.stats_users, value)),
    sets("suspend_timeout", "timeouts.suspend", |config, value| {
        timeout(&mut config.timeouts.suspend, value)
    }),
    ignored("syslog", LOGGING),
    ignored("syslog_facility", LOGGING),
    ignored("syslog_ident", LOGGING),
    sets("tcp_defer_accept", "listen.defer-accept", |config, value| {
        config.listen.defer_accept = seconds(value)?;
        Ok(())
    }),
    sets("tcp_keepalive", "tcp.keepalive", |config, value| flag(&mut config.tcp.keepalive, value)),
    sets("tcp_keepcnt", "tcp.keepalive-count", |config, value| {
        limit(&mut config.tcp.keepalive_count, value)
    }),
    sets("tcp_keepidle", "tcp.keepalive-idle", |config, value| {
        timeout(&mut config.tcp.keepalive_idle, value)
    }),
    sets("tcp_keepintvl", "tcp.keepalive-interval", |config, value| {
        timeout(&mut config.tcp.keepalive_interval, value)
    }),
    sets("tcp_socket_buffer", "tcp.buffer-bytes", |config, value| {
        limit(&mut config.tcp.buffer_bytes, value)
    }),
    sets("tcp_user_timeout", "tcp.user-timeout", |config, value| {
        let millis = Duration::from_millis(number(value)?.into());
        config.tcp.user_timeout = Some(millis).filter(|timeout| !timeout.is_zero());
        Ok(())
    }),
    sets("track_extra_parameters", "tracked-parameters", |config, value| {
        list(&mut config.tracked_parameters, value)
    }),
    sets("transaction_timeout", "timeouts.transaction", |config, value| {
        timeout(&mut config.timeouts.transaction, value)
    }),
    sets("unix_socket_dir", "listen.unix-directories", |config, value| {
        config.listen.unix_directories = non_empty(value).into_iter().collect();
        Ok(())
    }),
    sets("unix_socket_group", "listen.unix-group", |config, value| {
        config.listen.unix_group = non_empty(value);
        Ok(())
    }),
    sets("unix_socket_mode", "listen.unix-mode", |config, value| {
        let mode = u32::from_str_radix(value, 8);
        config.listen.unix_mode = mode.map_err(|_| "must be an octal number, such as 0770")?;
        Ok(())
    }),
    sets("user", "os-user", |config, value| {
        config.os_user = non_empty(value);
        Ok(())
    }),
    ignored("verbose", "set by --log-level; `SET verbose` changes it while the pooler runs"),
];

/// Converts a value; an empty value means that the setting is unset.
pub(super) fn non_empty<T: for<'a> From<&'a str>>(value: &str) -> Option<T> {
    (!value.is_empty()).then(|| value.into())
}

/// Parses a comma-separated list.
fn list(to: &mut Vec<String>, value: &str) -> Result<(), String> {
    let items = value.split(',').map(str::trim).filter(|item| !item.is_empty());
    *to = items.map(str::to_owned).collect();
    Ok(())
}

/// Parses a switch: 0 means off, any other number on.
fn flag(to: &mut bool, value: &str) -> Result<(), String> {
    *to = number(value)? != 0;
    Ok(())
}

/// Parses an unsigned 32-bit integer.
pub(super) fn number(value: &str) -> Result<u32, String> {
    value.parse().map_err(|_| format!("{value:?} is not an integer from 0 to {}", u32::MAX))
}

/// Parses a TCP port.
pub(super) fn port(value: &str) -> Result<u16, String> {
    value.parse().map_err(|_| format!("{value:?} is not a port from 0 to 65535"))
}

/// Parses a limit; 0 means no limit.
fn limit(to: &mut Option<NonZeroU32>, value: &str) -> Result<(), String> {
    *to = NonZeroU32::new(number(value)?);
    Ok(())
}

pub(super) fn seconds(value: &str) -> Result<Duration, String> {
    let duration = value.trim().parse().ok().and_then(duration_from_seconds);
    duration.ok_or_else(|| format!("{value:?} is not a number of seconds"))
}

/// Parses a timeout in seconds; 0 means no timeout.
pub(super) fn timeout(to: &mut Option<Duration>, value: &str) -> Result<(), String> {
    *to = Some(seconds(value)?).filter(|duration| !duration.is_zero());
    Ok(())
}

pub(super) fn pool_mode(value: &str) -> Result<PoolMode, String> {
    let mut modes = [PoolMode::Session, PoolMode::Transaction, PoolMode::Statement].into_iter();
    let found = modes.find(|mode| mode.as_str() == value);
    found.ok_or_else(|| format!("{value:?} is not one of session, transaction, statement"))
}

fn auth_method(value: &str) -> Result<AuthMethod, String> {
    match AuthMethod::ALL.into_iter().find(|method| method.as_str() == value) {
        Some(method) => Ok(method),
        None if ["pam", "ldap"].contains(&value) => Err(format!(
            "{value} is not supported; use any, trust, plain, md5, scram-sha-256, cert or hba"
        )),
        None => {
            Err(format!("{value:?} is not one of any, trust, plain, md5, scram-sha-256, cert, hba"))
        }
    }
}

fn ssl_mode(value: &str) -> Result<SslMode, String> {
    SslMode::parse(value).ok_or_else(|| format!("{value:?} is not {}", SslMode::EXPECTED))
}

/// Parses a list of TLS versions. Versions older than 1.2 are not supported and are ignored.
fn protocols(side: &mut TlsSideConfig, value: &str) -> Result<(), String> {
    let names = value.split([',', ':']).map(str::trim).filter(|name| !name.is_empty());
    let mut versions = Vec::new();
    for name in names {
        match name.to_ascii_lowercase().as_str() {
            "secure" | "all" | "legacy" => versions.extend([TlsVersion::Tls12, TlsVersion::Tls13]),
            "tlsv1.0" | "tlsv1.1" => {}
            "tlsv1.2" => versions.push(TlsVersion::Tls12),
            "tlsv1.3" => versions.push(TlsVersion::Tls13),
            _ => return Err(format!("{name:?} is not one of tlsv1.2, tlsv1.3, secure, all")),
        }
    }
    let (Some(min), Some(max)) = (versions.iter().min(), versions.iter().max()) else {
        return Err("must include TLS 1.2 or 1.3; older versions are not supported".to_owned());
    };
    (side.min_version, side.max_version) = (*min, *max);
    Ok(())
}
