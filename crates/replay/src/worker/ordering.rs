//! Commit order: which sessions are held back, and when they may go on. See [`crate::order`].

use std::{cmp::Reverse, collections::BinaryHeap};

use howdah_traffic::Timestamp;

use super::{ReplayWorker, SlotId};
use crate::player::ScheduledEvent;

/// The sessions of one worker whose next event waits for commits.
#[derive(Debug, Default)]
pub(super) struct HeldSessions {
    /// Sessions by the captured time before which all transactions must have ended. Those that have
    /// gone on may still be included.
    by_need: BinaryHeap<Reverse<(Timestamp, SlotId)>>,
    /// The captured time before which all transactions had ended when the worker last looked.
    clear_until: Timestamp,
    /// Number of releases at that time.
    releases: u64,
}

impl ReplayWorker {
    /// Records that a session waits until all transactions before `needs` have ended.
    pub(super) fn wait_in_order(&mut self, slot: SlotId, needs: Timestamp) {
        let slot_entry = &mut self.slots[slot.index as usize];
        let (Some(order), Some(player)) = (&self.shared.order, &slot_entry.player) else { return };
        order.start_wait(&player.id, needs);
        self.held.by_need.push(Reverse((needs, slot)));
    }

    /// Continues the sessions that need not wait any longer since the last call, and those that the
    /// stall monitor has released.
    pub(super) fn play_freed_sessions(&mut self) {
        let Some(order) = self.shared.order.clone() else { return };
        loop {
            let (clear, releases) = (order.clear_until(), order.releases());
            if clear == self.held.clear_until && releases == self.held.releases {
                return;
            }
            self.held.clear_until = clear;
            while let Some(Reverse((needs, slot))) = self.held.by_need.peek().copied()
                && needs <= clear
            {
                self.held.by_need.pop();
                self.play(slot);
            }
            if std::mem::replace(&mut self.held.releases, releases) != releases {
                self.play_released_sessions();
            }
        }
    }

    fn play_released_sessions(&mut self) {
        let Some(order) = self.shared.order.clone() else { return };
        let held: Vec<SlotId> = self.held.by_need.iter().map(|Reverse((_, slot))| *slot).collect();
        for slot in held {
            let slot_entry = &mut self.slots[slot.index as usize];
            let player = slot_entry.player.as_mut().filter(|player| player.is_waiting_in_order());
            if slot_entry.generation == slot.generation
                && let Some(player) = player.filter(|player| order.is_released(&player.id))
            {
                player.release();
                self.play(slot);
            }
        }
    }

    /// Tells the commit order that an event is over, if it ended a transaction.
    pub(super) fn note_transaction_end(&self, item: &ScheduledEvent) {
        if let Some(order) = &self.shared.order
            && let Some(end) = item.place.ends
        {
            order.transaction_ended(end);
        }
    }
}
