//! The table of keys of section `[pgbouncer]`, and parsers for their values.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use howdah_connect::tls::TlsVersion;
use howdah_settings::nearest;

use super::super::{
    ApplicationName, Config, TlsSideConfig,
    keys::{self, KeyChange, KeyValue as _, Notation, SettingKey},
};

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
    /// The key sets the key of `[pool]` with this path, to the same value.
    Sets(&'static str),
    /// The key sets a key of `[pool]`, whose value has another form.
    Converts(
        /// Path of the `[pool]` key, such as `auth.dbname`.
        &'static str,
        /// Parses the value and stores it in the configuration.
        fn(&mut Config, &str) -> Result<(), String>,
        /// Returns the value in PgBouncer's form.
        fn(&Config) -> String,
    ),
    /// The key has no effect.
    Ignored {
        /// The reason, which is logged as a warning.
        why: &'static str,
        /// PgBouncer's default, which the console shows; `None` means unset.
        default: Option<&'static str>,
        /// Whether PgBouncer's SET and RELOAD change the key.
        is_changeable: bool,
    },
}

impl PgbouncerKey {
    /// Returns the path of the `[pool]` key that this key sets, if any.
    pub fn target(&self) -> Option<&'static str> {
        match self.effect {
            KeyEffect::Sets(path) | KeyEffect::Converts(path, ..) => Some(path),
            KeyEffect::Ignored { .. } => None,
        }
    }

    /// Returns the value that the key has in the configuration, as in a `pgbouncer.ini`; `None` if
    /// it is unset. A key without effect has PgBouncer's default.
    pub fn show(&self, config: &Config) -> Option<String> {
        match self.effect {
            KeyEffect::Sets(path) => {
                let value = (find(path).get)(config).to_pgbouncer();
                let has_value = !value.is_empty() || !NULL_WHEN_UNSET.contains(&self.name);
                has_value.then_some(value)
            }
            KeyEffect::Converts(_, _, show) => Some(show(config)),
            KeyEffect::Ignored { default, .. } => default.map(str::to_owned),
        }
    }

    /// Whether a change of the key takes effect only after a restart.
    pub fn needs_restart(&self) -> bool {
        match self.effect {
            KeyEffect::Sets(path) | KeyEffect::Converts(path, ..) => {
                find(path).change == KeyChange::Restart
            }
            KeyEffect::Ignored { is_changeable, .. } => !is_changeable,
        }
    }

    /// Parses a value and stores it in the configuration.
    pub(crate) fn set(&self, config: &mut Config, value: &str) -> Result<(), String> {
        match self.effect {
            KeyEffect::Sets(path) => (find(path).get_mut)(config).set(value, Notation::PgBouncer),
            KeyEffect::Converts(_, set, _) => set(config, value),
            KeyEffect::Ignored { default, .. } => {
                let is_number = |text: &str| text.trim().parse::<f64>().is_ok();
                let expects_number = default.is_some_and(is_number) || self.name == "verbose";
                if expects_number && !is_number(value) {
                    Err(format!("{value:?} is not a number"))
                } else {
                    Ok(())
                }
            }
        }
    }
}

/// Keys that PgBouncer shows as null, not as an empty text, if they are unset.
const NULL_WHEN_UNSET: [&str; 7] = [
    "auth_dbname",
    "auth_file",
    "auth_ident_file",
    "auth_user",
    "client_tls13_ciphers",
    "server_tls13_ciphers",
    "user",
];

/// Returns the row of a `[pool]` key.
fn find(path: &str) -> &'static SettingKey<Config> {
    keys::find(keys::KEYS, path).expect("a test finds the target of each row")
}

/// Applies a key and its value to `config`.
pub(super) fn apply(config: &mut Config, name: &str, value: &str) -> super::IniKeyResult {
    match KEYS.iter().find(|key| key.name == name) {
        Some(key @ PgbouncerKey { effect: KeyEffect::Ignored { why, .. }, .. }) => {
            key.set(config, value).map(|()| Some(*why))
        }
        Some(key) => key.set(config, value).map(|()| None),
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

const fn sets(name: &'static str, path: &'static str) -> PgbouncerKey {
    PgbouncerKey { name, effect: KeyEffect::Sets(path) }
}

const fn converts(
    name: &'static str,
    path: &'static str,
    set: fn(&mut Config, &str) -> Result<(), String>,
    show: fn(&Config) -> String,
) -> PgbouncerKey {
    PgbouncerKey { name, effect: KeyEffect::Converts(path, set, show) }
}

const fn ignored(
    name: &'static str,
    why: &'static str,
    default: Option<&'static str>,
) -> PgbouncerKey {
    PgbouncerKey { name, effect: KeyEffect::Ignored { why, default, is_changeable: true } }
}

/// A key without effect that PgBouncer reads only at start.
const fn ignored_at_start(
    name: &'static str,
    why: &'static str,
    default: Option<&'static str>,
) -> PgbouncerKey {
    PgbouncerKey { name, effect: KeyEffect::Ignored { why, default, is_changeable: false } }
}

const DNS: &str =
    "names are resolved by the operating system for each new connection and every `dns_max_ttl`";
const CIPHERS: &str =
    "the curves of rustls are used, which include no weak ones; finite-field DH does not exist";

/// All keys of the section, ordered by name.
pub const KEYS: &[PgbouncerKey] = &[
    sets("admin_users", "admin-users"),
    converts(
        "application_name_add_host",
        "application-name",
        |config, value| {
            let adds = flag(value)?.then(|| ApplicationName::WITH_HOST.parse());
            config.application_name = adds.transpose()?;
            Ok(())
        },
        |config| config.application_name.is_some().to_pgbouncer(),
    ),
    sets("auth_dbname", "auth.dbname"),
    sets("auth_file", "auth.file"),
    sets("auth_hba_file", "auth.hba-file"),
    sets("auth_ident_file", "auth.ident-file"),
    ignored("auth_ldap_options", "LDAP is not supported", None),
    sets("auth_query", "auth.query"),
    sets("auth_type", "auth.type"),
    sets("auth_user", "auth.user"),
    sets("autodb_idle_timeout", "timeouts.autodb-idle"),
    sets("cancel_wait_timeout", "timeouts.cancel-wait"),
    sets("client_idle_timeout", "timeouts.client-idle"),
    sets("client_login_timeout", "timeouts.client-login"),
    sets("client_tls13_ciphers", "tls.client.tls13-ciphers"),
    sets("client_tls_ca_file", "tls.client.ca-file"),
    sets("client_tls_cert_file", "tls.client.certificate"),
    converts(
        "client_tls_ciphers",
        "tls.client.ciphers",
        |config, value| set_cipher_list(&mut config.tls.client, value),
        |config| cipher_list(&config.tls.client),
    ),
    ignored("client_tls_dheparams", CIPHERS, Some("auto")),
    ignored("client_tls_ecdhcurve", CIPHERS, Some("auto")),
    sets("client_tls_key_file", "tls.client.key"),
    converts(
        "client_tls_protocols",
        "tls.client.min-version",
        |config, value| set_protocols(&mut config.tls.client, value),
        |config| protocols(&config.tls.client),
    ),
    converts(
        "client_tls_sslmode",
        "tls.client.mode",
        |config, value| config.tls.client.mode.set(value, Notation::PgBouncer),
        |config| config.tls.client_mode().as_str().to_owned(),
    ),
    ignored("conffile", "the configuration file is given by -c", None),
    sets("default_pool_size", "sizes.pool"),
    converts(
        "disable_pqexec",
        "simple-queries",
        |config, value| {
            config.simple_queries = !flag(value)?;
            Ok(())
        },
        |config| (!config.simple_queries).to_pgbouncer(),
    ),
    sets("dns_max_ttl", "timeouts.dns-max-ttl"),
    ignored("dns_nxdomain_ttl", DNS, Some("15")),
    ignored("dns_zone_check_period", DNS, Some("0")),
    sets("idle_transaction_timeout", "timeouts.idle-transaction"),
    sets("ignore_startup_parameters", "ignored-startup-parameters"),
    ignored_at_start("job_name", "the name of a Windows service", Some("pgbouncer")),
    sets("listen_addr", "listen.addresses"),
    sets("listen_backlog", "listen.backlog"),
    sets("listen_port", "listen.port"),
    sets("log_connections", "log.connections"),
    sets("log_disconnections", "log.disconnections"),
    sets("log_pooler_errors", "log.pooler-errors"),
    sets("log_stats", "log.stats"),
    sets("logfile", "log.file"),
    sets("login_notify_message", "auth.login-notice"),
    sets("max_client_conn", "limits.clients"),
    sets("max_db_client_connections", "limits.clients-per-database"),
    sets("max_db_connections", "limits.servers-per-database"),
    sets("max_packet_size", "limits.message-bytes"),
    sets("max_prepared_statements", "max-prepared-statements"),
    sets("max_user_client_connections", "limits.clients-per-user"),
    sets("max_user_connections", "limits.servers-per-user"),
    sets("min_pool_size", "sizes.min"),
    converts(
        "peer_id",
        "peers",
        |config, value| config.peers.set_own_number(value),
        |config| config.peers.own_number().to_string(),
    ),
    sets("pidfile", "log.pid-file"),
    ignored_at_start("pkt_buf", "a worker has one buffer for all its connections", Some("4096")),
    sets("pool_idle_timeout", "timeouts.pool-idle"),
    sets("pool_mode", "mode"),
    sets("query_timeout", "timeouts.query"),
    sets("query_wait_notify", "timeouts.query-wait-notify"),
    sets("query_wait_timeout", "timeouts.query-wait"),
    sets("reserve_pool_size", "sizes.reserve"),
    sets("reserve_pool_timeout", "timeouts.reserve-wait"),
    ignored_at_start("resolv_conf", DNS, Some("")),
    ignored("sbuf_loopcnt", "connections are served in turn without a limit on loops", Some("5")),
    sets("scram_iterations", "auth.scram-iterations"),
    sets("server_check_delay", "timeouts.server-check-delay"),
    converts(
        "server_check_query",
        "check-query",
        |config, value| {
            config.check_query = match value {
                "" => None,
                "<empty>" => Some(String::new()),
                query => Some(query.to_owned()),
            };
            Ok(())
        },
        |config| match &config.check_query {
            Some(query) if query.is_empty() => "<empty>".to_owned(),
            query => query.to_pgbouncer(),
        },
    ),
    sets("server_connect_timeout", "timeouts.server-connect"),
    sets("server_fast_close", "timeouts.server-fast-close"),
    sets("server_idle_timeout", "timeouts.server-idle"),
    sets("server_lifetime", "timeouts.server-lifetime"),
    sets("server_login_retry", "timeouts.server-login-retry"),
    sets("server_reset_query", "reset-query"),
    sets("server_reset_query_always", "reset-query-always"),
    sets("server_round_robin", "round-robin"),
    sets("server_tls13_ciphers", "tls.server.tls13-ciphers"),
    sets("server_tls_ca_file", "tls.server.ca-file"),
    sets("server_tls_cert_file", "tls.server.certificate"),
    converts(
        "server_tls_ciphers",
        "tls.server.ciphers",
        |config, value| set_cipher_list(&mut config.tls.server, value),
        |config| cipher_list(&config.tls.server),
    ),
    sets("server_tls_key_file", "tls.server.key"),
    converts(
        "server_tls_protocols",
        "tls.server.min-version",
        |config, value| set_protocols(&mut config.tls.server, value),
        |config| protocols(&config.tls.server),
    ),
    converts(
        "server_tls_sslmode",
        "tls.server.mode",
        |config, value| config.tls.server.mode.set(value, Notation::PgBouncer),
        |config| config.tls.server_mode().as_str().to_owned(),
    ),
    // Unknown to PgBouncer itself except on Windows.
    ignored_at_start("service_name", "the name of a Windows service", None),
    ignored_at_start("so_reuseport", "one process uses every core, see workers", Some("0")),
    sets("stats_period", "log.stats-period"),
    sets("stats_users", "stats-users"),
    sets("suspend_timeout", "timeouts.suspend"),
    sets("syslog", "log.syslog"),
    sets("syslog_facility", "log.syslog-facility"),
    sets("syslog_ident", "log.syslog-name"),
    sets("tcp_defer_accept", "listen.defer-accept"),
    sets("tcp_keepalive", "tcp.keepalive"),
    sets("tcp_keepcnt", "tcp.keepalive-count"),
    sets("tcp_keepidle", "tcp.keepalive-idle"),
    sets("tcp_keepintvl", "tcp.keepalive-interval"),
    sets("tcp_socket_buffer", "tcp.buffer-bytes"),
    converts(
        "tcp_user_timeout",
        "tcp.user-timeout",
        |config, value| {
            let mut millis = 0_u32;
            millis.set(value, Notation::PgBouncer)?;
            let timeout = Duration::from_millis(millis.into());
            config.tcp.user_timeout = Some(timeout).filter(|timeout| !timeout.is_zero());
            Ok(())
        },
        |config| config.tcp.user_timeout.unwrap_or_default().as_millis().to_string(),
    ),
    sets("track_extra_parameters", "tracked-parameters"),
    sets("transaction_timeout", "timeouts.transaction"),
    converts(
        "unix_socket_dir",
        "listen.unix-directories",
        |config, value| {
            config.listen.unix_directories = non_empty(value).into_iter().collect();
            Ok(())
        },
        |config| {
            config.listen.unix_directories.first().map(PathBuf::to_pgbouncer).unwrap_or_default()
        },
    ),
    sets("unix_socket_group", "listen.unix-group"),
    converts(
        "unix_socket_mode",
        "listen.unix-mode",
        |config, value| {
            let mode = u32::from_str_radix(value, 8);
            config.listen.unix_mode = mode.map_err(|_| "must be an octal number, such as 0770")?;
            Ok(())
        },
        |config| format!("{:04o}", config.listen.unix_mode),
    ),
    sets("user", "os-user"),
    ignored("verbose", "set by --log-level; `SET verbose` changes it while the pooler runs", None),
];

/// Converts a value; an empty value means that the setting is unset.
pub(super) fn non_empty<T: for<'a> From<&'a str>>(value: &str) -> Option<T> {
    (!value.is_empty()).then(|| value.into())
}

/// Parses a switch: 0 means off, any other number on.
fn flag(value: &str) -> Result<bool, String> {
    let mut is_on = false;
    is_on.set(value, Notation::PgBouncer).map(|()| is_on)
}

/// Returns the TLS versions of one side as a list.
fn protocols(side: &TlsSideConfig) -> String {
    let range = side.min_version..=side.max_version;
    if range == (TlsVersion::Tls12..=TlsVersion::Tls13) {
        return "secure".to_owned();
    }
    let versions = [(TlsVersion::Tls12, "tlsv1.2"), (TlsVersion::Tls13, "tlsv1.3")].into_iter();
    let names: Vec<_> =
        versions.filter(|(version, _)| range.contains(version)).map(|(_, name)| name).collect();
    names.join(",")
}

/// Returns the cipher list of one side, or PgBouncer's keyword for its default.
fn cipher_list(side: &TlsSideConfig) -> String {
    if side.ciphers.is_empty() { "default".to_owned() } else { side.ciphers.clone() }
}

/// Sets a list of cipher suites; `default` is the same as no list.
fn set_cipher_list(side: &mut TlsSideConfig, value: &str) -> Result<(), String> {
    let value = if value == "default" { "" } else { value };
    side.ciphers.set(value, Notation::PgBouncer)
}

/// Parses a list of TLS versions and shortcuts; `!` before one excludes it, and an empty list means
/// the default. Versions older than 1.2 are not supported and are ignored.
fn set_protocols(side: &mut TlsSideConfig, value: &str) -> Result<(), String> {
    let names = value.split([',', ':']).map(str::trim).filter(|name| !name.is_empty());
    let mut versions = BTreeSet::new();
    let mut is_empty = true;
    for name in names {
        let (is_excluded, name) = match name.strip_prefix('!') {
            Some(name) => (true, name.trim_start()),
            None => (false, name),
        };
        let named: &[TlsVersion] = match name.to_ascii_lowercase().as_str() {
            "secure" | "all" | "legacy" | "default" => &[TlsVersion::Tls12, TlsVersion::Tls13],
            "tlsv1" => &[TlsVersion::Tls12, TlsVersion::Tls13],
            "tlsv1.0" | "tlsv1.1" => &[],
            "tlsv1.2" => &[TlsVersion::Tls12],
            "tlsv1.3" => &[TlsVersion::Tls13],
            _ => return Err(format!("{name:?} is not one of tlsv1.2, tlsv1.3, secure, all")),
        };
        // A list that starts with an exclusion starts from all versions.
        if is_excluded && std::mem::take(&mut is_empty) {
            versions.extend([TlsVersion::Tls12, TlsVersion::Tls13]);
        }
        is_empty = false;
        if is_excluded {
            versions.retain(|version| !named.contains(version));
        } else {
            versions.extend(named);
        }
    }
    if is_empty {
        versions.extend([TlsVersion::Tls12, TlsVersion::Tls13]);
    }
    let (Some(min), Some(max)) = (versions.first(), versions.last()) else {
        return Err("must include TLS 1.2 or 1.3; older versions are not supported".to_owned());
    };
    (side.min_version, side.max_version) = (*min, *max);
    Ok(())
}

#[test]
fn target_of_each_key_is_a_key_of_pool() {
    for key in KEYS {
        let is_known = key.target().is_none_or(|path| keys::find(keys::KEYS, path).is_some());
        assert!(is_known, "{}", key.name);
    }
}
