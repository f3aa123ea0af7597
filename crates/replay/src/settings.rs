//! What a replay can be told.

use crate::{encoding::Encodings, identity::Identities, login_setting::LoginSetting, pace::Rate};

/// How to replay.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How fast.
    pub rate: Rate,
    /// Who sessions are on the target.
    pub identities: Identities,
    /// Which encodings their texts are in.
    pub encodings: Encodings,
    /// Settings that sessions begin with; of several for one name, the last that matches counts.
    pub login_settings: Vec<LoginSetting>,
    /// Begin every session with `default_transaction_read_only` on, whatever else sets it.
    pub is_read_only: bool,
    /// Bounds on what it may take.
    pub limits: Limits,
    /// Threads that hold sessions. One is enough for some tens of thousands of statements a second.
    pub workers: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            rate: Rate::default(),
            identities: Identities::default(),
            encodings: Encodings::default(),
            login_settings: Vec::new(),
            is_read_only: false,
            limits: Limits::default(),
            workers: 1,
        }
    }
}

/// Bounds on memory and on what a capture leaves open. Memory is per worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Rows per Execute of a portal that is fetched from; logs do not hold the number.
    pub fetch_rows: u32,
    /// At the highest speed, events are read until this many bytes wait.
    pub read_ahead_bytes: usize,
    /// When this many bytes wait, further events of sessions that are behind are skipped.
    pub backlog_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { fetch_rows: 100, read_ahead_bytes: 32 << 20, backlog_bytes: 256 << 20 }
    }
}
