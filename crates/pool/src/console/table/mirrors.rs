//! SHOW MIRRORS: other clusters to which a sample of a database's traffic is mirrored.

use howdah_pool_core::micros;

use super::{
    super::snapshot::{MirrorView, PoolerSnapshot},
    CellValue,
    ColumnType::{self, Int4, Int8, Numeric, Text},
    pools::{host, port},
};

pub(super) const COLUMNS: &[(&str, ColumnType)] = &[
    ("database", Text),
    ("host", Text),
    ("port", Int4),
    ("dbname", Text),
    ("sample_rate", Numeric),
    ("clients", Int8),
    ("sv_active", Int4),
    ("sv_idle", Int4),
    ("sv_login", Int4),
    ("xact_count", Int8),
    ("query_count", Int8),
    ("query_time", Int8),
    ("buffered_bytes", Int8),
    ("failed_mirror_only", Int8),
    ("failed_client_only", Int8),
    ("sqlstate_differs", Int8),
    ("error_classes", Text),
    ("last_error", Text),
    ("dropped", Int8),
    ("dropped_buffer_full", Int8),
    ("dropped_too_large", Int8),
    ("dropped_unreachable", Int8),
    ("dropped_timeout", Int8),
    ("dropped_connection_lost", Int8),
    ("dropped_cancelled", Int8),
    ("dropped_client_gone", Int8),
    ("dropped_bytes", Int8),
];

pub(super) fn rows(view: &PoolerSnapshot) -> Vec<Vec<CellValue>> {
    view.mirrors.iter().map(row).collect()
}

fn row(mirror: &MirrorView) -> Vec<CellValue> {
    let (report, counts) = (&mirror.report, &mirror.counts);
    let class = |([first, second], count): &([u8; 2], u64)| {
        format!("{}{}={count}", char::from(*first), char::from(*second))
    };
    let classes = report.classes.iter().map(class).collect::<Vec<_>>().join(" ");
    let mut row = vec![
        mirror.database.as_str().into(),
        host(&mirror.endpoint).into(),
        port(&mirror.endpoint).into(),
        mirror.dbname.as_deref().into(),
        mirror.sample_rate.to_string().into(),
        report.clients.into(),
        (counts.servers_active + counts.servers_busy).into(),
        counts.servers_idle.into(),
        counts.servers_login.into(),
        report.transactions.into(),
        mirror.queries.into(),
        micros(mirror.query_time).into(),
        report.buffered_bytes.into(),
        report.failed_mirror_only.into(),
        report.failed_client_only.into(),
        report.sqlstate_differs.into(),
        classes.into(),
        report.last_error.clone().into(),
        report.dropped_total().into(),
    ];
    row.extend(report.dropped.iter().map(|count| (*count).into()));
    row.push(report.dropped_bytes.into());
    row
}

#[test]
fn every_drop_reason_has_column() {
    use howdah_pool_core::DropReason;
    let names: Vec<_> = COLUMNS.iter().map(|(name, _)| *name).collect();
    let first = names.iter().position(|name| *name == "dropped").unwrap() + 1;
    let reasons = DropReason::ALL.map(|why| format!("dropped_{}", why.as_str()));
    assert_eq!(names[first..first + reasons.len()], reasons);
    for (at, why) in DropReason::ALL.iter().enumerate() {
        assert_eq!(*why as usize, at);
    }
}
