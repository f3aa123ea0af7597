//! Tables that need VACUUM, and what prevents VACUUM from removing dead rows.

use crate::{
    ColumnUnit::{Count, Percent, Seconds, Text},
    StatsView, ViewColumn,
};

/// Dead rows as a percentage of the autovacuum threshold, which is computed from the server's scale
/// factor and base threshold (manual, "The Autovacuum Daemon"), not the table's.
const DUE: &str = "100.0 * s.n_dead_tup / nullif(current_setting('autovacuum_vacuum_threshold')::float8 + \
    current_setting('autovacuum_vacuum_scale_factor')::float8 * greatest(c.reltuples, 0), 0)";

pub(super) const VACUUM: StatsView = StatsView {
    name: "vacuum",
    help: "Tables in the connected database by how much they need VACUUM.",
    columns: &[
        ViewColumn::key("schema", "Schema", &[(9, "s.schemaname")], "its schema"),
        ViewColumn::key("table", "Table", &[(9, "s.relname")], "its name"),
        ViewColumn::gauge("dead", "Dead", Count, &[(9, "s.n_dead_tup")], "dead rows, estimated"),
        ViewColumn::gauge("live", "Live", Count, &[(9, "s.n_live_tup")], "rows, estimated"),
        ViewColumn::gauge(
            "due",
            "Due",
            Percent,
            &[(9, DUE)],
            "dead rows relative to the server's autovacuum threshold",
        ),
        ViewColumn::gauge(
            "xid_age",
            "Xid age",
            Count,
            &[(9, "age(c.relfrozenxid)")],
            "age of its oldest unfrozen transaction id",
        ),
        ViewColumn::gauge(
            "wraparound",
            "Wraparound",
            Percent,
            &[(
                9,
                "100.0 * age(c.relfrozenxid) / current_setting('autovacuum_freeze_max_age')::int8",
            )],
            "that age relative to autovacuum_freeze_max_age",
        ),
        ViewColumn::gauge(
            "vacuum_age",
            "Vacuum",
            Seconds,
            &[(
                9,
                "date_part('epoch', clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum))",
            )],
            "time since the last vacuum",
        ),
        ViewColumn::gauge(
            "vacuums",
            "Vacuums",
            Count,
            &[(9, "s.vacuum_count + s.autovacuum_count")],
            "vacuums since the statistics were reset",
        ),
        ViewColumn::gauge(
            "options",
            "Options",
            Text,
            &[(9, "array_to_string(c.reloptions, ' ')")],
            "its storage parameters",
        ),
    ],
    from: &[(9, "pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid")],
    order: "due",
    essential_columns: &["table", "due", "dead", "live", "schema"],
    is_per_database: true,
    extension: None,
};

/// SQL for what prevents VACUUM from removing dead rows. `$sessions` restricts the sessions
/// further: VACUUM itself, although it has a `backend_xmin`, does not hold back other processes
/// (`PROC_IN_VACUUM` in `procarray.c`), and neither do its parallel workers.
macro_rules! horizon {
    ($sessions:literal) => {
        concat!(
            "(SELECT 'session' AS holder, pid::text AS name, \
            greatest(age(backend_xmin), age(backend_xid)) AS age, xact_start AS since, \
            datname::text AS database, usename::text AS usename, state, query \
            FROM pg_stat_activity \
            WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND pid <> pg_backend_pid() \
            AND pid NOT IN (SELECT pid FROM pg_stat_replication)",
            $sessions,
            " UNION ALL SELECT 'standby', coalesce(nullif(application_name, ''), pid::text), age(backend_xmin), \
            NULL, NULL, usename, state, NULL FROM pg_stat_replication WHERE backend_xmin IS NOT NULL \
         UNION ALL SELECT 'slot', slot_name, greatest(age(xmin), age(catalog_xmin)), NULL, database, NULL, \
            CASE WHEN active THEN 'active' ELSE 'inactive' END, NULL FROM pg_replication_slots \
            WHERE xmin IS NOT NULL OR catalog_xmin IS NOT NULL \
         UNION ALL SELECT 'prepared transaction', gid, age(transaction), prepared, database, owner, NULL, NULL \
            FROM pg_prepared_xacts) h"
        )
    };
}

pub(super) const HORIZON: StatsView = StatsView {
    name: "horizon",
    help: "What prevents VACUUM from removing dead rows, the oldest first.",
    columns: &[
        ViewColumn::key(
            "holder",
            "Holder",
            &[(9, "h.holder")],
            "session, standby, slot, or prepared transaction",
        ),
        ViewColumn::key("name", "Name", &[(9, "h.name")], "process id, or name"),
        ViewColumn::gauge(
            "age",
            "Age",
            Count,
            &[(9, "h.age")],
            "transactions whose dead rows it holds",
        ),
        ViewColumn::gauge(
            "since",
            "Since",
            Seconds,
            &[(9, "date_part('epoch', clock_timestamp() - h.since)")],
            "for how long, if known",
        ),
        ViewColumn::gauge("database", "Database", Text, &[(9, "h.database")], "its database"),
        ViewColumn::gauge("user", "User", Text, &[(9, "h.usename")], "its role"),
        ViewColumn::gauge("state", "State", Text, &[(9, "h.state")], "its state"),
        ViewColumn::gauge(
            "query",
            "Query",
            Text,
            &[(9, "h.query")],
            "its current or last statement",
        ),
    ],
    from: &[
        (9, horizon!("")),
        (10, horizon!(" AND pid NOT IN (SELECT pid FROM pg_stat_progress_vacuum)")),
        (
            13,
            horizon!(
                " AND coalesce(leader_pid, pid) NOT IN (SELECT pid FROM pg_stat_progress_vacuum)"
            ),
        ),
    ],
    order: "age",
    essential_columns: &[],
    is_per_database: false,
    extension: None,
};
