//! Standbys and replication slots: `pg_stat_replication`, `pg_replication_slots`.

use crate::{
    ColumnUnit::{Bytes, Count, Milliseconds, Seconds, Text},
    StatsView, ViewColumn,
};

/// Joins the end of WAL: the position written on a primary, or received on a cascading standby.
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

/// SQL for the bytes between an LSN and the end of WAL.
macro_rules! behind {
    ($nine:literal, $ten:literal) => {
        &[
            (9, concat!("pg_xlog_location_diff(e.lsn, s.", $nine, ")::int8")),
            (10, concat!("pg_wal_lsn_diff(e.lsn, s.", $ten, ")::int8")),
        ]
    };
}

pub(super) const REPLICATION: StatsView = StatsView {
    name: "replication",
    help: "Connected standbys and subscribers, and their lag.",
    columns: &[
        ViewColumn::key("pid", "Pid", &[(9, "s.pid::text")], "the walsender"),
        ViewColumn::gauge(
            "application",
            "Application",
            Text,
            &[(9, "s.application_name")],
            "its application_name",
        ),
        ViewColumn::gauge("user", "User", Text, &[(9, "s.usename")], "its role"),
        ViewColumn::gauge("client", "Client", Text, &[(9, "host(s.client_addr)")], "its address"),
        ViewColumn::gauge(
            "state",
            "State",
            Text,
            &[(9, "s.state")],
            "startup, catchup, streaming, …",
        ),
        ViewColumn::gauge(
            "sync",
            "Sync",
            Text,
            &[(9, "s.sync_state")],
            "async, sync, quorum, potential",
        ),
        ViewColumn::gauge(
            "send_lag",
            "To send",
            Bytes,
            behind!("sent_location", "sent_lsn"),
            "WAL not yet sent",
        ),
        ViewColumn::gauge(
            "write_lag",
            "To write",
            Bytes,
            behind!("write_location", "write_lsn"),
            "WAL not yet written there",
        ),
        ViewColumn::gauge(
            "flush_lag",
            "To flush",
            Bytes,
            behind!("flush_location", "flush_lsn"),
            "WAL not yet flushed there",
        ),
        ViewColumn::gauge(
            "replay_lag",
            "To replay",
            Bytes,
            behind!("replay_location", "replay_lsn"),
            "WAL not yet replayed there",
        ),
        ViewColumn::gauge(
            "write_ms",
            "Write ms",
            Milliseconds,
            &[(9, ""), (10, "date_part('epoch', s.write_lag) * 1000")],
            "from a flush here to its write there",
        ),
        ViewColumn::gauge(
            "flush_ms",
            "Flush ms",
            Milliseconds,
            &[(9, ""), (10, "date_part('epoch', s.flush_lag) * 1000")],
            "from a flush here to its flush there",
        ),
        ViewColumn::gauge(
            "replay_ms",
            "Replay ms",
            Milliseconds,
            &[(9, ""), (10, "date_part('epoch', s.replay_lag) * 1000")],
            "from a flush here to its replay there",
        ),
        ViewColumn::gauge(
            "xmin_age",
            "Xmin age",
            Count,
            &[(9, "age(s.backend_xmin)")],
            "transactions whose dead rows its feedback holds",
        ),
    ],
    from: beside_end_of_log!("pg_stat_replication"),
    order: "replay_lag",
    essential_columns: &["application", "state", "replay_lag", "replay_ms", "client"],
    is_per_database: false,
    extension: None,
};

pub(super) const SLOTS: StatsView = StatsView {
    name: "slots",
    help: "Replication slots, and the WAL they retain.",
    columns: &[
        ViewColumn::key("slot", "Slot", &[(9, "s.slot_name")], "its name"),
        ViewColumn::gauge("type", "Type", Text, &[(9, "s.slot_type")], "physical or logical"),
        ViewColumn::gauge(
            "plugin",
            "Plugin",
            Text,
            &[(9, "s.plugin")],
            "output plugin of a logical slot",
        ),
        ViewColumn::gauge(
            "database",
            "Database",
            Text,
            &[(9, "s.database")],
            "database of a logical slot",
        ),
        ViewColumn::gauge(
            "active_pid",
            "Active",
            Count,
            &[(9, "s.active_pid")],
            "the process that uses it",
        ),
        ViewColumn::gauge(
            "retained",
            "Retained",
            Bytes,
            behind!("restart_lsn", "restart_lsn"),
            "WAL retained for it",
        ),
        ViewColumn::gauge(
            "unconfirmed",
            "Unconfirmed",
            Bytes,
            behind!("confirmed_flush_lsn", "confirmed_flush_lsn"),
            "WAL that its subscriber has not confirmed",
        ),
        ViewColumn::gauge(
            "wal_status",
            "Log",
            Text,
            &[(9, ""), (13, "s.wal_status")],
            "reserved, extended, unreserved, lost",
        ),
        ViewColumn::gauge(
            "safe_wal_size",
            "Safe",
            Bytes,
            &[(9, ""), (13, "s.safe_wal_size")],
            "WAL that can be written before the slot may be lost",
        ),
        ViewColumn::gauge(
            "xmin_age",
            "Xmin age",
            Count,
            &[(9, "age(s.xmin)")],
            "transactions whose dead rows it holds",
        ),
        ViewColumn::gauge(
            "catalog_xmin_age",
            "Catalog age",
            Count,
            &[(9, "age(s.catalog_xmin)")],
            "the same, for system catalogs",
        ),
        ViewColumn::gauge(
            "inactive",
            "Inactive",
            Seconds,
            &[(9, ""), (17, "date_part('epoch', clock_timestamp() - s.inactive_since)")],
            "time since it was last used",
        ),
        ViewColumn::gauge(
            "invalid",
            "Invalid",
            Text,
            &[(9, ""), (17, "s.invalidation_reason")],
            "why it is invalid",
        ),
    ],
    from: beside_end_of_log!("pg_replication_slots"),
    order: "retained",
    essential_columns: &["slot", "retained", "active_pid", "wal_status", "type"],
    is_per_database: false,
    extension: None,
};
