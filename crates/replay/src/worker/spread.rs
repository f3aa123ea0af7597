//! Sessions whose transactions run on several connections. See
//! [`StatementOrder::None`](crate::StatementOrder::None).

use std::{collections::HashMap, time::Instant};

use howdah_traffic::SessionId;

use super::{ReplayWorker, SessionSlot, SlotId};
use crate::player::{LinkState, Player};

/// Maximum number of connections of one session.
const CONNECTIONS_MAX: usize = 16;

/// The further connections of sessions, which get none of the events that are read.
#[derive(Debug, Default)]
pub(super) struct FurtherConnections(HashMap<SessionId, Vec<SlotId>>);

impl ReplayWorker {
    /// Passes a session on to another of its connections, or to a new one, because its next event
    /// need not wait for the batch in flight on this one. Returns the slot of that connection;
    /// `None` if the session must wait, because it has too many.
    pub(super) fn spread(&mut self, slot: SlotId, now: Instant) -> Option<SlotId> {
        let session = self.slots[slot.index as usize].player.as_ref()?.id.clone();
        let others = self.further.0.entry(session.clone()).or_default();
        let slots = &self.slots;
        others.retain(|other| slots[other.index as usize].generation == other.generation);
        let is_free = |player: &Player| {
            !player.is_busy() && !matches!(player.link_state, LinkState::Connecting)
        };
        let free = others
            .iter()
            .position(|other| slots[other.index as usize].player.as_ref().is_some_and(is_free));
        let other = match free {
            Some(at) => others.swap_remove(at),
            None if others.len() + 1 >= CONNECTIONS_MAX => return None,
            None => self.occupy_slot(session.clone(), now),
        };
        let busy = &mut self.slots[slot.index as usize];
        let target = busy.target;
        let player = busy.player.as_mut()?;
        let (passed, settings) = (player.pass_on(), player.settings.clone());
        let free = &mut self.slots[other.index as usize];
        free.target = target;
        let player = free.player.as_mut()?;
        player.settings = settings;
        player.take_over(passed);
        self.further.0.entry(session.clone()).or_default().push(slot);
        self.by_session.insert(session, other);
        Some(other)
    }

    /// Closes the further connections of a session that has ended: now, or when they are free.
    pub(super) fn close_further(&mut self, session: &SessionId, now: Instant) {
        for slot in self.further.0.remove(session).unwrap_or_default() {
            let slot_entry = &mut self.slots[slot.index as usize];
            if slot_entry.generation != slot.generation {
                continue;
            }
            let Some(player) = slot_entry.player.as_mut() else { continue };
            player.end_when_free(now);
            self.release_slot_if_done(slot);
        }
    }
}

/// Returns the slot that gets the events of the session in `slot`, if that is another one: its next
/// event may wait for a connection.
pub(super) fn current_slot(
    by_session: &hashbrown::HashMap<SessionId, SlotId>,
    slots: &[SessionSlot],
    slot: SlotId,
) -> Option<SlotId> {
    let player = slots[slot.index as usize].player.as_ref()?;
    by_session.get(&player.id).copied().filter(|current| *current != slot)
}
