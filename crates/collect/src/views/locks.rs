//! Sessions that wait for locks: `pg_locks`.

use crate::{
    Column,
    Unit::{Seconds, Text},
    View,
};

/// What a lock is on, in words. Names of relations are known only in the connection's own database.
const OBJECT: &str = "CASE l.locktype \
    WHEN 'relation' THEN CASE WHEN l.database = m.oid OR l.database = 0 THEN l.relation::regclass::text \
        ELSE concat(d.datname, ':', l.relation) END \
    WHEN 'extend' THEN CASE WHEN l.database = m.oid THEN l.relation::regclass::text ELSE concat(d.datname, ':', l.relation) END \
    WHEN 'page' THEN concat(CASE WHEN l.database = m.oid THEN l.relation::regclass::text ELSE l.relation::text END, ' page ', l.page) \
    WHEN 'tuple' THEN concat(CASE WHEN l.database = m.oid THEN l.relation::regclass::text ELSE l.relation::text END, ' row (', l.page, ',', l.tuple, ')') \
    WHEN 'transactionid' THEN concat('transaction ', l.transactionid) \
    WHEN 'virtualxid' THEN concat('transaction ', l.virtualxid) \
    WHEN 'advisory' THEN concat('advisory ', l.classid, ',', l.objid) \
    ELSE concat(l.locktype, ' ', l.classid, ',', l.objid) END";

pub(super) const WAITING: View = View {
    name: "waiting",
    help: "Sessions that wait for a lock, and for which.",
    columns: &[
        Column::key("pid", "Pid", &[(9, "l.pid::text")], "who waits"),
        Column::gauge("database", "Database", Text, &[(9, "a.datname")], "where"),
        Column::gauge("user", "User", Text, &[(9, "a.usename")], "its role"),
        Column::key("type", "Type", &[(9, "l.locktype")], "the kind of lock"),
        Column::key("mode", "Mode", &[(9, "l.mode")], "how strong a lock"),
        Column::key("object", "On", &[(9, OBJECT)], "what is locked"),
        Column::gauge(
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
            "for how long",
        ),
        Column::gauge(
            "blocked_by",
            "Blocked by",
            Text,
            &[(9, "array_to_string(pg_blocking_pids(l.pid), ' ')")],
            "processes that hold it, or wait before it",
        ),
        Column::gauge("query", "Query", Text, &[(9, "a.query")], "what it runs"),
    ],
    from: &[(
        9,
        "pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid LEFT JOIN pg_database d ON d.oid = l.database, \
         (SELECT oid FROM pg_database WHERE datname = current_database()) m WHERE NOT l.granted",
    )],
    order: "waited",
    essentials: &["pid", "waited", "blocked_by", "object", "mode", "user", "database"],
    is_of_database: false,
    extension: None,
};
