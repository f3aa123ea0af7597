//! Admission: decides which events a worker pops from its inbox, and how far it reads ahead.
//!
//! When paced, a worker pops events that are due within [`LOOKAHEAD`]. If more are queued than the
//! limits allow, it skips events of sessions that lag, so a slow session cannot keep the events of
//! other sessions from being read.
//!
//! At the highest speed, a worker stops reading while many events are queued. But a queued event
//! may wait for a row lock that an event not yet read releases, for example a COMMIT that follows a
//! thousand statements of the session that is blocked by the lock. Therefore, if there has been no
//! progress for a while, such as a completed batch or a login, the worker reads on:
//!
//! ```text
//! no progress for       reads on
//!                       up to ReplayLimits::read_ahead_bytes
//! STALL_TIMEOUT         up to ReplayLimits::backlog_bytes, and opens more sessions than were
//!                       open at once
//! STARVATION_TIMEOUT    without a limit, while an idle session has no queued events: events of
//!                       sessions that lag are skipped and counted, as when paced
//! ```
//!
//! Memory stays bounded, and the session that holds the lock gets its event.

use std::time::{Duration, Instant};

use howdah_traffic::{Event, Kind, SessionId};

use super::{ReplayWorker, SessionSlot, SlotId, WorkerContext};
use crate::{
    inbox::{QueueState, QueuedEvent},
    player::{
        DropCause, EventEnd, FinishedEvent, LinkState, Player, PlayerSettings, ScheduledEvent,
        ends_transaction,
    },
    settings::ReplayLimits,
};

/// Maximum time before their due time at which events are popped, so that all messages of a batch
/// are available and a session's connection can be opened in time.
const LOOKAHEAD: Duration = Duration::from_secs(1);

/// Time without progress after which the limit is raised to `backlog_bytes`.
pub(super) const STALL_TIMEOUT: Duration = Duration::from_secs(1);

/// Time without progress after which the limit is lifted.
const STARVATION_TIMEOUT: Duration = Duration::from_secs(5);

/// Sessions opened per stall in addition to those that were open at once in the capture.
const SESSIONS_PER_STALL: usize = 16;

impl ReplayWorker {
    /// Pops the events that players can use now, and queues them.
    pub(super) fn admit(&mut self, now: Instant) -> QueueState {
        let mut events = Vec::new();
        let supply = if self.shared.schedule.is_paced() {
            self.pop_due(now, &mut events)
        } else {
            self.pop_unpaced(now, &mut events)
        };
        for queued in events {
            self.assign(queued, now);
        }
        supply
    }

    fn pop_due(&self, now: Instant, events: &mut Vec<QueuedEvent>) -> QueueState {
        let (schedule, limits) = (self.shared.schedule, self.shared.limits);
        // With think times, a session may need its events long before the schedule does.
        let reads_ahead = self.shared.players.think_time.is_some();
        // Such sessions are not late by the schedule, so that nothing can be dropped.
        let must_wait = !may_drop(&self.shared.players);
        let is_stalled = now.saturating_duration_since(self.progress) > STARVATION_TIMEOUT;
        let limit = limits.backlog_bytes.saturating_mul(if is_stalled { 2 } else { 1 });
        let mut backlog = self.backlog_bytes;
        let near = |queued: &QueuedEvent| {
            if must_wait && backlog >= limit {
                return false;
            }
            let near = schedule.due(queued.time) <= now + lookahead(backlog, limits)
                || reads_ahead && backlog < limits.read_ahead_bytes;
            backlog += if near { queued.bytes } else { 0 };
            near
        };
        self.inbox.pop_while(near, events)
    }

    fn pop_unpaced(&mut self, now: Instant, events: &mut Vec<QueuedEvent>) -> QueueState {
        let limits = self.shared.limits;
        let since_progress = now.saturating_duration_since(self.progress);
        let is_stalled = since_progress > STALL_TIMEOUT;
        let is_starved = since_progress > STARVATION_TIMEOUT
            && has_session_without_events(&self.shared, &self.slots);
        let limit_bytes = if is_stalled {
            limits.backlog_bytes
        } else {
            limits.read_ahead_bytes.min(limits.backlog_bytes)
        };
        let mut backlog = self.backlog_bytes;
        let mut present = self.slots.len() - self.free_slots.len();
        let mut extra_sessions = 0;
        let accepts = |queued: &QueuedEvent| {
            if backlog >= limit_bytes && !is_starved {
                return false;
            }
            if queued.event.action.kind() == Kind::Connect {
                // A session that has already disconnected in the capture may still be busy in the
                // replay.
                if present >= queued.open_sessions.max(1) {
                    if !is_stalled || extra_sessions == SESSIONS_PER_STALL {
                        return false;
                    }
                    extra_sessions += 1;
                }
                present += 1;
            }
            backlog += queued.bytes;
            true
        };
        let supply = self.inbox.pop_while(accepts, events);
        if extra_sessions > 0 {
            self.progress = now;
        }
        supply
    }

    /// Queues an event at its session's player, or skips it if the player lags and too many events
    /// are queued.
    fn assign(&mut self, queued: QueuedEvent, now: Instant) {
        self.shared.metrics.events_read.add(1);
        self.stats.events += 1;
        let slot = match self.by_session.get(&queued.event.session) {
            Some(slot) => *slot,
            None => self.new_slot(queued.event.session.clone(), now),
        };
        let due = self.shared.schedule.due(queued.time);
        let here = queued.available_at(due);
        let mut item = ScheduledEvent::new(queued.event, due, here, queued.bytes);
        item.time = queued.time;
        item.position = queued.position;
        let slot_entry = &mut self.slots[slot.index as usize];
        let Some(player) = slot_entry.player.as_mut() else { return };
        let limit = self.shared.limits.backlog_bytes;
        if self.backlog_bytes >= limit
            && may_drop(&self.shared.players)
            && player.is_behind(now)
            && (self.backlog_bytes >= limit.saturating_mul(2) || !releases_locks(&item.event))
        {
            let free = player.free_since;
            self.shared.note_transaction_end(&item);
            self.finished.push(FinishedEvent::unsent(
                item,
                now,
                free,
                EventEnd::Dropped(DropCause::QueueLimit),
            ));
            return;
        }
        self.backlog_bytes += item.bytes;
        let idle = !player.has_queued();
        player.push(item);
        if idle {
            if due <= now || self.shared.players.think_time.is_some() {
                self.play(slot);
            } else {
                self.set_timer(slot, due);
            }
        }
    }

    fn new_slot(&mut self, session: SessionId, now: Instant) -> SlotId {
        let slot = self.occupy_slot(session.clone(), now);
        let targets = self.shared.targets.len() as u64;
        self.slots[slot.index as usize].target = (self.stats.sessions % targets) as usize;
        self.by_session.insert(session, slot);
        self.stats.sessions += 1;
        slot
    }

    /// Creates a player for a session, in a slot of its own.
    pub(super) fn occupy_slot(&mut self, session: SessionId, now: Instant) -> SlotId {
        let index = self.free_slots.pop().unwrap_or_else(|| {
            self.slots.push(SessionSlot::default());
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 sessions at once")
        });
        let slot_entry = &mut self.slots[index as usize];
        slot_entry.generation = slot_entry.generation.wrapping_add(1);
        slot_entry.player = Some(Player::new(session, now, &self.shared.players));
        SlotId { index, generation: slot_entry.generation }
    }
}

/// Whether the next event of some session may unblock the others. The sessions of other workers are
/// not known here, so with several workers this is always true.
fn has_session_without_events(shared: &WorkerContext, slots: &[SessionSlot]) -> bool {
    let waits = |player: &Player| {
        matches!(player.link_state, LinkState::Connected)
            && !player.is_busy()
            && !player.has_queued()
    };
    shared.workers > 1
        || slots.iter().any(|slot_entry| slot_entry.player.as_ref().is_some_and(waits))
}

/// Whether events of late sessions are dropped if too many are queued. If due times do not depend
/// on the schedule alone, an event is not late because its scheduled time has passed.
pub(super) fn may_drop(players: &PlayerSettings) -> bool {
    !players.lag.depends_on_previous(players.think_time)
}

/// Returns how far ahead of their due time events are popped: zero while the backlog is full, to
/// leave room for events of sessions that do not lag.
pub(super) fn lookahead(backlog_bytes: usize, limits: ReplayLimits) -> Duration {
    if backlog_bytes >= limits.backlog_bytes { Duration::ZERO } else { LOOKAHEAD }
}

/// Whether skipping the event could block other sessions forever: locks are held until the
/// transaction or the session ends.
fn releases_locks(event: &Event) -> bool {
    event.action.kind() == Kind::Disconnect || ends_transaction(&event.action)
}
