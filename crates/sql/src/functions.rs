//! PostgreSQL's built-in functions that have no side effects.

/// Whether a function name, with or without its schema, is a built-in without side effects.
pub fn is_side_effect_free(name: &[&str]) -> bool {
    match *name {
        [name] | ["pg_catalog", name] => is_side_effect_free_builtin(name),
        _ => false,
    }
}

/// Whether a function of the schema `pg_catalog` has no side effects, by its lower-case name.
///
/// `functions.txt` lists the names whose functions are all stable or immutable in PostgreSQL 15 and
/// 18 (`select proname from pg_proc where pronamespace = 'pg_catalog'::regnamespace group by 1
/// having not bool_or(provolatile = 'v')`). It leaves out functions that assign a transaction id,
/// run SQL or read relations given by name, functions that a standby refuses (`pg_current_wal_lsn`
/// and its kin, `pg_walfile_name`, the replication origin functions), and functions that depend on
/// earlier calls in the session (`currval`, `lastval`). It adds volatile functions that only
/// inspect, sleep, return random numbers or change a setting of the session.
pub fn is_side_effect_free_builtin(name: &str) -> bool {
    static NAMES: std::sync::OnceLock<Vec<&'static str>> = std::sync::OnceLock::new();
    let names = NAMES.get_or_init(|| {
        let mut names: Vec<_> = include_str!("functions.txt").lines().collect();
        names.sort_unstable();
        names
    });
    names.binary_search(&name).is_ok()
}
