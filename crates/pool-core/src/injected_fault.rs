//! Faults that tests inject, to prove that the simulator detects them. None is injected outside
//! tests.

/// A fault injected by a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InjectedFault {
    /// A server is assigned to another client while replies are still outstanding.
    CrossTalk,
    /// A released server is given to another client without resetting its session state.
    DirtyReuse,
    /// A server is assigned to another client while a CancelRequest to it is in flight.
    StrayCancel,
    /// Replies to Parse and Close that the pooler itself generates are sent twice.
    DoubleReply,
    /// Clients share statements that were parsed under different settings.
    ForeignLiterals,
    /// Servers are opened although a connection limit is reached.
    LimitBreach,
    /// Requests for the primary go to an arbitrary member.
    WriteToAnyMember,
    /// Connections to a replaced primary stay in use.
    Unfenced,
    /// Connections to unresponsive members stay in use.
    UnresponsiveKept,
    /// Requests for one shard go to an arbitrary shard.
    WrongShard,
    /// Replies of a mirror are sent to the client.
    MirrorReplies,
    /// An idle client is disconnected when its mirror fails.
    MirrorFailurePropagates,
    /// A client waits until its mirror has caught up.
    MirrorBlocksClient,
    /// A failed server login disconnects all clients that wait for a server.
    LoginFailureRefusesAll,
    /// Writes are rerouted like reads.
    WritesRerouted,
}

#[cfg(test)]
impl InjectedFault {
    pub(crate) const ALL: [Self; 15] = [
        Self::CrossTalk,
        Self::DirtyReuse,
        Self::StrayCancel,
        Self::DoubleReply,
        Self::ForeignLiterals,
        Self::LimitBreach,
        Self::WriteToAnyMember,
        Self::Unfenced,
        Self::UnresponsiveKept,
        Self::WrongShard,
        Self::MirrorReplies,
        Self::MirrorFailurePropagates,
        Self::MirrorBlocksClient,
        Self::LoginFailureRefusesAll,
        Self::WritesRerouted,
    ];
}
