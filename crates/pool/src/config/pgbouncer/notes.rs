//! Where a key that does something here does not do quite what it does in PgBouncer 1.25.

/// Keys, and what is different; in the order of their names.
pub(crate) const NOTES: &[(&str, &str)] = &[
    ("admin_users", "with `auth_type = any`, too: nobody else is an operator"),
    (
        "application_name_add_host",
        "a template of its own: `%a - %h:%p`; what would be too long for a server is cut from the client's part",
    ),
    (
        "auth_hba_file",
        "`samehost`, `samenet`, regular expressions and includes as well; a rule that cannot be followed is an error, not passed over",
    ),
    ("auth_query", "an answer about another user than the one asked for lets nobody in"),
    ("auth_type", "pam and ldap are errors"),
    ("autodb_idle_timeout", "by pool; what all databases did together stays counted"),
    (
        "client_login_timeout",
        "the startup packet has 15 s of it (`timeouts.client-startup`), as silent connections keep others out",
    ),
    ("client_tls_protocols", "TLS 1.2 and 1.3; older versions are never spoken"),
    (
        "client_tls_sslmode",
        "the files are read at start and by `--check`: one that is missing is an error",
    ),
    ("default_pool_size", "exact over all workers"),
    ("disable_pqexec", "the error has SQLSTATE 08P01"),
    ("dns_max_ttl", "connections to an address that is gone are replaced as they become free"),
    ("log_connections", "clients only; a line with fields"),
    ("log_disconnections", "clients only; a line with fields"),
    ("log_stats", "averages of all pools together"),
    ("max_client_conn", "clients that are logging in are counted apart"),
    (
        "max_prepared_statements",
        "statements without a name are kept, too, where drivers use them again",
    ),
    ("max_user_client_connections", "clients of all databases together"),
    (
        "min_pool_size",
        "of the pool, by all workers together; from the start where the database has a `user`, else from \
         the first client; closed where another pool needs the place",
    ),
    ("pool_idle_timeout", "what its database did stays counted; one with `min_pool_size` stays"),
    (
        "server_check_query",
        "asked by the simple query protocol; an empty query unless told otherwise",
    ),
    (
        "server_login_retry",
        "the longest pause: the first is short, and each doubles. New clients fail fast meanwhile; \
         those that are in wait",
    ),
    (
        "server_reset_query",
        "in modes other than session, what a client left behind is reset, and nothing else",
    ),
    ("server_tls_protocols", "TLS 1.2 and 1.3; older versions are never spoken"),
    ("stats_period", "at least a second"),
    ("tcp_defer_accept", "on unless told otherwise"),
    (
        "track_extra_parameters",
        "every setting that servers report follows a client, listed or not; listed ones may stand in startup packets",
    ),
    ("unix_socket_dir", "`listen.unix-directories` may hold several"),
];

/// What is different about a key, if anything.
pub(crate) fn note(key: &str) -> Option<&'static str> {
    NOTES.iter().find(|(name, _)| *name == key).map(|(_, note)| *note)
}

#[test]
fn notes_are_about_keys_that_do_something() {
    use super::{Effect, KEYS};
    assert!(NOTES.is_sorted_by_key(|(name, _)| *name));
    for (name, _) in NOTES {
        let key = KEYS.iter().find(|key| key.name == *name);
        let acts = key.is_some_and(|key| matches!(key.effect, Effect::Sets(..)));
        assert!(acts, "{name}");
    }
}
