//! Standbys and slots: `pg_stat_replication`, `pg_replication_slots`.

use crate::{
    Column,
    Unit::{Bytes, Count, Milliseconds, Seconds, Text},
    View,
};

/// The end of the log: written here, or received by a standby that has standbys of its own.
macro_rules! beside_end_of_log {
    ($view:literal) => {
        &[
            (
                9,
                concat!(
                    $view,
                    " s, (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_xlog_receive_location() \
                     ELSE pg_current_xlog_location() END AS lsn) e"
                ),
            ),
            (
                10,
                concat!(
                    $view,
                    " s, (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() \
                     ELSE pg_current_wal_lsn() END AS lsn) e"
                ),
            ),
        ]
    };
}

/// How many bytes a place in the log is behind its end.
macro_rules! behind {
    ($nine:literal, $ten:literal) => {
        &[
            (9, concat!("pg_xlog_location_diff(e.lsn, s.", $nine, ")::int8")),
            (10, concat!("pg_wal_lsn_diff(e.lsn, s.", $ten, ")::int8")),
        ]
    };
}

pub(super) const REPLICATION: View = View {
    name: "replication",
    help: "Standbys and subscribers that are connected, and how far behind they are.",
    columns: &[
        Column::key("pid", "Pid", &[(9, "s.pid::text")], "the walsender"),
        Column::gauge(
            "application",
            "Application",
            Text,
            &[(9, "s.application_name")],
            "what it calls itself",
        ),
        Column::gauge("user", "User", Text, &[(9, "s.usename")], "its role"),
        Column::gauge("client", "Client", Text, &[(9, "host(s.client_addr)")], "where it is"),
        Column::gauge("state", "State", Text, &[(9, "s.state")], "startup, catchup, streaming, …"),
        Column::gauge(
            "sync",
            "Sync",
            Text,
            &[(9, "s.sync_state")],
            "async, sync, quorum, potential",
        ),
        Column::gauge(
            "send_lag",
            "To send",
            Bytes,
            behind!("sent_location", "sent_lsn"),
            "log not yet sent",
        ),
        Column::gauge(
            "write_lag",
            "To write",
            Bytes,
            behind!("write_location", "write_lsn"),
            "log not yet written there",
        ),
        Column::gauge(
            "flush_lag",
            "To flush",
            Bytes,
            behind!("flush_location", "flush_lsn"),
            "log not yet on disk there",
        ),
        Column::gauge(
            "replay_lag",
            "To replay",
            Bytes,
            behind!("replay_location", "replay_lsn"),
            "log not yet replayed there",
        ),
        Column::gauge(
            "write_ms",
            "Write ms",
            Milliseconds,
            &[(9, ""), (10, "date_part('epoch', s.write_lag) * 1000")],
            "from a flush here to its write there",
        ),
        Column::gauge(
            "flush_ms",
            "Flush ms",
            Milliseconds,
            &[(9, ""), (10, "date_part('epoch', s.flush_lag) * 1000")],
            "from a flush here to its flush there",
        ),
        Column::gauge(
            "replay_ms",
            "Replay ms",
            Milliseconds,
            &[(9, ""), (10, "date_part('epoch', s.replay_lag) * 1000")],
            "from a flush here to its replay there",
        ),
        Column::gauge(
            "xmin_age",
            "Xmin age",
            Count,
            &[(9, "age(s.backend_xmin)")],
            "transactions that its feedback keeps from being cleaned up",
        ),
    ],
    from: beside_end_of_log!("pg_stat_replication"),
    order: "replay_lag",
    essentials: &["application", "state", "replay_lag", "replay_ms", "client"],
    is_of_database: false,
    extension: None,
};

pub(super) const SLOTS: View = View {
    name: "slots",
    help: "Replication slots, and what they keep.",
    columns: &[
        Column::key("slot", "Slot", &[(9, "s.slot_name")], "its name"),
        Column::gauge("type", "Type", Text, &[(9, "s.slot_type")], "physical or logical"),
        Column::gauge("plugin", "Plugin", Text, &[(9, "s.plugin")], "of a logical slot"),
        Column::gauge("database", "Database", Text, &[(9, "s.database")], "of a logical slot"),
        Column::gauge(
            "active_pid",
            "Active",
            Count,
            &[(9, "s.active_pid")],
            "the process that uses it",
        ),
        Column::gauge(
            "retained",
            "Retained",
            Bytes,
            behind!("restart_lsn", "restart_lsn"),
            "log kept for it",
        ),
        Column::gauge(
            "unconfirmed",
            "Unconfirmed",
            Bytes,
            behind!("confirmed_flush_lsn", "confirmed_flush_lsn"),
            "log that its subscriber has not confirmed",
        ),
        Column::gauge(
            "wal_status",
            "Log",
            Text,
            &[(9, ""), (13, "s.wal_status")],
            "reserved, extended, unreserved, lost",
        ),
        Column::gauge(
            "safe_wal_size",
            "Safe",
            Bytes,
            &[(9, ""), (13, "s.safe_wal_size")],
            "log that can be written before it may be lost",
        ),
        Column::gauge(
            "xmin_age",
            "Xmin age",
            Count,
            &[(9, "age(s.xmin)")],
            "transactions it keeps from being cleaned up",
        ),
        Column::gauge(
            "catalog_xmin_age",
            "Catalog age",
            Count,
            &[(9, "age(s.catalog_xmin)")],
            "the same, for system catalogs",
        ),
        Column::gauge(
            "inactive",
            "Inactive",
            Seconds,
            &[(9, ""), (17, "date_part('epoch', clock_timestamp() - s.inactive_since)")],
            "since it was last used",
        ),
        Column::gauge(
            "invalid",
            "Invalid",
            Text,
            &[(9, ""), (17, "s.invalidation_reason")],
            "why it cannot be used any more",
        ),
    ],
    from: beside_end_of_log!("pg_replication_slots"),
    order: "retained",
    essentials: &["slot", "retained", "active_pid", "wal_status", "type"],
    is_of_database: false,
    extension: None,
};
