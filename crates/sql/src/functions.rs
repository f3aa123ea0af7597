//! PostgreSQL's built-in functions that have no side effects outside the session.

/// Whether a name, given as `[name]` or `[schema, name]`, is that of a built-in function without
/// side effects.
pub fn is_side_effect_free(name: &[&str]) -> bool {
    match *name {
        [name] | ["pg_catalog", name] => is_side_effect_free_builtin(name),
        _ => false,
    }
}

/// Whether the functions of this name in the schema `pg_catalog` have no side effects. `name` is in
/// lower case.
///
/// `functions.txt` lists the names whose functions are all stable or immutable in PostgreSQL 15 and
/// 18 (`select proname from pg_proc where pronamespace = 'pg_catalog'::regnamespace group by 1
/// having not bool_or(provolatile = 'v')`). It leaves out functions that assign a transaction id,
/// run SQL or read the rows of relations given by name, functions that a standby refuses (such as
/// `pg_current_wal_lsn`, `pg_walfile_name` and the replication origin functions), and functions
/// that depend on earlier calls in the session (`currval`, `lastval`). It adds volatile functions
/// that only inspect, sleep, return random numbers or change a setting of the session.
pub fn is_side_effect_free_builtin(name: &str) -> bool {
    static NAMES: std::sync::OnceLock<Vec<&'static str>> = std::sync::OnceLock::new();
    NAMES.get_or_init(|| sorted(include_str!("functions.txt"))).binary_search(&name).is_ok()
}

/// Whether the schema `pg_catalog` has functions of this name in PostgreSQL 14 to 18. `name` is in
/// lower case.
///
/// `functions_with_effects.txt` lists the names that are not in `functions.txt`.
pub fn is_builtin(name: &str) -> bool {
    static NAMES: std::sync::OnceLock<Vec<&'static str>> = std::sync::OnceLock::new();
    let names = NAMES.get_or_init(|| sorted(include_str!("functions_with_effects.txt")));
    is_side_effect_free_builtin(name) || names.binary_search(&name).is_ok()
}

fn sorted(lines: &'static str) -> Vec<&'static str> {
    let mut names: Vec<_> = lines.lines().collect();
    names.sort_unstable();
    names
}
