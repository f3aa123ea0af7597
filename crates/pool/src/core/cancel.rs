//! Cancelling statements. A server is not handed on while a CancelRequest to it is under way: it
//! might hit the next client's statement.

use howdah_wire::startup::CancelKey;

use super::Core;
use crate::{Io, client::slot_of_key, ids::ServerId, owed::Audience, server::ServerState};

impl Core {
    pub(super) fn cancel_by_key(&mut self, key: &CancelKey, io: &mut dyn Io) {
        let Some((id, client)) = slot_of_key(key).and_then(|slot| self.clients.at(slot)) else {
            return;
        };
        if client.cancel_key(self.worker, id) != *key {
            return;
        }
        let Some(server_id) = client.server() else { return };
        let front = self.servers.get(server_id).and_then(|server| server.owed.front());
        match front.map(|front| front.audience) {
            Some(Audience::Client) => self.order_cancel(server_id, io),
            // It would hit what the pooler asked for before the client's request.
            Some(_) => {
                if let Some(client) = self.clients.get_mut(id) {
                    client.cancel_due = true;
                }
            }
            None => {}
        }
    }

    /// Has a server cancel what it is doing, if it is doing anything.
    pub(super) fn order_cancel(&mut self, id: ServerId, io: &mut dyn Io) {
        let Some(server) = self.servers.get_mut(id) else { return };
        if server.owed.is_empty() {
            return;
        }
        if let Some(key) = &server.cancel_key {
            server.cancels += 1;
            io.send_cancel(id, server.pool, key);
        }
    }

    pub(super) fn cancel_over(&mut self, id: ServerId, io: &mut dyn Io) {
        let Some(server) = self.servers.get_mut(id) else { return };
        server.cancels = server.cancels.saturating_sub(1);
        if server.cancels == 0 && server.state == ServerState::Cleaning {
            self.go_on_cleaning(id, io);
        }
    }
}
