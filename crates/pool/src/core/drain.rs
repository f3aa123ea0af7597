//! Letting clients go because the pooler is being stopped.

use super::Core;
use crate::{Io, client::ClientState, refusal::Refusal, time::Time};

impl Core {
    /// Sends away every client that asks for nothing and is in no transaction, and every one that
    /// still waits for its greeting or for a server, as PgBouncer does. The others are to be sent away when they have come to that: call
    /// it after everything that is reported, until there are no clients.
    pub fn drain(&mut self, now: Time, io: &mut dyn Io) {
        self.now = now;
        for index in 0..self.clients.slots() {
            let Some((id, client)) = self.clients.at(index) else { continue };
            let waits = client.state == ClientState::Waiting;
            if client.is_somebody() && (waits || self.is_at_rest(client)) {
                self.refuse(id, &Refusal::Shutdown, io);
            }
        }
        self.follow_spreads(io);
    }
}
