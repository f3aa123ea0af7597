//! Interruption: stops a replay before its end, for example on Ctrl-C.
//!
//! Queued events are skipped immediately. Statements running on the target are cancelled, because
//! their results are not needed and they may hold locks or run for hours. A cancel request that
//! arrives before its statement has no effect, so requests are repeated. The wait for replies is
//! bounded.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use howdah_traffic::SqlState;

use super::{HOUSEKEEPING_INTERVAL, ReplayWorker, SlotId, answered, cancel_request_for};
use crate::{
    cancel::FinishedCancel,
    player::{EventEnd, FinishedEvent, Player, SkipCause},
};

/// Maximum wait for the replies of cancelled statements.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

/// Time after which a cancel request without effect is repeated.
const CANCEL_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of cancel requests that a worker has in progress at once. Each uses a connection,
/// for which the server forks a process.
const REQUESTS_MAX: usize = 32;

/// The state of an interrupted worker.
pub(super) struct Interruption {
    deadline: Instant,
    next_cancel: Instant,
    to_cancel: VecDeque<SlotId>,
}

impl ReplayWorker {
    /// Starts the interruption: skips queued events, and abandons logins and cancel requests in
    /// progress. [`Self::wind_down`] then cancels running statements.
    pub(super) fn interrupt(&mut self, now: Instant) {
        self.stats.stopped = true;
        self.inbox.close();
        self.interruption = Some(Interruption {
            deadline: now + CANCEL_TIMEOUT,
            next_cancel: now,
            to_cancel: VecDeque::new(),
        });
        for index in 0..self.slots.len() {
            let slot_entry = &mut self.slots[index];
            if let Some((item, since)) = slot_entry.connecting.take() {
                // The session has not logged in, so it cannot be terminated.
                if let Some(link) = slot_entry.link.take() {
                    link.close();
                }
                let interrupted = EventEnd::Skipped(SkipCause::Interrupted);
                self.finished.extend(item.map(|item| answered(item, since, now, interrupted)));
            }
            if let Some(player) = self.slots[index].player.as_mut() {
                self.finished.extend(player.skip_queued(now));
            }
        }
        for FinishedCancel { item, sent, .. } in self.cancels.drain() {
            let interrupted = EventEnd::Skipped(SkipCause::Interrupted);
            self.finished.extend(item.map(|item| answered(item, sent, now, interrupted)));
        }
    }

    /// Sends the cancel requests that are due, and returns the deadline of the next call; `None`
    /// when all statements have ended or the time is up.
    pub(super) fn wind_down(&mut self, now: Instant) -> Option<Instant> {
        let ending = self.interruption.as_mut()?;
        if self.stats.in_flight == 0 || now >= ending.deadline {
            return None;
        }
        if ending.to_cancel.is_empty() && now >= ending.next_cancel {
            ending.next_cancel = now + CANCEL_RETRY_INTERVAL;
            let running =
                self.slots.iter().zip(0u32..).filter(|(slot_entry, _)| {
                    slot_entry.player.as_ref().is_some_and(Player::is_busy)
                });
            ending.to_cancel = running
                .map(|(slot_entry, index)| SlotId { index, generation: slot_entry.generation })
                .collect();
        }
        while self.cancels.len() < REQUESTS_MAX
            && let Some(slot) = ending.to_cancel.pop_front()
        {
            let slot_entry = &mut self.slots[slot.index as usize];
            let running = slot_entry.player.as_ref().is_some_and(Player::is_busy);
            if !running || slot_entry.generation != slot.generation {
                continue;
            }
            if let Some(request) = cancel_request_for(slot_entry) {
                // A request that cannot be sent is repeated, like one without effect.
                let dialer = &self.shared.targets[self.slots[slot.index as usize].target].dialer;
                let _ = self.cancels.start(dialer, &self.poller, request, None, now);
            }
        }
        Some(ending.deadline.min(now + HOUSEKEEPING_INTERVAL))
    }

    /// Closes the open connections and abandons statements that are still running.
    pub(super) fn close_all(&mut self) {
        let now = Instant::now();
        let is_end_of_capture = self.interruption.is_none();
        for slot_entry in &mut self.slots {
            if let Some(link) = slot_entry.link.take() {
                link.close();
            }
            if let Some(player) = slot_entry.player.as_mut() {
                let cut_open = is_end_of_capture && player.is_in_transaction();
                self.stats.closed_in_transaction += u64::from(cut_open);
                self.finished.extend(player.abandon_in_flight(now));
            }
        }
        self.stats.open = 0;
        self.stats.in_flight = 0;
        self.backlog_bytes = 0;
        self.update_gauges();
    }
}

/// Marks a statement as cancelled instead of failed if its error is `query_canceled`, as after a
/// cancel request.
pub(super) fn mark_cancelled(one: &mut FinishedEvent) {
    if let EventEnd::Failed(failure) = &one.end
        && failure.sqlstate == Some(SqlState::QUERY_CANCELED)
    {
        one.end = EventEnd::Skipped(SkipCause::Cancelled);
    }
}
