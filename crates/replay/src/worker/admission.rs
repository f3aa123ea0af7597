//! Which events a worker takes from its inbox, and when: how far ahead of the players it reads.
//!
//! Paced, it takes what is due within [`LOOKAHEAD`], and where more waits than there is room for,
//! events of sessions that are behind are skipped. So one slow session cannot keep the others' events
//! from being read.
//!
//! At the highest speed it stops reading while much waits. But what waits may wait for a row lock
//! that is freed by an event not yet read: somebody's COMMIT behind a thousand statements of the
//! session that the lock holds up. Therefore, when nothing has ended for a while, it reads on:
//!
//! ```text
//! nothing ended for   reads on
//!                     up to Limits::read_ahead_bytes
//! STALL               up to Limits::backlog_bytes, and opens more sessions than were open at once
//! STARVED             without a limit, while a session stands there with nothing to do: events of
//!                     sessions that are behind are skipped and counted, as when paced
//! ```
//!
//! So memory stays bounded, and whoever frees the lock gets the event.

use std::time::{Duration, Instant};

use howdah_traffic::{Event, Kind, SessionId};

use super::{Seat, Slot, Worker, unsent};
use crate::{
    inbox::{Arrival, Supply},
    player::{End, Item, Player, Presence, Skip, ends_transaction},
    settings::Limits,
};

/// How far ahead of their due time events are taken from the inbox, so that a batch of messages is
/// together and a session's connection can be planned.
const LOOKAHEAD: Duration = Duration::from_secs(1);

/// How long nothing may end before the reader is let on in spite of much that waits.
pub(super) const STALL: Duration = Duration::from_secs(1);

/// How long nothing may end before it is let on in spite of all the room being taken.
const STARVED: Duration = Duration::from_secs(5);

/// Sessions opened per stall beyond those that were open at once in the capture.
const SESSIONS_PER_STALL: usize = 16;

impl Worker {
    /// Takes from the inbox what the players can do something with.
    pub(super) fn admit(&mut self, now: Instant) -> Supply {
        let mut arrivals = Vec::new();
        let supply = match self.shared.schedule.is_paced() {
            true => self.take_due(now, &mut arrivals),
            false => self.take_more(now, &mut arrivals),
        };
        for arrival in arrivals {
            self.seat(arrival, now);
        }
        supply
    }

    fn take_due(&self, now: Instant, arrivals: &mut Vec<Arrival>) -> Supply {
        let (schedule, limits) = (self.shared.schedule, self.shared.limits);
        let mut backlog = self.backlog_bytes;
        let near = |arrival: &Arrival| {
            let near = schedule.due(arrival.event.time) <= now + lookahead(backlog, limits);
            backlog += if near { arrival.bytes } else { 0 };
            near
        };
        self.inbox.take(near, arrivals)
    }

    fn take_more(&mut self, now: Instant, arrivals: &mut Vec<Arrival>) -> Supply {
        let limits = self.shared.limits;
        let quiet = now.saturating_duration_since(self.progress);
        let stalled = quiet > STALL;
        let starved = quiet > STARVED && self.somebody_waits_for_events();
        let room = match stalled {
            true => limits.backlog_bytes,
            false => limits.read_ahead_bytes.min(limits.backlog_bytes),
        };
        let mut backlog = self.backlog_bytes;
        let mut present = self.seats.len() - self.vacant.len();
        let mut crowd = 0;
        let wanted = |arrival: &Arrival| {
            if backlog >= room && !starved {
                return false;
            }
            if arrival.event.action.kind() == Kind::Connect {
                // A session that has left in the capture may not have come so far here.
                if present >= arrival.open_sessions.max(1) {
                    if !stalled || crowd == SESSIONS_PER_STALL {
                        return false;
                    }
                    crowd += 1;
                }
                present += 1;
            }
            backlog += arrival.bytes;
            true
        };
        let supply = self.inbox.take(wanted, arrivals);
        if crowd > 0 {
            self.progress = now;
        }
        supply
    }

    /// Whether the next event of some session may be one that frees the others. Of the sessions of
    /// other workers nothing is known here.
    fn somebody_waits_for_events(&self) -> bool {
        let waits = |player: &Player| {
            matches!(player.presence, Presence::Here) && !player.is_busy() && !player.has_waiting()
        };
        self.shared.workers > 1
            || self.seats.iter().any(|seat| seat.player.as_ref().is_some_and(waits))
    }

    /// Gives an event to its session's player.
    fn seat(&mut self, arrival: Arrival, now: Instant) {
        self.shared.metrics.events_read.add(1);
        self.stats.events += 1;
        let slot = match self.by_session.get(&arrival.event.session) {
            Some(slot) => *slot,
            None => self.new_seat(arrival.event.session.clone(), now),
        };
        let due = self.shared.schedule.due(arrival.event.time);
        let here = arrival.here(due);
        let item = Item::new(arrival.event, due, here, arrival.bytes);
        let seat = &mut self.seats[slot.index as usize];
        let Some(player) = seat.player.as_mut() else { return };
        let limit = self.shared.limits.backlog_bytes;
        if self.backlog_bytes >= limit
            && player.is_behind(now)
            && (self.backlog_bytes >= limit.saturating_mul(2) || !lets_others_on(&item.event))
        {
            let free = player.free();
            self.ended.push(unsent(item, End::Skipped(Skip::TooFarBehind), now, free));
            return;
        }
        self.backlog_bytes += item.bytes;
        let idle = !player.has_waiting();
        player.push(item);
        if idle {
            if due <= now {
                self.play(slot);
            } else {
                self.set_timer(slot, due);
            }
        }
    }

    fn new_seat(&mut self, session: SessionId, now: Instant) -> Slot {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.seats.push(Seat::default());
            u32::try_from(self.seats.len() - 1).expect("fewer than 2^32 sessions at once")
        });
        let seat = &mut self.seats[index as usize];
        seat.generation = seat.generation.wrapping_add(1);
        seat.player = Some(Player::new(
            session.clone(),
            now,
            self.shared.limits.fetch_rows,
            self.shared.types.clone(),
        ));
        let slot = Slot { index, generation: seat.generation };
        self.by_session.insert(session, slot);
        self.stats.sessions += 1;
        slot
    }
}

/// How far ahead of their time events are taken in: not at all while so many wait, so that those of
/// sessions that are not behind still find room.
pub(super) fn lookahead(backlog_bytes: usize, limits: Limits) -> Duration {
    if backlog_bytes >= limits.backlog_bytes { Duration::ZERO } else { LOOKAHEAD }
}

/// Whether leaving it out could hold up other sessions for good: locks are kept until the
/// transaction ends, or the session.
fn lets_others_on(event: &Event) -> bool {
    event.action.kind() == Kind::Disconnect || ends_transaction(&event.action)
}
