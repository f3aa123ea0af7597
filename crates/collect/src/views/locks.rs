//! Sessions that wait for locks: `pg_locks`.

use crate::{
    ColumnUnit::{Seconds, Text},
    StatsView, ViewColumn,
};

/// SQL for a description of the locked object. Relation names are known only in the connected
/// database.
pub(crate) const OBJECT: &str = "CASE l.locktype \
    WHEN 'relation' THEN CASE WHEN l.database = m.oid OR l.database = 0 THEN l.relation::regclass::text \
        ELSE concat(d.datname, ':', l.relation) END \
    WHEN 'extend' THEN CASE WHEN l.database = m.oid THEN l.relation::regclass::text ELSE concat(d.datname, ':', l.relation) END \
    WHEN 'page' THEN concat(CASE WHEN l.database = m.oid THEN l.relation::regclass::text ELSE l.relation::text END, ' page ', l.page) \
    WHEN 'tuple' THEN concat(CASE WHEN l.database = m.oid THEN l.relation::regclass::text ELSE l.relation::text END, ' row (', l.page, ',', l.tuple, ')') \
    WHEN 'transactionid' THEN concat('transaction ', l.transactionid) \
    WHEN 'virtualxid' THEN concat('transaction ', l.virtualxid) \
    WHEN 'advisory' THEN concat('advisory ', l.classid, ',', l.objid) \
    ELSE concat(l.locktype, ' ', l.classid, ',', l.objid) END";

pub(super) const WAITING: StatsView = StatsView {
    name: "waiting",
    help: "Sessions that wait for a lock, and the lock.",
    columns: &[
        ViewColumn::key("pid", "Pid", &[(9, "l.pid::text")], "the waiting process"),
        ViewColumn::gauge("database", "Database", Text, &[(9, "a.datname")], "its database"),
        ViewColumn::gauge("user", "User", Text, &[(9, "a.usename")], "its role"),
        ViewColumn::key("type", "Type", &[(9, "l.locktype")], "the lock type"),
        ViewColumn::key("mode", "Mode", &[(9, "l.mode")], "the requested lock mode"),
        ViewColumn::key("object", "On", &[(9, OBJECT)], "the locked object"),
        ViewColumn::gauge(
            "waited",
            "Waited",
            Seconds,
            &[
                (9, "date_part('epoch', clock_timestamp() - a.state_change)"),
                (
                    14,
                    "date_part('epoch', clock_timestamp() - coalesce(l.waitstart, a.state_change))",
                ),
            ],
            "how long it has waited",
        ),
        ViewColumn::gauge(
            "blocked_by",
            "Blocked by",
            Text,
            &[(9, "array_to_string(pg_blocking_pids(l.pid), ' ')")],
            "processes that hold the lock or wait ahead",
        ),
        ViewColumn::gauge("query", "Query", Text, &[(9, "a.query")], "its statement"),
    ],
    from: &[(
        9,
        "pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid LEFT JOIN pg_database d ON d.oid = l.database, \
         (SELECT oid FROM pg_database WHERE datname = current_database()) m WHERE NOT l.granted",
    )],
    order: "waited",
    essential_columns: &["pid", "waited", "blocked_by", "object", "mode", "user", "database"],
    is_per_database: false,
    extension: None,
};
