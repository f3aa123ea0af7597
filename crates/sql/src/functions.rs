//! PostgreSQL's own functions that have no side effects.

/// Whether a name, with its schema or without, is that of a built-in function without side effects.
pub fn is_side_effect_free(name: &[&str]) -> bool {
    match *name {
        [name] | ["pg_catalog", name] => is_side_effect_free_builtin(name),
        _ => false,
    }
}

/// Whether a function of schema `pg_catalog` has no side effects, by its name in lower case.
///
/// `functions.txt` holds the names whose functions in PostgreSQL 15 and 18 are all stable or immutable
/// (`select proname from pg_proc where pronamespace = 'pg_catalog'::regnamespace group by 1 having
/// not bool_or(provolatile = 'v')`), without those that take a transaction id, run SQL or read relations
/// given by name, those that a standby refuses (`pg_current_wal_lsn` and its kin, `pg_walfile_name`,
/// those of replication origins), and those that depend on what their session did (`currval`, `lastval`).
/// Added are volatile ones that only inspect, sleep, return random numbers or change a setting of the session.
pub fn is_side_effect_free_builtin(name: &str) -> bool {
    static NAMES: std::sync::OnceLock<Vec<&'static str>> = std::sync::OnceLock::new();
    let names = NAMES.get_or_init(|| {
        let mut names: Vec<_> = include_str!("functions.txt").lines().collect();
        names.sort_unstable();
        names
    });
    names.binary_search(&name).is_ok()
}
