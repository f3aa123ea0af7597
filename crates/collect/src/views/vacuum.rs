//! What needs vacuum, and what keeps vacuum from its work.

use crate::{
    Column,
    Unit::{Count, Percent, Seconds, Text},
    View,
};

/// Dead rows as a share of those that start autovacuum, as the manual computes it ("The Autovacuum
/// Daemon"), by the server's settings and not by those of the table.
const DUE: &str = "100.0 * s.n_dead_tup / nullif(current_setting('autovacuum_vacuum_threshold')::float8 + \
    current_setting('autovacuum_vacuum_scale_factor')::float8 * greatest(c.reltuples, 0), 0)";

pub(super) const VACUUM: View = View {
    name: "vacuum",
    help: "Tables of the connected database by how much they need vacuum.",
    columns: &[
        Column::key("schema", "Schema", &[(9, "s.schemaname")], "its schema"),
        Column::key("table", "Table", &[(9, "s.relname")], "its name"),
        Column::gauge("dead", "Dead", Count, &[(9, "s.n_dead_tup")], "dead rows, estimated"),
        Column::gauge("live", "Live", Count, &[(9, "s.n_live_tup")], "rows, estimated"),
        Column::gauge(
            "due",
            "Due",
            Percent,
            &[(9, DUE)],
            "dead rows as a share of those that start autovacuum, by the server's settings",
        ),
        Column::gauge(
            "xid_age",
            "Xid age",
            Count,
            &[(9, "age(c.relfrozenxid)")],
            "transactions since its oldest that is not frozen",
        ),
        Column::gauge(
            "wraparound",
            "Wraparound",
            Percent,
            &[(
                9,
                "100.0 * age(c.relfrozenxid) / current_setting('autovacuum_freeze_max_age')::int8",
            )],
            "that age as a share of the one that forces a vacuum",
        ),
        Column::gauge(
            "vacuum_age",
            "Vacuum",
            Seconds,
            &[(
                9,
                "date_part('epoch', clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum))",
            )],
            "since the last vacuum",
        ),
        Column::gauge(
            "vacuums",
            "Vacuums",
            Count,
            &[(9, "s.vacuum_count + s.autovacuum_count")],
            "vacuums since the statistics were reset",
        ),
        Column::gauge(
            "options",
            "Options",
            Text,
            &[(9, "array_to_string(c.reloptions, ' ')")],
            "settings of its own",
        ),
    ],
    from: &[(9, "pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid")],
    order: "due",
    essentials: &["table", "due", "dead", "live", "schema"],
    is_of_database: true,
    extension: None,
};

pub(super) const HORIZON: View = View {
    name: "horizon",
    help: "What keeps dead rows from being cleaned up, the oldest first.",
    columns: &[
        Column::key(
            "holder",
            "Holder",
            &[(9, "h.holder")],
            "session, standby, slot, or prepared transaction",
        ),
        Column::key("name", "Name", &[(9, "h.name")], "process id, or name"),
        Column::gauge(
            "age",
            "Age",
            Count,
            &[(9, "h.age")],
            "transactions whose dead rows stay because of it",
        ),
        Column::gauge(
            "since",
            "Since",
            Seconds,
            &[(9, "date_part('epoch', clock_timestamp() - h.since)")],
            "for how long, where that is known",
        ),
        Column::gauge("database", "Database", Text, &[(9, "h.database")], "where"),
        Column::gauge("user", "User", Text, &[(9, "h.usename")], "whose"),
        Column::gauge("state", "State", Text, &[(9, "h.state")], "what it does"),
        Column::gauge("query", "Query", Text, &[(9, "h.query")], "what it runs, or ran last"),
    ],
    from: &[(
        9,
        "(SELECT 'session' AS holder, pid::text AS name, \
            greatest(age(backend_xmin), age(backend_xid)) AS age, xact_start AS since, \
            datname::text AS database, usename::text AS usename, state, query \
            FROM pg_stat_activity \
            WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND pid <> pg_backend_pid() \
            AND pid NOT IN (SELECT pid FROM pg_stat_replication) \
         UNION ALL SELECT 'standby', coalesce(nullif(application_name, ''), pid::text), age(backend_xmin), \
            NULL, NULL, usename, state, NULL FROM pg_stat_replication WHERE backend_xmin IS NOT NULL \
         UNION ALL SELECT 'slot', slot_name, greatest(age(xmin), age(catalog_xmin)), NULL, database, NULL, \
            CASE WHEN active THEN 'active' ELSE 'inactive' END, NULL FROM pg_replication_slots \
            WHERE xmin IS NOT NULL OR catalog_xmin IS NOT NULL \
         UNION ALL SELECT 'prepared transaction', gid, age(transaction), prepared, database, owner, NULL, NULL \
            FROM pg_prepared_xacts) h",
    )],
    order: "age",
    essentials: &[],
    is_of_database: false,
    extension: None,
};
