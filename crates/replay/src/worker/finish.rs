//! The end of the capture: sessions that nothing ends.
//!
//! A capture may end in the middle of anything: a log is cut, a slice ends, `--until` is reached. A
//! session without a Disconnect then has no further event, but still holds its connection, and with it
//! the locks of an open transaction. Others may wait for those locks, so such sessions are closed
//! rather than kept until everybody is done:
//!
//! ```text
//! paced                   when the time of the capture's last event has come
//! at the highest speed    when nothing has ended for STALL: whoever has something left waits then,
//!                         perhaps for one of them
//! ```

use std::time::Instant;

use howdah_traffic::Timestamp;

use super::{HOUSEKEEPING, Slot, Worker, admission::STALL};
use crate::player::Presence;

impl Worker {
    /// Goes on after the last event was taken in; `last` is the captured time of the latest event of
    /// all workers. True when there is nothing left to do.
    pub(super) fn finish_sessions(&mut self, last: Timestamp, now: Instant) -> bool {
        let schedule = self.shared.schedule;
        // Paced, a session stays open until the capture ends although this worker has nothing more to
        // send: those of other workers may wait for its locks, as they did in production.
        let is_end_reached = !schedule.is_paced() || schedule.due(last) <= now;
        if is_end_reached && self.is_quiet() {
            return true;
        }
        let is_time_to_close = match schedule.is_paced() {
            true => is_end_reached,
            false => now.saturating_duration_since(self.progress) > STALL,
        };
        // A look at all sessions is not worth it in each turn.
        if is_time_to_close && self.finish_check <= now {
            self.finish_check = now + HOUSEKEEPING;
            self.close_sessions_without_events(now);
        }
        false
    }

    fn close_sessions_without_events(&mut self, now: Instant) {
        for index in 0..self.seats.len() {
            let seat = &mut self.seats[index];
            let Some(player) = seat.player.as_mut() else { continue };
            if !player.is_idle() || !matches!(player.presence, Presence::Here) {
                continue;
            }
            self.stats.closed_in_transaction += u64::from(player.is_in_transaction());
            player.left(now);
            if let Some(link) = seat.link.take() {
                link.close();
                self.stats.open -= 1;
            }
            let generation = seat.generation;
            let index = u32::try_from(index).expect("seats have 32-bit names");
            self.vacate_if_done(Slot { index, generation });
        }
    }
}
