//! Finds the differences between the servers that may explain the change of a query: differences of
//! tables that the query's text names, and of settings that may affect it.

use std::collections::{BTreeMap, BTreeSet};

use howdah_compare::Comparison;
use howdah_report::rehearsal::{ActivityFigure, BothSides, ServerDifference, ServerFacts};
use howdah_sql::Fingerprint;

/// For each changed query, returns the positions of the differences that may explain its change:
/// those of its tables, and of settings whose [effect](SettingEffect) was observed or, for commits,
/// is possible.
///
/// Names are compared as whole words and without schemas, which texts rarely contain. The name of a
/// view counts as the names of the tables that it reads. A table that is used only in a function is
/// not found.
pub(crate) fn find_reasons(
    comparison: &Comparison,
    differences: &[ServerDifference],
    servers: &BothSides<ServerFacts>,
) -> BTreeMap<Fingerprint, Vec<usize>> {
    let differs = |wanted: &ActivityFigure| {
        differences.iter().any(|difference| match difference {
            ServerDifference::ActivityDiffers { figure, .. } => figure == wanted,
            _ => false,
        })
    };
    let cache_hits_differ = differs(&ActivityFigure::CacheHits);
    let checkpoints_differ = differs(&ActivityFigure::Checkpoints);
    let mut reasons = BTreeMap::new();
    for query in comparison.slower().chain(comparison.faster()) {
        let mut names = identifiers(&query.text.query);
        let views = servers.base.views.iter().chain(&servers.change.views);
        let read =
            views.filter(|view| names.contains(&view.name.name)).flat_map(|view| &view.tables);
        let read: Vec<String> = read.map(|table| table.name.clone()).collect();
        names.extend(read);
        let concerns = |difference: &ServerDifference| match difference {
            ServerDifference::TableDiffers { table, .. } => names.contains(table.name.as_str()),
            ServerDifference::SettingDiffers { name, .. } => match setting_effect(name) {
                SettingEffect::Plan => query.plan_change.is_some(),
                SettingEffect::Cache => cache_hits_differ,
                SettingEffect::Checkpoints => checkpoints_differ,
                SettingEffect::Commit => ends_transaction(&query.text.query),
                SettingEffect::Other => false,
            },
            _ => false,
        };
        let positions: Vec<usize> = (0..)
            .zip(differences)
            .filter(|(_, difference)| concerns(difference))
            .map(|(position, _)| position)
            .collect();
        if !positions.is_empty() {
            reasons.insert(query.fingerprint, positions);
        }
    }
    reasons
}

/// An effect of a setting that may explain the change of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SettingEffect {
    /// It changes the plans of queries.
    Plan,
    /// It changes the share of pages that are found in the buffer cache.
    Cache,
    /// It changes the number of checkpoints.
    Checkpoints,
    /// It changes the time that a commit takes.
    Commit,
    /// None of these, or one that a single query does not show.
    Other,
}

/// Returns the effect of a setting, following the chapter "Server Configuration" of PostgreSQL's
/// manual.
fn setting_effect(name: &str) -> SettingEffect {
    let is_planning = name.starts_with("enable_")
        || name.starts_with("geqo")
        || name.starts_with("jit")
        || name.starts_with("min_parallel_")
        || name.starts_with("max_parallel_workers")
        || name.ends_with("_cost")
        || name.ends_with("_collapse_limit");
    match name {
        _ if is_planning => SettingEffect::Plan,
        "constraint_exclusion"
        | "cursor_tuple_fraction"
        | "default_statistics_target"
        | "effective_cache_size"
        | "effective_io_concurrency"
        | "hash_mem_multiplier"
        | "max_worker_processes"
        | "parallel_leader_participation"
        | "plan_cache_mode"
        | "recursive_worktable_factor"
        | "work_mem" => SettingEffect::Plan,
        "shared_buffers" => SettingEffect::Cache,
        "checkpoint_completion_target"
        | "checkpoint_flush_after"
        | "checkpoint_timeout"
        | "max_wal_size" => SettingEffect::Checkpoints,
        "commit_delay" | "commit_siblings" | "fsync" | "full_page_writes"
        | "synchronous_commit" | "wal_compression" | "wal_level" | "wal_sync_method" => {
            SettingEffect::Commit
        }
        _ => SettingEffect::Other,
    }
}

/// Whether a statement may end a transaction, according to its first word: `commit`, `end`, or a
/// statement that writes, which ends one outside a transaction block.
fn ends_transaction(query: &str) -> bool {
    let first = query.split(|char: char| !char.is_alphabetic()).find(|word| !word.is_empty());
    const WRITES: [&str; 7] = ["commit", "end", "insert", "update", "delete", "merge", "copy"];
    first.is_some_and(|first| WRITES.iter().any(|word| word.eq_ignore_ascii_case(first)))
}

/// Returns the words of a normalized text, quoted words without their quotes. Keywords are
/// included, so a table named like a keyword of the query is found even if the query does not use
/// it.
fn identifiers(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        let mut name = String::new();
        if char == '"' {
            while let Some(char) = chars.next() {
                // A doubled quote stands for a quote in the name.
                if char == '"' && chars.next_if_eq(&'"').is_none() {
                    break;
                }
                name.push(char);
            }
        } else if is_identifier(char) {
            // PostgreSQL folds unquoted names to lower case.
            name.extend(char.to_lowercase());
            while let Some(char) = chars.next_if(|char| is_identifier(*char)) {
                name.extend(char.to_lowercase());
            }
        }
        if !name.is_empty() {
            names.insert(name);
        }
    }
    names
}

fn is_identifier(char: char) -> bool {
    char.is_alphanumeric() || matches!(char, '_' | '$')
}

#[test]
fn identifiers_are_whole_words() {
    let names = identifiers("select * from Shop.orders o, \"Line \"\"Items\" where id = $1 -- ?");
    for name in ["shop", "orders", "o", "Line \"Items", "id"] {
        assert!(names.contains(name), "{name}: {names:?}");
    }
    for name in ["order", "items", "Line"] {
        assert!(!names.contains(name), "{name}: {names:?}");
    }
    assert!(identifiers("\"unfinished").contains("unfinished"));
}

#[test]
fn settings_have_effects_where_the_manual_says() {
    let cases = [
        ("random_page_cost", SettingEffect::Plan),
        ("enable_hashjoin", SettingEffect::Plan),
        ("work_mem", SettingEffect::Plan),
        ("max_parallel_workers_per_gather", SettingEffect::Plan),
        ("shared_buffers", SettingEffect::Cache),
        ("max_wal_size", SettingEffect::Checkpoints),
        ("synchronous_commit", SettingEffect::Commit),
        ("log_min_duration_statement", SettingEffect::Other),
    ];
    for (name, effect) in cases {
        assert_eq!(setting_effect(name), effect, "{name}");
    }
}

#[test]
fn writes_and_commits_end_transactions() {
    for query in ["COMMIT", "end", "/* */ update t set n = $1", "INSERT INTO t VALUES ($1)"] {
        assert!(ends_transaction(query), "{query}");
    }
    for query in ["select $1", "begin", "", "endless"] {
        assert!(!ends_transaction(query), "{query}");
    }
}
