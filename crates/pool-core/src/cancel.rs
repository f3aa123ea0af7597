//! Query cancellation. While a CancelRequest to a server is in flight, the server is not assigned
//! to another client: the request could cancel that client's statement.

use howdah_wire::{
    Frame, Frontend,
    backend::{Severity, TransactionStatus, encode},
    startup::CancelKey,
};

use super::Core;
use crate::{
    CoreIo,
    messages::outstanding::ReplyTarget,
    state::{
        client::{ClientState, slot_of_key},
        ids::{ClientId, PeerId, ServerId},
        server::ServerState,
    },
    time::Time,
};

/// Appends the error for a request that is cancelled before it is sent to a server.
pub(super) fn write_cancelled_error(buf: &mut Vec<u8>) {
    let fields = encode::essentials(Severity::Error, b"57014", CANCELLED);
    encode::error_response(buf, fields).expect("the text has no zero byte");
}

/// PostgreSQL's text for a cancelled statement.
const CANCELLED: &[u8] = b"canceling statement due to user request";

impl Core {
    /// Cancels the request of the client with this key. Returns whether such a client exists.
    pub(super) fn cancel_by_key(&mut self, key: &CancelKey, io: &mut dyn CoreIo) -> bool {
        let Some((id, client)) = slot_of_key(key).and_then(|slot| self.clients.occupant(slot))
        else {
            return false;
        };
        // The keys of internal clients (of fan-outs and mirrors) are never sent to anyone.
        if !client.is_external() || client.cancel_key(self.worker, id) != *key {
            return false;
        }
        self.cancel_client_request(id, io);
        true
    }

    /// Like [`Core::cancel`], for the key of a client that was taken over from another process.
    pub fn cancel_by_takeover_key(&mut self, key: &CancelKey, now: Time, io: &mut dyn CoreIo) {
        self.now = now;
        if let Some(id) = self.takeover_keys.get(key).copied() {
            self.cancel_client_request(id, io);
            self.run_deferred(io);
        }
    }

    /// Cancels a client's current request, whether it is waiting, runs on a server, or runs on
    /// several shards.
    pub(super) fn cancel_client_request(&mut self, id: ClientId, io: &mut dyn CoreIo) {
        self.capture_cancel(id);
        self.mark_transaction_cancelled(id);
        let Some(client) = self.clients.get(id) else { return };
        match client.state {
            ClientState::Waiting => return self.cancel_queued_request(id, io),
            ClientState::FanOut => return self.cancel_fan_out(id, io),
            _ => {}
        }
        let Some(server_id) = client.server() else { return };
        let front = self.servers.get(server_id).and_then(|server| server.outstanding.front());
        match front.map(|front| front.target) {
            // The pooler's own request precedes the client's in the same batch, so cancelling it
            // makes both fail.
            Some(ReplyTarget::Client | ReplyTarget::Pooler) => self.request_cancel(server_id, io),
            // The CancelRequest would hit a separate request of the pooler that runs before the
            // client's: try again later.
            Some(_) => {
                if let Some(client) = self.clients.get_mut(id) {
                    client.is_cancel_pending = true;
                }
            }
            None => {}
        }
    }

    /// Replies to the request of a client that waits for a server, as if a server had cancelled it.
    /// Does nothing while the Sync of the client's batch is missing: the request is not complete
    /// yet.
    fn cancel_queued_request(&mut self, id: ClientId, io: &mut dyn CoreIo) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let held = &mut client.input.buffered;
        let Some(bytes) = first_request_bytes(held) else { return };
        // On a server, a query string would have dropped the unnamed statement, and a batch may
        // have dropped it.
        client.statements.clear_unnamed();
        held.drain(..bytes);
        let is_done = held.is_empty();
        self.to_client.push_with(|buf| {
            write_cancelled_error(buf);
            encode::ready_for_query(buf, TransactionStatus::Idle);
        });
        if is_done {
            *held = Vec::new();
            client.state = ClientState::Idle;
            client.state_since = self.now;
            let pool = client.pool;
            self.pool(pool).waiting.retain(|waiting| *waiting != id);
        }
        self.flush_client(id, &[], io);
        self.update_pause(PeerId::Client(id), io);
    }

    /// Sends a CancelRequest for a server connection, if it has outstanding requests and the server
    /// sent a cancel key.
    pub(super) fn request_cancel(&mut self, id: ServerId, io: &mut dyn CoreIo) {
        let Some(server) = self.servers.get_mut(id) else { return };
        if server.outstanding.is_empty() {
            return;
        }
        if let Some(key) = &server.cancel_key {
            server.cancels_in_flight += 1;
            io.send_cancel(id, server.pool, key);
        }
    }

    /// Handles the end of a CancelRequest. If it was the last one in flight to a server that is
    /// being cleaned, takes the next step of cleaning.
    pub(super) fn finish_cancel(&mut self, id: ServerId, io: &mut dyn CoreIo) {
        let Some(server) = self.servers.get_mut(id) else { return };
        server.cancels_in_flight = server.cancels_in_flight.saturating_sub(1);
        if server.cancels_in_flight == 0 && server.state == ServerState::Cleaning {
            self.continue_cleaning(id, io);
        }
    }
}

/// Returns the length of the first complete request, up to and including its Query, FunctionCall or
/// Sync; `None` if it is incomplete or invalid.
fn first_request_bytes(held: &[u8]) -> Option<usize> {
    let mut rest = held;
    loop {
        let (frame, later) = Frame::split(rest, u32::MAX).ok()??;
        rest = later;
        if let Frontend::Query | Frontend::FunctionCall | Frontend::Sync =
            Frontend::from_tag(frame.tag)?
        {
            return Some(held.len() - rest.len());
        }
    }
}
