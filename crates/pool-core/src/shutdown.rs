//! Disconnects clients while the pooler shuts down.

use super::Core;
use crate::{CoreIo, refusal::ClientRefusal, state::client::ClientState, time::Time};

impl Core {
    /// Disconnects all clients that are idle outside a transaction, logging in, or waiting for a
    /// server, as PgBouncer does. Call this again after every event until no clients are left, so
    /// that the remaining clients are disconnected when they become idle.
    pub fn drain(&mut self, now: Time, io: &mut dyn CoreIo) {
        self.now = now;
        for index in 0..self.clients.slots() {
            let Some((id, client)) = self.clients.occupant(index) else { continue };
            let waits = client.state == ClientState::Waiting;
            if client.is_external() && (waits || self.can_disconnect(client)) {
                self.refuse(id, &ClientRefusal::Shutdown, io);
            }
        }
        self.run_deferred(io);
    }
}
