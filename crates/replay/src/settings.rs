//! [`ReplaySettings`]: the pace, identities and limits of a replay.

use std::time::Duration;

use crate::{
    encoding::EncodingMap,
    identity::IdentityMap,
    login_setting::LoginSetting,
    order::StatementOrder,
    pace::{Rate, lag::LagPolicy},
};

/// Options of a replay, with defaults.
#[derive(Clone, Debug)]
pub struct ReplaySettings {
    /// Speed of the replay.
    pub rate: Rate,
    /// Longest captured time in which no statement runs, beyond which it is shortened; `None` to
    /// shorten none.
    pub idle_max: Option<Duration>,
    /// The treatment of sessions that are late.
    pub lag: LagPolicy,
    /// Factor on the captured times between the end of a statement and the start of the next. If
    /// set, these times, and not the schedule, decide when a statement is due; the schedule still
    /// decides when sessions start.
    pub think_time: Option<f64>,
    /// Order of the statements of different sessions.
    pub order: StatementOrder,
    /// Roles and databases of the sessions on the target.
    pub identities: IdentityMap,
    /// Encodings of the captured texts.
    pub encodings: EncodingMap,
    /// Settings that sessions start with. If several with the same name match, the last one
    /// applies.
    pub login_settings: Vec<LoginSetting>,
    /// Whether every session starts with `default_transaction_read_only` on, whatever else sets it.
    pub is_read_only: bool,
    /// Whether results are compared with the captured ones.
    pub checks_results: bool,
    /// Whether captured values that a server generated are replaced by those that the target
    /// generated in their place.
    pub maps_ids: bool,
    /// Limits on memory and rows.
    pub limits: ReplayLimits,
    /// Number of threads that run sessions. One is enough for tens of thousands of statements per
    /// second.
    pub workers: usize,
}

impl Default for ReplaySettings {
    fn default() -> Self {
        Self {
            rate: Rate::default(),
            idle_max: None,
            lag: LagPolicy::default(),
            think_time: None,
            order: StatementOrder::default(),
            identities: IdentityMap::default(),
            encodings: EncodingMap::default(),
            login_settings: Vec::new(),
            is_read_only: false,
            checks_results: false,
            maps_ids: false,
            limits: ReplayLimits::default(),
            workers: 1,
        }
    }
}

/// Limits on the memory of each worker, and on the rows of each fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayLimits {
    /// Rows per Execute of a portal that is fetched in parts, because logs do not contain this
    /// number.
    pub fetch_rows: u32,
    /// At the highest speed, reading pauses while this many bytes are queued, unless the replay
    /// makes no progress for a while.
    pub read_ahead_bytes: usize,
    /// Once this many bytes are queued, further events of sessions that lag are skipped.
    pub backlog_bytes: usize,
}

impl Default for ReplayLimits {
    fn default() -> Self {
        Self { fetch_rows: 100, read_ahead_bytes: 8 << 20, backlog_bytes: 256 << 20 }
    }
}
