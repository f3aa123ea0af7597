//! Keys that behave differently from PgBouncer 1.25.

/// Keys whose effect differs from PgBouncer's, ordered by name, each with a description of the
/// difference.
pub(crate) const DIFFERENCES: &[(&str, &str)] = &[
    ("admin_users", "also with `auth_type = any`: other users have no access to the console"),
    (
        "application_name_add_host",
        "sets the template `%a - %h:%p`; if the name would be too long for a server, the client's part is truncated",
    ),
    (
        "auth_hba_file",
        "also supports `samehost`, `samenet`, regular expressions and includes; an unsupported rule is an error, it is not ignored",
    ),
    ("auth_query", "a result for another user than the requested one is refused"),
    ("auth_type", "`pam` and `ldap` are errors"),
    ("autodb_idle_timeout", "applies to each pool; its counts stay in the totals of all databases"),
    (
        "client_login_timeout",
        "the startup packet must arrive within 15 s (`timeouts.client-startup`), since silent connections use up the limit on logins",
    ),
    (
        "client_tls_ciphers",
        "names of suites select them; a list with a keyword such as `HIGH` allows all suites of rustls, none of which \
         is weak, and causes a warning",
    ),
    ("client_tls_protocols", "TLS 1.2 and 1.3; older versions are not supported"),
    (
        "client_tls_sslmode",
        "the files are read at start and by `--check`: a missing file is an error",
    ),
    ("default_pool_size", "exact across all workers"),
    ("disable_pqexec", "the error has SQLSTATE 08P01"),
    ("dns_max_ttl", "connections to an address that is gone are replaced as they become idle"),
    ("log_connections", "clients only; structured log lines"),
    ("log_disconnections", "clients only; structured log lines"),
    ("log_stats", "averages over all pools together"),
    ("logfile", "a change takes effect after a restart; SIGHUP and `RELOAD` open the file again"),
    ("max_client_conn", "clients that are logging in are counted separately"),
    ("max_prepared_statements", "unnamed statements are retained as well if drivers reuse them"),
    ("max_user_client_connections", "clients of all databases together"),
    (
        "min_pool_size",
        "per pool, across all workers; open from the start if the database has a `user`, otherwise from \
         the first client on; closed if another pool needs the connections",
    ),
    (
        "peer_id",
        "peers must be Howdah, and requests go to all of them: their keys do not contain the number",
    ),
    (
        "pool_idle_timeout",
        "its counts stay in the totals of its database; a pool with `min_pool_size` is never removed",
    ),
    ("server_check_query", "a connection that fails the check is replaced"),
    (
        "server_login_retry",
        "the longest pause: the first is short, and each one doubles. Meanwhile logins of new clients fail \
         at once, and clients that have logged in wait",
    ),
    (
        "server_reset_query",
        "in modes other than session, only the state that a client has changed is reset",
    ),
    ("server_tls_ciphers", "as `client_tls_ciphers`"),
    ("server_tls_protocols", "TLS 1.2 and 1.3; older versions are not supported"),
    ("stats_period", "at least a second"),
    ("syslog", "replaces stderr; a change takes effect after a restart"),
    ("tcp_defer_accept", "on by default"),
    (
        "track_extra_parameters",
        "every parameter that servers report is restored for a client, listed or not; listed ones are also allowed in startup packets",
    ),
    ("unix_socket_dir", "`listen.unix-directories` can have several"),
];

/// Returns the difference for a key; `None` if it behaves as in PgBouncer.
pub(crate) fn difference(key: &str) -> Option<&'static str> {
    DIFFERENCES.iter().find(|(name, _)| *name == key).map(|(_, text)| *text)
}

/// Returns the difference that matters for a key with this value; `None` if the value has
/// PgBouncer's effect, or is its default.
pub(crate) fn difference_of_value(key: &str, value: &str) -> Option<&'static str> {
    let is_off = matches!(value, "" | "0");
    let differs = match key {
        "auth_type" => matches!(value, "pam" | "ldap"),
        "client_tls_protocols" | "server_tls_protocols" => {
            let old = ["all", "legacy", "tlsv1.0", "tlsv1.1"];
            value.split([',', ':']).any(|name| old.contains(&name.trim()))
        }
        "server_check_query" => !matches!(value, "" | "<empty>"),
        "server_reset_query" => value != "DISCARD ALL",
        // A keyword causes a warning.
        "client_tls_ciphers" | "server_tls_ciphers" | "logfile" | "stats_period" => false,
        "client_tls_sslmode" => value != "disable",
        "track_extra_parameters" => value != "IntervalStyle",
        // These differ in the details of the counts only.
        "admin_users"
        | "default_pool_size"
        | "dns_max_ttl"
        | "max_client_conn"
        | "unix_socket_dir"
        | "max_prepared_statements"
        | "tcp_defer_accept" => false,
        _ => !is_off,
    };
    difference(key).filter(|_| differs)
}

#[test]
fn only_values_with_another_effect_differ() {
    for (key, value) in [
        ("server_reset_query", "DISCARD ALL"),
        ("min_pool_size", "0"),
        ("client_tls_protocols", "secure"),
        ("default_pool_size", "20"),
        ("log_stats", "0"),
        ("listen_port", "6432"),
    ] {
        assert_eq!(difference_of_value(key, value), None, "{key}");
    }
    for (key, value) in [
        ("server_reset_query", ""),
        ("min_pool_size", "5"),
        ("client_tls_protocols", "tlsv1.0,tlsv1.2"),
        ("auth_hba_file", "hba.conf"),
    ] {
        assert_eq!(difference_of_value(key, value), difference(key), "{key}");
        assert!(difference(key).is_some(), "{key}");
    }
}

#[test]
fn differences_are_for_keys_with_effect() {
    use super::KEYS;
    assert!(DIFFERENCES.is_sorted_by_key(|(name, _)| *name));
    for (name, _) in DIFFERENCES {
        let key = KEYS.iter().find(|key| key.name == *name);
        let has_effect = key.is_some_and(|key| key.target().is_some());
        assert!(has_effect, "{name}");
    }
}
