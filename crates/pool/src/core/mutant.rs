//! Mistakes that the simulator has to find. Outside of tests there are none.

/// A planted mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InjectedFault {
    /// A server is handed on while it owes replies.
    CrossTalk,
    /// Nothing is reset.
    DirtyReuse,
    /// A server is handed on while a CancelRequest is under way to it.
    StrayCancel,
    /// What the pooler answers is answered twice.
    DoubleAnswer,
    /// Clients share what was parsed under another's settings.
    ForeignLiterals,
    /// Servers are opened without a permit.
    LimitBreach,
    /// What is meant for the primary goes to any member.
    WriteAstray,
    /// A server of a primary that was replaced is used as before.
    Unfenced,
    /// A server that answers no checks is waited for.
    WaitsOn,
    /// What is meant for one shard goes to any.
    OtherShard,
    /// What a mirror answers is told to the client.
    MirrorAnswers,
    /// A client that rests has to go when its mirror fails.
    MirrorFails,
    /// A client waits until its mirror has caught up.
    MirrorHoldsUp,
    /// Clients that wait for a server are sent away when one cannot be opened.
    LoginFailureRefusesAll,
    /// Whatever a server has not answered is asked of another.
    WritesElsewhere,
}

#[cfg(test)]
impl InjectedFault {
    pub(crate) const ALL: [Self; 15] = [
        Self::CrossTalk,
        Self::DirtyReuse,
        Self::StrayCancel,
        Self::DoubleAnswer,
        Self::ForeignLiterals,
        Self::LimitBreach,
        Self::WriteAstray,
        Self::Unfenced,
        Self::WaitsOn,
        Self::OtherShard,
        Self::MirrorAnswers,
        Self::MirrorFails,
        Self::MirrorHoldsUp,
        Self::LoginFailureRefusesAll,
        Self::WritesElsewhere,
    ];
}
