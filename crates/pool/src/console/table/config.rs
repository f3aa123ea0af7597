//! SHOW CONFIG: the settings that have an effect in howdah, by PgBouncer's names.

use std::time::Duration;

use howdah_pool_config::Config;

use super::{
    CellValue,
    ColumnType::{self, Text},
};
use crate::console::log_level::verbosity;

pub(super) const COLUMNS: &[(&str, ColumnType)] =
    &[("key", Text), ("value", Text), ("default", Text), ("changeable", Text)];

/// A row: the setting's name, its value, and whether it can be changed without a restart.
type ConfigRow = (&'static str, fn(&Config) -> String, bool);

fn limit(limit: Option<std::num::NonZeroU32>) -> String {
    limit.map_or(0, std::num::NonZeroU32::get).to_string()
}

fn seconds(duration: Duration) -> String {
    duration.as_secs_f64().to_string()
}

fn timeout(duration: Option<Duration>) -> String {
    seconds(duration.unwrap_or_default())
}

fn millis(duration: Option<Duration>) -> String {
    duration.unwrap_or_default().as_millis().to_string()
}

fn flag(value: bool) -> String {
    u8::from(value).to_string()
}

fn path(path: Option<&std::path::PathBuf>) -> String {
    path.map(|path| path.display().to_string()).unwrap_or_default()
}

const SETTINGS: &[ConfigRow] = &[
    ("admin_users", |it| it.admin_users.join(","), true),
    ("application_name_add_host", |it| flag(it.application_name.is_some()), true),
    ("auth_dbname", |it| it.auth.dbname.clone().unwrap_or_default(), true),
    ("auth_file", |it| path(it.auth.file.as_ref()), true),
    ("auth_hba_file", |it| path(it.auth.hba_file.as_ref()), true),
    ("auth_ident_file", |it| path(it.auth.ident_file.as_ref()), true),
    ("auth_query", |it| it.auth.query.clone(), true),
    ("auth_type", |it| it.auth.method.as_str().to_owned(), true),
    ("auth_user", |it| it.auth.user.clone().unwrap_or_default(), true),
    ("autodb_idle_timeout", |it| timeout(it.timeouts.autodb_idle), true),
    ("cancel_wait_timeout", |it| timeout(it.timeouts.cancel_wait), true),
    ("client_idle_timeout", |it| timeout(it.timeouts.client_idle), true),
    ("client_login_timeout", |it| timeout(it.timeouts.client_login), true),
    ("client_tls_ca_file", |it| path(it.tls.client.ca_file.as_ref()), true),
    ("client_tls_cert_file", |it| path(it.tls.client.certificate.as_ref()), true),
    ("client_tls_key_file", |it| path(it.tls.client.key.as_ref()), true),
    ("default_pool_size", |it| limit(it.sizes.pool), true),
    ("disable_pqexec", |it| flag(!it.simple_queries), true),
    ("dns_max_ttl", |it| seconds(it.timeouts.dns_max_ttl), true),
    ("idle_transaction_timeout", |it| timeout(it.timeouts.idle_transaction), true),
    ("ignore_startup_parameters", |it| it.ignored_startup_parameters.join(","), true),
    ("listen_addr", |it| it.listen.addresses.join(","), false),
    ("listen_backlog", |it| it.listen.backlog.to_string(), false),
    ("listen_port", |it| it.listen.port.to_string(), false),
    ("log_connections", |it| flag(it.log.connections), true),
    ("log_disconnections", |it| flag(it.log.disconnections), true),
    ("log_pooler_errors", |it| flag(it.log.pooler_errors), true),
    ("log_stats", |it| flag(it.log.stats), true),
    ("max_client_conn", |it| it.limits.clients.to_string(), true),
    ("max_db_client_connections", |it| limit(it.limits.clients_per_database), true),
    ("max_db_connections", |it| limit(it.limits.servers_per_database), true),
    ("max_packet_size", |it| it.limits.message_bytes.to_string(), true),
    ("max_prepared_statements", |it| it.max_prepared_statements.to_string(), true),
    ("max_user_client_connections", |it| limit(it.limits.clients_per_user), true),
    ("max_user_connections", |it| limit(it.limits.servers_per_user), true),
    ("min_pool_size", |it| it.sizes.min.to_string(), true),
    ("pool_idle_timeout", |it| timeout(it.timeouts.pool_idle), true),
    ("pool_mode", |it| it.mode.as_str().to_owned(), true),
    ("query_timeout", |it| timeout(it.timeouts.query), true),
    ("query_wait_notify", |it| timeout(it.timeouts.query_wait_notify), true),
    ("query_wait_timeout", |it| timeout(it.timeouts.query_wait), true),
    ("reserve_pool_size", |it| it.sizes.reserve.to_string(), true),
    ("reserve_pool_timeout", |it| timeout(it.timeouts.reserve_wait), true),
    ("scram_iterations", |it| it.auth.scram_iterations.to_string(), true),
    ("server_check_delay", |it| seconds(it.timeouts.server_check_delay), true),
    ("server_check_query", |it| it.check_query.clone().unwrap_or_default(), true),
    ("server_connect_timeout", |it| timeout(it.timeouts.server_connect), true),
    ("server_idle_timeout", |it| timeout(it.timeouts.server_idle), true),
    ("server_lifetime", |it| seconds(it.timeouts.server_lifetime), true),
    ("server_login_retry", |it| seconds(it.timeouts.server_login_retry), true),
    ("server_reset_query", |it| it.reset_query.clone(), true),
    ("server_reset_query_always", |it| flag(it.reset_query_always), true),
    ("server_round_robin", |it| flag(it.round_robin), true),
    ("server_tls_ca_file", |it| path(it.tls.server.ca_file.as_ref()), true),
    ("server_tls_cert_file", |it| path(it.tls.server.certificate.as_ref()), true),
    ("server_tls_key_file", |it| path(it.tls.server.key.as_ref()), true),
    ("stats_period", |it| seconds(it.log.stats_period), true),
    ("stats_users", |it| it.stats_users.join(","), true),
    ("suspend_timeout", |it| timeout(it.timeouts.suspend), true),
    ("tcp_defer_accept", |it| seconds(it.listen.defer_accept), false),
    ("tcp_keepalive", |it| flag(it.tcp.keepalive), false),
    ("tcp_keepcnt", |it| limit(it.tcp.keepalive_count), false),
    ("tcp_keepidle", |it| timeout(it.tcp.keepalive_idle), false),
    ("tcp_keepintvl", |it| timeout(it.tcp.keepalive_interval), false),
    ("tcp_socket_buffer", |it| limit(it.tcp.buffer_bytes), false),
    ("tcp_user_timeout", |it| millis(it.tcp.user_timeout), false),
    ("track_extra_parameters", |it| it.tracked_parameters.join(", "), true),
    ("transaction_timeout", |it| timeout(it.timeouts.transaction), true),
    ("unix_socket_dir", |it| path(it.listen.unix_directories.first()), false),
    ("unix_socket_group", |it| it.listen.unix_group.clone().unwrap_or_default(), false),
    ("unix_socket_mode", |it| format!("{:04o}", it.listen.unix_mode), false),
    ("user", |it| it.os_user.clone().unwrap_or_default(), false),
];

pub(super) fn rows(config: &Config) -> Vec<Vec<CellValue>> {
    let default = Config::default();
    let row = |(name, value, changes): &ConfigRow| {
        let changeable = if *changes { "yes" } else { "no" };
        vec![(*name).into(), value(config).into(), value(&default).into(), changeable.into()]
    };
    // The log level is a setting of the process, not of the configuration.
    let (verbosity, changes) = verbosity();
    let changeable = if changes { "yes" } else { "no" };
    let verbose = vec!["verbose".into(), verbosity.into(), "0".into(), changeable.into()];
    SETTINGS.iter().map(row).chain([verbose]).collect()
}

#[test]
fn settings_are_pgbouncer_keys() {
    let known: Vec<_> = howdah_pool_config::pgbouncer::KEYS.iter().map(|key| key.name).collect();
    assert!(SETTINGS.iter().all(|(name, ..)| known.contains(name)));
    assert!(SETTINGS.is_sorted_by_key(|(name, ..)| *name));
}
