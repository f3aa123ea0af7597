//! [`Coverage`]: counts of the situations that simulations must reach. A simulation without any
//! failover proves nothing about failovers.

use std::collections::BTreeMap;

/// A situation that enough simulations must reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Situation {
    /// A standby of one of several shards is promoted.
    ShardFailover,
    /// A standby of one of several shards runs a statement.
    ShardStandbyRead,
    /// A client moves to another process.
    ClientTakenOver,
    /// A client with prepared statements moves to another process.
    StatementsTakenOver,
    /// A listening client moves to another process.
    ChannelsTakenOver,
    /// A connect query runs again after a reset.
    ConnectQueryRepeated,
    /// A server in adaptive mode has told that its session has state.
    SessionStateFound,
    /// A statement is parsed while a parameter that affects it has a value that was not reported.
    ParsedUnderUnreportedSetting,
    /// A statement is parsed while reported parameters that affect it do not have their defaults.
    ParsedUnderChangedSettings,
    /// A shard runs its part of a read on several shards.
    FanOutRead,
    /// A shard fails in a request on several shards.
    FanOutFailed,
    /// A request on several shards is cancelled.
    FanOutCancelled,
    /// A shard commits its rows of a COPY to several shards.
    TableCopyCommitted,
    /// A shard rolls back its rows of a COPY to several shards.
    TableCopyRolledBack,
}

impl Situation {
    pub(super) const ALL: [Self; 14] = [
        Self::ShardFailover,
        Self::ShardStandbyRead,
        Self::ClientTakenOver,
        Self::StatementsTakenOver,
        Self::ChannelsTakenOver,
        Self::ConnectQueryRepeated,
        Self::SessionStateFound,
        Self::ParsedUnderUnreportedSetting,
        Self::ParsedUnderChangedSettings,
        Self::FanOutRead,
        Self::FanOutFailed,
        Self::FanOutCancelled,
        Self::TableCopyCommitted,
        Self::TableCopyRolledBack,
    ];
}

/// Counts of the situations that simulations have reached.
#[derive(Clone, Debug, Default)]
pub(super) struct Coverage(BTreeMap<Situation, u64>);

impl Coverage {
    pub(super) fn record(&mut self, situation: Situation) {
        *self.0.entry(situation).or_default() += 1;
    }

    pub(super) fn count(&self, situation: Situation) -> u64 {
        self.0.get(&situation).copied().unwrap_or_default()
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (situation, count) in &other.0 {
            *self.0.entry(*situation).or_default() += count;
        }
    }
}
