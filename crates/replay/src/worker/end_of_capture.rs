//! The end of the capture: closes sessions that have no Disconnect event.
//!
//! A capture may end anywhere: a log is truncated, a slice ends, `--until` is reached. A session
//! without a Disconnect then has no further event but still holds its connection, and with it the
//! locks of an open transaction. Other sessions may wait for those locks, so such sessions are
//! closed before all others have finished:
//!
//! ```text
//! paced                   when the time of the capture's last event has come
//! at the highest speed,
//! or with think times     after STALL_TIMEOUT without progress: the sessions with events left may
//!                         be blocked by one of these
//! ```

use std::time::Instant;

use howdah_traffic::Timestamp;

use super::{HOUSEKEEPING_INTERVAL, ReplayWorker, SlotId, admission::STALL_TIMEOUT};
use crate::player::LinkState;

impl ReplayWorker {
    /// Closes sessions that have no further events, when it is time to. Called once all events have
    /// been popped; `last` is the captured time of the latest event of all workers. Returns true
    /// when there is nothing left to do.
    pub(super) fn finish_sessions(&mut self, last: Timestamp, now: Instant) -> bool {
        let schedule = self.shared.schedule;
        let is_paced = schedule.is_paced() && self.shared.players.think_time.is_none();
        // When paced, a session stays open until the capture ends, even if this worker has nothing
        // more to send: sessions of other workers may wait for its locks, as they did in
        // production.
        let is_end_reached = !is_paced || schedule.due(last) <= now;
        if is_end_reached && self.is_idle() {
            return true;
        }
        let is_time_to_close = if is_paced {
            is_end_reached
        } else {
            now.saturating_duration_since(self.progress) > STALL_TIMEOUT
        };
        // Visiting all sessions is too expensive for each tick.
        if is_time_to_close && self.finish_check <= now {
            self.finish_check = now + HOUSEKEEPING_INTERVAL;
            self.close_sessions_without_events(now);
        }
        false
    }

    fn close_sessions_without_events(&mut self, now: Instant) {
        for index in 0..self.slots.len() {
            let slot_entry = &mut self.slots[index];
            let Some(player) = slot_entry.player.as_mut() else { continue };
            if !player.is_idle() || !matches!(player.link_state, LinkState::Connected) {
                continue;
            }
            self.stats.closed_in_transaction += u64::from(player.is_in_transaction());
            player.on_disconnected(now);
            if let Some(link) = slot_entry.link.take() {
                link.close();
                self.stats.open -= 1;
            }
            let generation = slot_entry.generation;
            let index = u32::try_from(index).expect("slot indexes have 32 bits");
            self.release_slot_if_done(SlotId { index, generation });
        }
    }
}
