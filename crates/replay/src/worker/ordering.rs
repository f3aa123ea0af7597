//! Commit order: which sessions are held back, and when they may go on. See [`crate::order`].

use std::{cmp::Reverse, collections::BinaryHeap};

use howdah_traffic::Timestamp;

use super::{SessionSlot, SlotId};
use crate::order::CommitOrder;

/// The sessions of one worker whose next event waits for transactions of others.
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

impl HeldSessions {
    /// Adds a session that waits until all transactions before `needs` have ended.
    pub(super) fn add(&mut self, slot: SlotId, needs: Timestamp) {
        self.by_need.push(Reverse((needs, slot)));
    }

    /// Returns the sessions that need not wait any longer since the last call, because what they
    /// need has ended, or because the stall monitor has released them.
    pub(super) fn take_freed(
        &mut self,
        order: &CommitOrder,
        slots: &mut [SessionSlot],
    ) -> Vec<SlotId> {
        let (clear, releases) = (order.clear_until(), order.releases());
        let mut freed = Vec::new();
        if clear != self.clear_until {
            self.clear_until = clear;
            while let Some(Reverse((needs, slot))) = self.by_need.peek().copied()
                && needs <= clear
            {
                self.by_need.pop();
                freed.push(slot);
            }
        }
        if std::mem::replace(&mut self.releases, releases) != releases {
            for Reverse((_, slot)) in &self.by_need {
                let slot_entry = &mut slots[slot.index as usize];
                let player = slot_entry.player.as_mut();
                if slot_entry.generation == slot.generation
                    && let Some(player) = player.filter(|player| player.order.is_waiting())
                    && order.is_released(&player.id)
                {
                    player.order.is_released = true;
                    freed.push(*slot);
                }
            }
        }
        freed
    }
}
