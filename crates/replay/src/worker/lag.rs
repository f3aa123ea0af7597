//! Ends the replay when a session is later than allowed.

use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

use howdah_traffic::SessionId;

use super::session_slot::SessionSlot;
use crate::pace::lag::LagPolicy;

/// The lag for which a replay was ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LagAbort {
    /// The session that was late.
    pub session: SessionId,
    /// How late its next event was.
    pub lag: Duration,
    /// The limit, from [`LagPolicy::Abort`].
    pub limit: Duration,
}

/// Ends the replay on all workers if a session is later than the policy allows.
pub(super) fn check(
    policy: LagPolicy,
    slots: &[SessionSlot],
    now: Instant,
    abort: &OnceLock<LagAbort>,
) {
    let LagPolicy::Abort(limit) = policy else { return };
    let players = slots.iter().filter_map(|slot_entry| slot_entry.player.as_ref());
    if let Some(latest) = players.max_by_key(|player| player.lag(now))
        && latest.lag(now) > limit
    {
        let lag = latest.lag(now);
        let session = latest.id.clone();
        // Another worker may have been first.
        let _ = abort.set(LagAbort { session, lag, limit });
    }
}
