//! The table of sessions: slots and their ids.

use std::time::Instant;

use howdah_net::{Timers, Token};

use crate::{
    link::Link,
    pace::Schedule,
    player::{Player, ScheduledEvent},
};

/// A slot for one session. Slots are reused; the generation tells old ids from new ones.
#[derive(Default)]
pub(super) struct SessionSlot {
    pub(super) generation: u32,
    /// Index of the session's target.
    pub(super) target: usize,
    pub(super) player: Option<Player>,
    pub(super) link: Option<Link>,
    /// The Connect event of the connection being opened, if any, and the start of the attempt.
    pub(super) connecting: Option<(Option<ScheduledEvent>, Instant)>,
    pub(super) retries: u32,
    /// The deadline of the timer, if one is set.
    pub(super) timer: Option<Instant>,
}

/// Identifies a slot and its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SlotId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl SlotId {
    pub(super) fn token(self) -> Token {
        Token(u64::from(self.generation & 0x3fff_ffff) << 32 | u64::from(self.index))
    }
}

/// Moves the events that are not due yet to their due times in a changed schedule.
pub(super) fn reschedule(
    slots: &mut [SessionSlot],
    timers: &mut Timers<SlotId>,
    now: Instant,
    schedule: &Schedule,
) {
    for (slot_entry, index) in slots.iter_mut().zip(0..) {
        let Some(player) = slot_entry.player.as_mut() else { continue };
        player.reschedule(now, schedule);
        slot_entry.timer = Some(now);
        timers.insert(now, SlotId { index, generation: slot_entry.generation });
    }
}
