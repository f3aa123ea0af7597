//! Finds differences between two servers that may explain a change of speed.

use std::collections::{BTreeMap, BTreeSet};

use howdah_report::rehearsal::{
    BothSides, IndexFacts, ServerDifference, ServerFacts, SettingValue, TableDifference,
    TableFacts, TableName,
};

/// Minimum factor between two table sizes to report: vacuum and fill factors cause smaller
/// differences.
const SIZE_FACTOR_MIN: f64 = 1.2;
const SIZE_BYTES_MIN: u64 = 1 << 20;

/// Minimum difference between the times of the last ANALYZE to report, in seconds.
const STATISTICS_AGE_MIN_S: u64 = 86_400;

/// Minimum increase of the share of dead rows to report.
const DEAD_SHARE_MIN: f64 = 0.1;

/// Returns the differences between the base and the server with the change: first those of
/// versions, settings and extensions, then those of tables, sorted by table.
pub(crate) fn differences(base: &ServerFacts, change: &ServerFacts) -> Vec<ServerDifference> {
    let mut found = Vec::new();
    if base.version != change.version {
        let versions = BothSides { base: base.version.clone(), change: change.version.clone() };
        found.push(ServerDifference::Version(versions));
    }
    for (name, before) in &base.settings {
        // A setting that only one version has is not reported, because the version is.
        let Some(after) = change.settings.get(name).filter(|after| after.value != before.value)
        else {
            continue;
        };
        let values = BothSides { base: before.value.clone(), change: after.value.clone() };
        found.push(ServerDifference::SettingDiffers { name: name.clone(), values });
    }
    let extensions: BTreeSet<_> = base.extensions.keys().chain(change.extensions.keys()).collect();
    for name in extensions {
        let (before, after) = (base.extensions.get(name), change.extensions.get(name));
        if before != after {
            let versions = BothSides { base: before.cloned(), change: after.cloned() };
            found.push(ServerDifference::ExtensionDiffers { name: name.clone(), versions });
        }
    }
    let (before, after) = (by_name(base), by_name(change));
    let names: BTreeSet<_> = before.keys().chain(after.keys()).copied().collect();
    for name in names {
        let differences = match (before.get(name), after.get(name)) {
            (Some(before), Some(after)) => table_differences(before, after),
            // A table that is missing from a truncated list may just be small.
            (Some(_), None) if !change.is_truncated => vec![TableDifference::DroppedTable],
            (None, Some(_)) if !base.is_truncated => vec![TableDifference::NewTable],
            _ => Vec::new(),
        };
        found.extend(
            differences.into_iter().map(|difference| ServerDifference::TableDiffers {
                table: name.clone(),
                difference,
            }),
        );
    }
    found
}

/// Returns a warning if the change server's statistics were older or missing before the rehearsal,
/// whose VACUUM (ANALYZE) renews them. The runs then do not show what stale statistics cost.
pub(crate) fn renewed_statistics(differences: &[ServerDifference]) -> Option<String> {
    let mut tables = differences.iter().filter_map(|difference| match difference {
        ServerDifference::TableDiffers { table, difference: TableDifference::StatisticsOlder } => {
            Some(table)
        }
        _ => None,
    });
    let first = tables.next()?;
    let more = match tables.count() {
        0 => String::new(),
        1 => " and of 1 other table".to_owned(),
        count => format!(" and of {count} other tables"),
    };
    Some(format!(
        "planner statistics of {first}{more} were missing or older on the change server, and the \
         rehearsal renewed them by VACUUM (ANALYZE): run ANALYZE on the day, too, or rehearse with \
         --no-vacuum"
    ))
}

/// Returns the settings that a report shows: those that are not at their default, and those that
/// differ.
pub(crate) fn relevant_settings(
    own: &ServerFacts,
    other: &ServerFacts,
) -> BTreeMap<String, SettingValue> {
    let is_relevant = |(name, setting): &(&String, &SettingValue)| {
        setting.value != setting.default
            || other.settings.get(*name).is_some_and(|other| other.value != setting.value)
    };
    let relevant = own.settings.iter().filter(is_relevant);
    relevant.map(|(name, setting)| (name.clone(), setting.clone())).collect()
}

fn by_name(facts: &ServerFacts) -> BTreeMap<&TableName, &TableFacts> {
    facts.tables.iter().map(|table| (&table.name, table)).collect()
}

fn table_differences(base: &TableFacts, change: &TableFacts) -> Vec<TableDifference> {
    let mut found = index_differences(base, change);
    let missing = |from: &TableFacts, of: &TableFacts| -> Vec<String> {
        let is_missing = |trigger: &&String| !from.triggers.contains(trigger);
        of.triggers.iter().filter(is_missing).cloned().collect()
    };
    found.extend(missing(base, change).into_iter().map(TableDifference::NewTrigger));
    found.extend(missing(change, base).into_iter().map(TableDifference::DroppedTrigger));
    let (smaller, larger) = (base.bytes.min(change.bytes), base.bytes.max(change.bytes));
    let is_larger = larger as f64 >= smaller as f64 * SIZE_FACTOR_MIN;
    if is_larger && larger - smaller >= SIZE_BYTES_MIN {
        let bytes = BothSides { base: base.bytes, change: change.bytes };
        found.push(TableDifference::SizeChanged(bytes));
    }
    let is_missing = change.statistics.is_missing && !base.statistics.is_missing;
    let is_older = match (base.statistics.analyzed_s, change.statistics.analyzed_s) {
        (Some(base), Some(change)) => change >= base.saturating_add(STATISTICS_AGE_MIN_S),
        // A restore or an upgrade may keep the statistics and forget their age.
        _ => false,
    };
    if is_missing || is_older {
        found.push(TableDifference::StatisticsOlder);
    }
    let dead = BothSides { base: dead_share(base), change: dead_share(change) };
    if dead.change >= dead.base + DEAD_SHARE_MIN {
        found.push(TableDifference::BloatGrew(dead));
    }
    found
}

/// Returns the differences between the indexes of a table. A new name for an index is not one,
/// because it does not change any plan.
fn index_differences(base: &TableFacts, change: &TableFacts) -> Vec<TableDifference> {
    let named = |table: &TableFacts, name: &str| -> Option<IndexFacts> {
        table.indexes.iter().find(|index| index.name == name).cloned()
    };
    let has_definition = |table: &TableFacts, definition: &str| {
        table.indexes.iter().any(|index| index.definition == definition)
    };
    let mut found = Vec::new();
    for index in &base.indexes {
        match named(change, &index.name) {
            Some(after) if after.definition != index.definition => {
                found.push(TableDifference::ChangedIndex(index.name.clone()));
            }
            None if !has_definition(change, &index.definition) => {
                found.push(TableDifference::DroppedIndex(index.name.clone()));
            }
            _ => {}
        }
    }
    for index in &change.indexes {
        if named(base, &index.name).is_none() && !has_definition(base, &index.definition) {
            found.push(TableDifference::NewIndex(index.name.clone()));
        }
    }
    found
}

fn dead_share(table: &TableFacts) -> f64 {
    let (live, dead) = (table.statistics.live_rows, table.statistics.dead_rows);
    dead as f64 / live.saturating_add(dead).max(1) as f64
}

#[cfg(test)]
mod tests {
    use howdah_report::rehearsal::TableStatistics;

    use super::*;

    fn name(name: &str) -> TableName {
        TableName { database: None, schema: "public".to_owned(), name: name.to_owned() }
    }

    fn index(name: &str, definition: &str) -> IndexFacts {
        let (name, definition) = (name.to_owned(), definition.to_owned());
        IndexFacts { name, definition, bytes: 8192 }
    }

    fn orders() -> TableFacts {
        TableFacts {
            name: name("orders"),
            bytes: 10 << 20,
            statistics: TableStatistics {
                live_rows: 1_000,
                dead_rows: 10,
                analyzed_s: Some(60),
                is_missing: false,
            },
            indexes: vec![index("orders_pkey", "u(id)"), index("by_customer", "i(customer)")],
            triggers: vec!["audit".to_owned()],
        }
    }

    fn server(table: TableFacts) -> ServerFacts {
        ServerFacts { version: "15.4".to_owned(), tables: vec![table], ..ServerFacts::default() }
    }

    fn texts(base: &ServerFacts, change: &ServerFacts) -> Vec<String> {
        differences(base, change).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn equal_servers_do_not_differ() {
        assert_eq!(texts(&server(orders()), &server(orders())), [""; 0]);
    }

    #[test]
    fn indexes_are_compared_by_definition() {
        let mut changed = orders();
        changed.indexes = vec![index("orders_pkey", "u(id)"), index("renamed", "i(customer)")];
        assert_eq!(texts(&server(orders()), &server(changed.clone())), [""; 0]);
        changed.indexes = vec![index("orders_pkey", "u(id, day)"), index("by_day", "i(day)")];
        assert_eq!(
            texts(&server(orders()), &server(changed)),
            [
                "index orders_pkey on orders has another definition",
                "index by_customer on orders is missing",
                "index by_day on orders is new",
            ]
        );
    }

    #[test]
    fn triggers_sizes_statistics_and_bloat_are_compared() {
        let mut changed = orders();
        changed.triggers = vec!["queue".to_owned()];
        changed.bytes = 20 << 20;
        changed.statistics = TableStatistics {
            live_rows: 1_000,
            dead_rows: 1_000,
            analyzed_s: None,
            is_missing: true,
        };
        assert_eq!(
            texts(&server(orders()), &server(changed.clone())),
            [
                "trigger queue on orders is new",
                "trigger audit on orders is missing or disabled",
                "size of table orders: 10.00 MiB → 20.00 MiB",
                "planner statistics of orders are missing or older",
                "dead rows of orders: 1 % → 50 %",
            ]
        );
        let warning = renewed_statistics(&differences(&server(orders()), &server(changed)));
        let warning = warning.expect("the statistics are missing");
        assert!(warning.starts_with("planner statistics of orders were missing"), "{warning}");
        assert_eq!(renewed_statistics(&[]), None);
        // Small differences of size and age are not reported.
        let mut similar = orders();
        similar.bytes = 11 << 20;
        similar.statistics.analyzed_s = Some(3_600);
        assert_eq!(texts(&server(orders()), &server(similar.clone())), [""; 0]);
        similar.statistics.analyzed_s = None;
        assert_eq!(texts(&server(orders()), &server(similar)), [""; 0]);
    }

    #[test]
    fn settings_extensions_and_versions_are_compared() {
        let setting =
            |value: &str| SettingValue { value: value.to_owned(), default: "4MB".to_owned() };
        let mut base = server(orders());
        base.settings.insert("work_mem".to_owned(), setting("4MB"));
        base.settings.insert("jit".to_owned(), setting("4MB"));
        base.settings.insert("only_old".to_owned(), setting("1"));
        base.extensions.insert("postgis".to_owned(), "3.3".to_owned());
        let mut change = base.clone();
        change.version = "17.1".to_owned();
        change.settings.insert("work_mem".to_owned(), setting("64MB"));
        change.settings.remove("only_old");
        change.extensions = BTreeMap::from([("citus".to_owned(), "12".to_owned())]);
        assert_eq!(
            texts(&base, &change),
            [
                "PostgreSQL 15.4 → 17.1",
                "setting work_mem: 4MB → 64MB",
                "extension citus: not installed → 12",
                "extension postgis: 3.3 → not installed",
            ]
        );
        let names = |settings: BTreeMap<String, SettingValue>| -> Vec<String> {
            settings.into_keys().collect()
        };
        assert_eq!(names(relevant_settings(&base, &change)), ["only_old", "work_mem"]);
    }

    #[test]
    fn tables_beyond_a_truncated_list_are_not_missing() {
        let mut other = orders();
        other.name = name("items");
        let change = server(other);
        assert_eq!(
            texts(&server(orders()), &change),
            ["table items is new", "table orders is missing"]
        );
        let truncated = ServerFacts { is_truncated: true, ..change };
        assert_eq!(texts(&server(orders()), &truncated), ["table items is new"]);
    }
}
