//! Queries a server's memory settings, sessions and relations.

use std::{borrow::Cow, collections::HashMap, time::Duration};

use howdah_connect::{Client, ResultRow};

use crate::{
    dump::QueryFailure,
    image::{QualifiedName, RelationName},
};

/// Memory settings and statistics of a server. Settings that the server's version does not have are
/// `None`.
#[derive(Clone, Debug)]
pub struct MemoryInfo {
    /// Shared memory in bytes, `shared_memory_size` (15 and later).
    pub shared_memory_bytes: Option<u64>,
    /// The setting `huge_pages`, and whether huge pages are in use.
    pub huge_pages: HugePages,
    /// Huge pages needed for shared memory, `shared_memory_size_in_huge_pages` (15 and later).
    pub huge_page_count: Option<u64>,
    /// Number of current client sessions.
    pub sessions: u64,
    /// The setting `max_connections`.
    pub max_connections: u64,
    /// Buffer hits and buffer reads in all databases since the last statistics reset.
    pub hits_and_reads: (u64, u64),
    /// Time since the last of these statistics resets; `None` if none is known. Statistics survive
    /// a restart of the server.
    pub statistics_age: Option<Duration>,
    /// Time since the cache was empty: since the server's start, or since a crash of one of its
    /// processes, if the role may see that. `None` if the server reports an invalid time.
    pub cache_age: Option<Duration>,
    /// The largest tables and indexes of the database, at most 10,000, with their pages as of the
    /// last `VACUUM` or `ANALYZE`.
    pub relations: Vec<(RelationName, u64)>,
}

/// The use of huge pages for shared memory, as configured and as reported by the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HugePages {
    /// `huge_pages`: `on`, `off` or `try`.
    pub setting: String,
    /// `huge_pages_status`: `on`, `off` or `unknown`; `None` before version 17.
    pub status: Option<String>,
}

impl HugePages {
    /// Whether huge pages are in use: by the status or, before version 17, by the setting. `None`
    /// if the status is `unknown`, or the setting without a status is `try`.
    pub fn in_use(&self) -> Option<bool> {
        match (self.status.as_deref(), &*self.setting) {
            (Some("on"), _) | (None, "on") => Some(true),
            (Some("off"), _) | (None, "off") => Some(false),
            _ => None,
        }
    }
}

const SETTINGS: &str = "SELECT name, setting FROM pg_settings WHERE name IN ('huge_pages',
    'huge_pages_status', 'shared_memory_size', 'shared_memory_size_in_huge_pages', 'max_connections')";

/// Sizes from the catalog: `pg_relation_size()` would wait for locked relations.
const RELATIONS: &str = "
SELECT CASE WHEN o.oid IS NULL THEN 'own' WHEN i.indexrelid IS NULL THEN 'toast' ELSE 'toast index' END,
       coalesce(m.nspname, n.nspname), coalesce(o.relname, c.relname), c.relpages
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_index i ON i.indexrelid = c.oid AND n.nspname = 'pg_toast'
LEFT JOIN pg_class o ON o.reltoastrelid = CASE c.relkind WHEN 't' THEN c.oid ELSE i.indrelid END
LEFT JOIN pg_namespace m ON m.oid = o.relnamespace
WHERE c.relkind IN ('r', 'm', 'i', 't') AND c.relpersistence <> 't' AND c.relpages > 0
ORDER BY c.relpages DESC LIMIT 10000";

/// Ages in seconds, of the cache and of the statistics. A crash of a single session empties the
/// cache as well, while the postmaster stays: the checkpointer is then restarted.
const AGES: &str = "SELECT extract(epoch FROM clock_timestamp() - greatest(
        pg_postmaster_start_time(),
        (SELECT max(backend_start) FROM pg_stat_activity WHERE backend_type = 'checkpointer')))::float8,
    (SELECT extract(epoch FROM clock_timestamp() - max(stats_reset)) FROM pg_stat_database)::float8";

impl MemoryInfo {
    pub(super) fn query(client: &mut Client) -> Result<Self, QueryFailure> {
        let results = client.query(SETTINGS)?;
        let rows = results.iter().flat_map(|result| &result.rows);
        let settings: HashMap<_, _> = rows.map(|row| (text(row, 0), text(row, 1))).collect();
        let number = |name: &str| settings.get(name).and_then(|value| value.parse::<u64>().ok());
        let huge_pages = HugePages {
            setting: settings.get("huge_pages").cloned().unwrap_or_default(),
            status: settings.get("huge_pages_status").cloned(),
        };
        let sessions =
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'";
        let hits = "SELECT coalesce(sum(blks_hit), 0)::int8, coalesce(sum(blks_read), 0)::int8
            FROM pg_stat_database";
        let results = client.query(&format!("{sessions}; {hits}; {AGES}"))?;
        let cell = |statement: usize, column: usize| -> u64 {
            let row = results.get(statement).and_then(|result| result.rows.first());
            row.and_then(|row| text(row, column).parse().ok()).unwrap_or(0)
        };
        let age = |column: usize| {
            let row = results.get(2).and_then(|result| result.rows.first());
            let seconds = row.and_then(|row| text(row, column).parse::<f64>().ok());
            seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        };
        Ok(Self {
            cache_age: age(0),
            statistics_age: age(1),
            shared_memory_bytes: number("shared_memory_size").map(|mib| mib << 20),
            huge_page_count: number("shared_memory_size_in_huge_pages"),
            huge_pages,
            sessions: cell(0, 0),
            max_connections: number("max_connections").unwrap_or(0),
            hits_and_reads: (cell(1, 0), cell(1, 1)),
            relations: relations(client)?,
        })
    }
}

fn relations(client: &mut Client) -> Result<Vec<(RelationName, u64)>, QueryFailure> {
    let results = client.query(RELATIONS)?;
    let rows = results.iter().flat_map(|result| &result.rows);
    Ok(rows
        .map(|row| {
            let name = QualifiedName { schema: text(row, 1), name: text(row, 2) };
            let name = match &*text(row, 0) {
                "toast" => RelationName::Toast(name),
                "toast index" => RelationName::ToastIndex(name),
                _ => RelationName::Own(name),
            };
            (name, text(row, 3).parse().unwrap_or(0))
        })
        .collect())
}

fn text(row: &ResultRow, column: usize) -> String {
    row.text(column).map(Cow::into_owned).unwrap_or_default()
}
