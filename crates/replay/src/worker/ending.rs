//! An end before the end: somebody has pressed Ctrl-C.
//!
//! What waits is given up at once. What runs on the target is cancelled there, for nobody wants its
//! result and it may hold locks or run for hours. A request to cancel that arrives before its
//! statement is without effect, so it is repeated; and the wait for answers is bounded.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use howdah_traffic::SqlState;

use super::{HOUSEKEEPING, Slot, Worker, answered, cancel_of};
use crate::{
    cancel::Cancel,
    player::{End, Finished, Player, Skip},
};

/// How long answers to the cancels are waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a cancel may be without effect before it is repeated.
const AGAIN: Duration = Duration::from_secs(1);

/// Requests to cancel on their way at once. Each is a connection, for which the server starts a
/// process.
const REQUESTS_MAX: usize = 32;

/// The state of an end.
pub(super) struct Ending {
    until: Instant,
    again: Instant,
    to_cancel: VecDeque<Slot>,
}

impl Worker {
    /// Gives up what waits, and begins to cancel what runs.
    pub(super) fn interrupt(&mut self, now: Instant) {
        self.stats.stopped = true;
        self.inbox.close();
        self.ending =
            Some(Ending { until: now + PATIENCE, again: now, to_cancel: VecDeque::new() });
        for index in 0..self.seats.len() {
            let seat = &mut self.seats[index];
            if let Some((item, since)) = seat.arriving.take() {
                // Nobody is in: there is nothing to say goodbye to.
                if let Some(link) = seat.link.take() {
                    link.close();
                }
                let interrupted = End::Skipped(Skip::Interrupted);
                self.ended.extend(item.map(|item| answered(item, since, now, interrupted)));
            }
            if let Some(player) = self.seats[index].player.as_mut() {
                self.ended.extend(player.give_up_waiting(now));
            }
        }
        for Cancel { item, sent, .. } in self.cancels.drain() {
            let interrupted = End::Skipped(Skip::Interrupted);
            self.ended.extend(item.map(|item| answered(item, sent, now, interrupted)));
        }
    }

    /// Goes on with the end, and says when to be called again at the latest; `None` when nothing
    /// runs any more, or has for too long.
    pub(super) fn wind_down(&mut self, now: Instant) -> Option<Instant> {
        let ending = self.ending.as_mut()?;
        if self.stats.in_flight == 0 || now >= ending.until {
            return None;
        }
        if ending.to_cancel.is_empty() && now >= ending.again {
            ending.again = now + AGAIN;
            let busy = self
                .seats
                .iter()
                .zip(0u32..)
                .filter(|(seat, _)| seat.player.as_ref().is_some_and(Player::is_busy));
            ending.to_cancel =
                busy.map(|(seat, index)| Slot { index, generation: seat.generation }).collect();
        }
        while self.cancels.len() < REQUESTS_MAX
            && let Some(slot) = ending.to_cancel.pop_front()
        {
            let seat = &mut self.seats[slot.index as usize];
            let busy = seat.player.as_ref().is_some_and(Player::is_busy);
            if !busy || seat.generation != slot.generation {
                continue;
            }
            if let Some(request) = cancel_of(seat) {
                // One that cannot be sent is repeated, like one without effect.
                let _ = self.cancels.begin(&self.shared.dialer, &self.poller, request, None, now);
            }
        }
        Some(ending.until.min(now + HOUSEKEEPING))
    }

    /// Closes what is still open, and gives up what still runs.
    pub(super) fn leave(&mut self) {
        let now = Instant::now();
        let is_end_of_capture = self.ending.is_none();
        for seat in &mut self.seats {
            if let Some(link) = seat.link.take() {
                link.close();
            }
            if let Some(player) = seat.player.as_mut() {
                let cut_open = is_end_of_capture && player.is_in_transaction();
                self.stats.closed_in_transaction += u64::from(cut_open);
                self.ended.extend(player.give_up_flight(now));
            }
        }
        self.stats.open = 0;
        self.stats.in_flight = 0;
        self.set_gauges();
    }
}

/// During an end, what was cancelled did not fail: we have cancelled it.
pub(super) fn judge(one: &mut Finished) {
    if let End::Failed(failure) = &one.end
        && failure.sqlstate == Some(SqlState::QUERY_CANCELED)
    {
        one.end = End::Skipped(Skip::Cancelled);
    }
}
