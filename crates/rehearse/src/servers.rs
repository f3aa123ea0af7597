//! Queries the facts of a server, and compares two servers.

mod difference;

use std::collections::BTreeMap;

use howdah_connect::{Client, ConnectTarget, QueryError, ResultRow, ResultSet};
use howdah_replay::TargetFacts;
use howdah_report::rehearsal::{
    IndexFacts, ServerFacts, SettingValue, TableFacts, TableName, TableStatistics, ViewFacts,
};

pub(crate) use self::difference::{differences, relevant_settings, renewed_statistics};

/// Maximum number of tables of a database that are examined, the largest first.
const TABLES_MAX: usize = 500;

/// Settings that are ignored: they may differ between equal servers, may contain passwords, or are
/// set by the session itself.
const IGNORED_SETTINGS: &str = "'application_name', 'client_encoding', 'cluster_name', \
    'config_file', 'data_directory', 'external_pid_file', 'hba_file', 'ident_file', \
    'in_hot_standby', 'listen_addresses', 'log_directory', 'log_filename', 'port', \
    'primary_conninfo', 'primary_slot_name', 'server_version', 'server_version_num', \
    'shared_memory_size', 'shared_memory_size_in_huge_pages', 'ssl_ca_file', 'ssl_cert_file', \
    'ssl_key_file', 'synchronous_standby_names', 'syslog_ident', 'temp_tablespaces', \
    'transaction_deferrable', 'transaction_isolation', 'transaction_read_only', \
    'unix_socket_directories', 'bonjour_name'";

/// Returns the query of the settings that are compared. Settings whose names end in `_command` and
/// custom settings with text values are omitted, because they may contain passwords.
fn settings_sql() -> String {
    format!(
        "select name, setting, coalesce(boot_val, ''), coalesce(unit, '')
         from pg_catalog.pg_settings
         where source not in ('client', 'session', 'override')
           and name not in ({IGNORED_SETTINGS}) and name not like '%\\_command'
           and not (category = 'Customized Options' and vartype = 'string')
         order by name"
    )
}

const EXTENSIONS_SQL: &str = "select extname, extversion from pg_catalog.pg_extension order by 1";

/// Returns the query of the largest tables, with their sizes and statistics. `reltuples` is used
/// where the cumulative statistics are empty, as after a crash or a restore. It is negative if the
/// table was never vacuumed or analyzed (since PostgreSQL 14). Sizes are computed only for the
/// listed tables, because each size costs system calls.
fn tables_sql() -> String {
    format!(
        "with largest as (
             select c.oid, n.nspname, c.relname, c.reltuples
             from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
             where c.relkind in ('r', 'm') and c.relpersistence <> 't'
               and n.nspname not in ('pg_catalog', 'information_schema')
               and n.nspname not like 'pg\\_toast%'
             order by c.relpages desc, n.nspname, c.relname limit {}
         )
         select t.nspname, t.relname, coalesce(pg_catalog.pg_table_size(t.oid), 0),
                case when coalesce(s.n_live_tup, 0) > 0 then s.n_live_tup
                     else greatest(t.reltuples, 0)::bigint end,
                coalesce(s.n_dead_tup, 0),
                extract(epoch from pg_catalog.now()
                        - greatest(s.last_analyze, s.last_autoanalyze))::bigint,
                t.reltuples < 0
         from largest t left join pg_catalog.pg_stat_all_tables s on s.relid = t.oid",
        TABLES_MAX + 1
    )
}

/// Selects the definition of each valid index without its name, so that a renamed index is not a
/// difference.
const INDEXES_SQL: &str = "\
    select n.nspname, t.relname, c.relname,
           replace(pg_catalog.pg_get_indexdef(i.indexrelid),
                   ' INDEX ' || pg_catalog.quote_ident(c.relname) || ' ON ', ' INDEX ON '),
           coalesce(pg_catalog.pg_relation_size(i.indexrelid), 0)
    from pg_catalog.pg_index i
    join pg_catalog.pg_class c on c.oid = i.indexrelid
    join pg_catalog.pg_class t on t.oid = i.indrelid
    join pg_catalog.pg_namespace n on n.oid = t.relnamespace
    where i.indisvalid and t.relkind in ('r', 'm')
      and n.nspname not in ('pg_catalog', 'information_schema') and n.nspname not like 'pg\\_toast%'
    order by 1, 2, 3";

const TRIGGERS_SQL: &str = "\
    select n.nspname, t.relname, g.tgname
    from pg_catalog.pg_trigger g
    join pg_catalog.pg_class t on t.oid = g.tgrelid
    join pg_catalog.pg_namespace n on n.oid = t.relnamespace
    where not g.tgisinternal and g.tgenabled <> 'D' order by 1, 2, 3";

/// Selects the views, and the tables that they read directly or through other views: a view depends
/// on them by its rule.
const VIEWS_SQL: &str = "\
    with recursive reads as (
        select distinct r.ev_class as view, d.refobjid as read
        from pg_catalog.pg_rewrite r
        join pg_catalog.pg_depend d on d.classid = 'pg_catalog.pg_rewrite'::regclass
            and d.objid = r.oid and d.refclassid = 'pg_catalog.pg_class'::regclass
        where d.refobjid <> r.ev_class
    ), closure as (
        select view, read from reads
        union
        select c.view, r.read from closure c join reads r on r.view = c.read
    )
    select vn.nspname, v.relname, tn.nspname, t.relname
    from closure c
    join pg_catalog.pg_class v on v.oid = c.view
    join pg_catalog.pg_namespace vn on vn.oid = v.relnamespace
    join pg_catalog.pg_class t on t.oid = c.read
    join pg_catalog.pg_namespace tn on tn.oid = t.relnamespace
    where v.relkind = 'v' and t.relkind in ('r', 'p', 'm')
      and vn.nspname not in ('pg_catalog', 'information_schema')
      and tn.nspname not in ('pg_catalog', 'information_schema')
    order by 1, 2, 3, 4 limit 5000";

/// Queries the facts of the server at `target`, and of its database.
///
/// # Errors
///
/// The server refused a query that needs no privilege, or the connection is lost.
pub(crate) fn query_facts(
    client: &mut Client,
    target: &ConnectTarget,
) -> Result<ServerFacts, QueryError> {
    let TargetFacts { database, identity, clients, .. } = TargetFacts::query(client)?;
    let size = "select pg_catalog.pg_database_size(pg_catalog.current_database())";
    let database_bytes = client.one_value(size).ok().flatten();
    let (tables, is_truncated) = query_tables(client, None)?;
    Ok(ServerFacts {
        target: target.to_string(),
        database,
        version: client.parameter("server_version").unwrap_or_default().to_owned(),
        system_identifier: identity.system_identifier,
        timeline: identity.timeline,
        settings: query_settings(client)?,
        extensions: pairs(&client.query(EXTENSIONS_SQL)?),
        database_bytes: database_bytes.and_then(|bytes| bytes.parse().ok()).unwrap_or(0),
        tables,
        is_truncated,
        views: query_views(client, None)?,
        active_clients: clients.sessions,
    })
}

/// Adds the tables, views and extensions of another database, which `client` is connected to.
/// `database` is its name in the report.
///
/// # Errors
///
/// See [`query_facts`].
pub(crate) fn add_database_facts(
    facts: &mut ServerFacts,
    client: &mut Client,
    database: &str,
) -> Result<(), QueryError> {
    let (tables, is_truncated) = query_tables(client, Some(database))?;
    facts.tables.extend(tables);
    facts.is_truncated |= is_truncated;
    facts.views.extend(query_views(client, Some(database))?);
    let extensions = pairs(&client.query(EXTENSIONS_SQL)?).into_iter();
    let extensions = extensions.map(|(name, version)| (format!("{name} in {database}"), version));
    facts.extensions.extend(extensions);
    Ok(())
}

fn query_settings(client: &mut Client) -> Result<BTreeMap<String, SettingValue>, QueryError> {
    let results = client.query(&settings_sql())?;
    let setting = |row: &ResultRow| {
        let unit = cell(row, 3);
        let value = SettingValue {
            value: setting_text(&cell(row, 1), &unit),
            default: setting_text(&cell(row, 2), &unit),
        };
        (cell(row, 0), value)
    };
    Ok(rows(&results).map(setting).collect())
}

fn query_tables(
    client: &mut Client,
    database: Option<&str>,
) -> Result<(Vec<TableFacts>, bool), QueryError> {
    let results = client.query(&tables_sql())?;
    let mut tables: BTreeMap<TableName, TableFacts> = rows(&results)
        .take(TABLES_MAX)
        .map(|row| {
            let facts = TableFacts {
                name: table_name(database, row, 0),
                bytes: number(row, 2),
                statistics: TableStatistics {
                    live_rows: number(row, 3),
                    dead_rows: number(row, 4),
                    analyzed_s: row.text(5).and_then(|seconds| seconds.parse().ok()),
                    is_missing: row.text(6).as_deref() == Some("t"),
                },
                indexes: Vec::new(),
                triggers: Vec::new(),
            };
            (facts.name.clone(), facts)
        })
        .collect();
    let is_truncated = rows(&results).count() > TABLES_MAX;
    for row in rows(&client.query(INDEXES_SQL)?) {
        if let Some(table) = tables.get_mut(&table_name(database, row, 0)) {
            let (name, definition) = (cell(row, 2), cell(row, 3));
            table.indexes.push(IndexFacts { name, definition, bytes: number(row, 4) });
        }
    }
    for row in rows(&client.query(TRIGGERS_SQL)?) {
        if let Some(table) = tables.get_mut(&table_name(database, row, 0)) {
            table.triggers.push(cell(row, 2));
        }
    }
    Ok((tables.into_values().collect(), is_truncated))
}

fn query_views(client: &mut Client, database: Option<&str>) -> Result<Vec<ViewFacts>, QueryError> {
    let mut views: Vec<ViewFacts> = Vec::new();
    for row in rows(&client.query(VIEWS_SQL)?) {
        let (name, table) = (table_name(database, row, 0), table_name(database, row, 2));
        match views.last_mut().filter(|view| view.name == name) {
            Some(view) => view.tables.push(table),
            None => views.push(ViewFacts { name, tables: vec![table] }),
        }
    }
    Ok(views)
}

/// Formats a value with its unit, as people write it: `16384` of `8kB` becomes `128MB`.
fn setting_text(value: &str, unit: &str) -> String {
    let kilobytes = match unit {
        "" => return value.to_owned(),
        "kB" => Some(1),
        "MB" => Some(1 << 10),
        unit => unit.strip_suffix("kB").and_then(|factor| factor.parse::<i64>().ok()),
    };
    match (kilobytes, value.parse::<i64>()) {
        // Negative values and zero are special, and have no unit.
        (_, Ok(..=0)) => value.to_owned(),
        (Some(factor), Ok(value)) => match value.saturating_mul(factor) {
            kilobytes if kilobytes % (1 << 20) == 0 => format!("{}GB", kilobytes >> 20),
            kilobytes if kilobytes % (1 << 10) == 0 => format!("{}MB", kilobytes >> 10),
            kilobytes => format!("{kilobytes}kB"),
        },
        _ => format!("{value}{unit}"),
    }
}

fn rows(results: &[ResultSet]) -> impl Iterator<Item = &ResultRow> {
    results.iter().flat_map(|result| &result.rows)
}

fn pairs(results: &[ResultSet]) -> BTreeMap<String, String> {
    rows(results).map(|row| (cell(row, 0), cell(row, 1))).collect()
}

fn cell(row: &ResultRow, column: usize) -> String {
    row.text(column).unwrap_or_default().into_owned()
}

fn number(row: &ResultRow, column: usize) -> u64 {
    row.text(column).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Returns the table whose schema and name are in `column` and the next one.
fn table_name(database: Option<&str>, row: &ResultRow, column: usize) -> TableName {
    let database = database.map(str::to_owned);
    TableName { database, schema: cell(row, column), name: cell(row, column + 1) }
}

#[test]
fn settings_have_readable_units() {
    let cases = [
        ("16384", "8kB", "128MB"),
        ("4096", "kB", "4MB"),
        ("100", "kB", "100kB"),
        ("1024", "MB", "1GB"),
        ("300", "s", "300s"),
        ("-1", "8kB", "-1"),
        ("0", "ms", "0"),
        ("0.5", "ms", "0.5ms"),
        ("on", "", "on"),
    ];
    for (value, unit, text) in cases {
        assert_eq!(setting_text(value, unit), text);
    }
}
