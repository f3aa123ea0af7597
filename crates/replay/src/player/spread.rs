//! [`TransactionSpread`]: whether the transactions of a session need not wait for each other.
//!
//! With [`StatementOrder::None`](crate::StatementOrder::None), a transaction that is due while the
//! session's previous one still runs is sent on another connection. The player of the busy
//! connection then passes its queue on to another player, which takes over the session. Only
//! between transactions can a session change its connection.

use std::collections::VecDeque;

use howdah_sql::TransactionBlock;
use howdah_traffic::{Event, Kind};

use super::{
    LinkSettings, Player, ScheduledEvent,
    batch::continues_batch,
    in_flight::InFlightBatch,
    lasting_settings::{LastingSettings, may_change_state},
};
use crate::order::sequencer::block_after;

/// The state of a session whose transactions may be spread over several connections.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TransactionSpread {
    pub(super) is_enabled: bool,
    /// Whether a transaction block was open after the event queued last.
    is_in_block: bool,
}

impl TransactionSpread {
    pub(super) fn new(is_enabled: bool) -> Self {
        Self { is_enabled, is_in_block: false }
    }

    /// Records an event that is queued. Returns whether a block was open before it.
    pub(super) fn note_queued(&mut self, event: &Event) -> bool {
        if !self.is_enabled {
            return false;
        }
        let was_in_block = self.is_in_block;
        match event.action.kind() {
            Kind::Connect | Kind::Disconnect => self.is_in_block = false,
            kind if kind.is_execution() => {
                if let Some(block) = block_after(event) {
                    self.is_in_block = block == TransactionBlock::Opened;
                }
            }
            _ => {}
        }
        was_in_block
    }
}

/// The part of a player that the one gets that takes over its session.
pub(crate) struct PassedSession {
    queue: VecDeque<ScheduledEvent>,
    spread: TransactionSpread,
    state: LastingSettings,
}

impl Player {
    /// Whether the next event can be sent on another connection instead of waiting for the batch in
    /// flight, which must not change what the session has.
    pub(super) fn can_spread(&self, flight: &InFlightBatch, next: &ScheduledEvent) -> bool {
        if !self.spread.is_enabled
            || next.is_in_block
            || matches!(next.event.action.kind(), Kind::Connect | Kind::Disconnect)
        {
            return false;
        }
        let changes =
            |event: &Event| event.action.sql().is_some_and(|sql| may_change_state(sql.as_bytes()));
        let last = flight.parts.last();
        last.is_some_and(|last| !continues_batch(&last.item.event, &next.event))
            && !flight.parts.iter().any(|part| changes(&part.item.event))
    }

    /// Passes the session on. This player has only to finish its batch in flight.
    pub(crate) fn pass_on(&mut self) -> PassedSession {
        PassedSession {
            queue: std::mem::take(&mut self.queue),
            spread: self.spread,
            state: self.lasting_settings.clone(),
        }
    }

    /// Takes over a session from the player of another connection.
    pub(crate) fn take_over(&mut self, session: PassedSession) {
        self.queue = session.queue;
        self.spread = session.spread;
        if self.lasting_settings.version() != session.state.version() {
            self.lasting_settings = session.state;
            if self.link_settings == LinkSettings::Current {
                self.link_settings = LinkSettings::Outdated;
            }
        }
    }
}
