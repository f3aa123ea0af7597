//! SHOW LISTENERS: the LISTEN multiplexers, each a dedicated server connection.

use howdah_pool_core::PoolStats;

use super::{
    super::snapshot::PoolerSnapshot,
    CellValue,
    ColumnType::{self, Int4, Int8, Text},
};
use crate::MultiplexerReport;

pub(super) const COLUMNS: &[(&str, ColumnType)] = &[
    ("database", Text),
    ("user", Text),
    ("server", Text),
    ("state", Text),
    ("remote_pid", Int4),
    ("clients", Int8),
    ("channels", Int8),
    ("received", Int8),
    ("delivered", Int8),
    ("dropped", Int8),
    ("connections_lost", Int8),
    ("error", Text),
];

pub(super) fn rows(view: &PoolerSnapshot) -> Vec<Vec<CellValue>> {
    let row = |report: &MultiplexerReport| {
        let pools = view.pools.iter().filter(|pool| pool.database == report.database);
        let mut stats = PoolStats::default();
        pools.for_each(|pool| stats += &pool.tally);
        let state = match (report.process_id, report.clients) {
            (Some(_), _) => "listening",
            (None, 0) => "idle",
            (None, _) => "connecting",
        };
        vec![
            report.database.as_str().into(),
            report.user.as_str().into(),
            report.server.as_str().into(),
            state.into(),
            report.process_id.into(),
            report.clients.into(),
            report.channels.into(),
            report.received.into(),
            stats.notifications.into(),
            stats.notifications_dropped.into(),
            report.lost.into(),
            report.error.clone().into(),
        ]
    };
    view.listeners.iter().map(row).collect()
}
