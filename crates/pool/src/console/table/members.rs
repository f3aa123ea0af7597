//! SHOW MEMBERS and BANS: the servers of clusters, and their states.

use std::time::SystemTime;

use howdah_pool_core::micros;

use super::{
    super::snapshot::{MemberView, PoolerSnapshot},
    CellValue,
    ColumnType::{self, Int4, Int8, Text},
    peers,
    pools::{host, port},
};

pub(super) const MEMBERS: &[(&str, ColumnType)] = &[
    ("database", Text),
    ("host", Text),
    ("port", Int4),
    ("role", Text),
    ("state", Text),
    ("weight", Int4),
    ("sv_active", Int4),
    ("sv_idle", Int4),
    ("sv_login", Int4),
    ("xact_count", Int8),
    ("query_count", Int8),
    ("timeline", Int8),
    ("lsn", Text),
    ("lag_bytes", Int8),
    ("lag_us", Int8),
    ("shard", Int4),
    ("reads_redirected", Int8),
    ("system_identifier", Int8),
];

pub(super) const BANS: &[(&str, ColumnType)] = &[
    ("database", Text),
    ("host", Text),
    ("port", Int4),
    ("since", Text),
    ("until", Text),
    ("reason", Text),
    ("shard", Int4),
];

pub(super) fn members(view: &PoolerSnapshot) -> Vec<Vec<CellValue>> {
    let row = |member: &MemberView| {
        let found = &member.report.findings;
        let lsn = found.lsn;
        let lsn = (lsn > 0).then(|| format!("{:X}/{:X}", lsn >> 32, lsn & 0xffff_ffff));
        let counts = &member.counts;
        vec![
            member.database.as_str().into(),
            host(&member.endpoint).into(),
            port(&member.endpoint).into(),
            member.report.role.into(),
            member.report.state.into(),
            member.weight.into(),
            (counts.servers_active + counts.servers_busy).into(),
            counts.servers_idle.into(),
            counts.servers_login.into(),
            member.transactions.into(),
            member.queries.into(),
            Some(found.timeline).filter(|it| *it > 0).into(),
            lsn.into(),
            found.lag_bytes.into(),
            found.lag.map(micros).into(),
            member.shard.into(),
            member.reads_redirected.into(),
            found.system_identifier.map_or(CellValue::Null, CellValue::Int),
        ]
    };
    view.members.iter().map(row).collect()
}

pub(super) fn bans(view: &PoolerSnapshot) -> Vec<Vec<CellValue>> {
    let row = |member: &MemberView| {
        let ban = member.report.ban.as_ref()?;
        let at = |time: howdah_pool_core::Time| -> SystemTime {
            view.at - view.now.since(time) + time.since(view.now)
        };
        Some(vec![
            member.database.as_str().into(),
            host(&member.endpoint).into(),
            port(&member.endpoint).into(),
            peers::clock(at(ban.since)),
            peers::clock(at(ban.until)),
            ban.reason.as_str().into(),
            member.shard.into(),
        ])
    };
    view.members.iter().filter_map(row).collect()
}
