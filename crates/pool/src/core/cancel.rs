//! Cancelling statements. A server is not handed on while a CancelRequest to it is under way: it
//! might hit the next client's statement.

use howdah_wire::{
    Frame, Frontend,
    backend::{Severity, TransactionStatus, encode},
    startup::CancelKey,
};

use super::Core;
use crate::{
    Io,
    client::{ClientState, slot_of_key},
    ids::{ClientId, Peer, ServerId},
    owed::ReplyTarget,
    server::ServerState,
    time::Time,
};

/// Appends what a client is told whose request is cancelled before a server has it.
pub(super) fn write_cancelled(buf: &mut Vec<u8>) {
    let fields = encode::essentials(Severity::Error, b"57014", CANCELLED);
    encode::error_response(buf, fields).expect("it holds no zero byte");
}

/// What PostgreSQL says.
const CANCELLED: &[u8] = b"canceling statement due to user request";

impl Core {
    /// Gives whether a client has this key.
    pub(super) fn cancel_by_key(&mut self, key: &CancelKey, io: &mut dyn Io) -> bool {
        let Some((id, client)) = slot_of_key(key).and_then(|slot| self.clients.at(slot)) else {
            return false;
        };
        // Who is no client has no key that it was given.
        if !client.is_somebody() || client.cancel_key(self.worker, id) != *key {
            return false;
        }
        self.cancel_of(id, io);
        true
    }

    /// The same for a key that another process gave to a client that came from there.
    pub fn cancel_foreign(&mut self, key: &CancelKey, now: Time, io: &mut dyn Io) {
        self.now = now;
        if let Some(id) = self.foreign_keys.get(key).copied() {
            self.cancel_of(id, io);
            self.follow_spreads(io);
        }
    }

    pub(super) fn cancel_of(&mut self, id: ClientId, io: &mut dyn Io) {
        self.tap_cancelled(id);
        self.cancels_unit(id);
        let Some(client) = self.clients.get(id) else { return };
        match client.state {
            ClientState::Waiting => return self.cancel_waiting(id, io),
            ClientState::Spread => return self.cancel_legs(id, io),
            _ => {}
        }
        let Some(server_id) = client.server() else { return };
        let front = self.servers.get(server_id).and_then(|server| server.owed.front());
        match front.map(|front| front.audience) {
            // What was asked on behalf of the client's request fails as that would; and its answer is
            // kept back by the server until it has answered that, too.
            Some(ReplyTarget::Client | ReplyTarget::Pooler) => self.order_cancel(server_id, io),
            // It would hit what the pooler asked for before the client's request.
            Some(_) => {
                if let Some(client) = self.clients.get_mut(id) {
                    client.cancel_due = true;
                }
            }
            None => {}
        }
    }

    /// Answers the request of a client that waits for a server, as if it had been cancelled there. Of
    /// a batch whose Sync has not come nothing is known yet: then the cancel came too early.
    fn cancel_waiting(&mut self, id: ClientId, io: &mut dyn Io) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let held = &mut client.inlet.held;
        let Some(bytes) = first_request(held) else { return };
        // A query string would have ended it, and a batch may have.
        client.statements.drop_unnamed();
        held.drain(..bytes);
        let is_done = held.is_empty();
        self.to_client.make(|buf| {
            write_cancelled(buf);
            encode::ready_for_query(buf, TransactionStatus::Idle);
        });
        if is_done {
            *held = Vec::new();
            client.state = ClientState::Idle;
            client.since = self.now;
            let pool = client.pool;
            self.pool(pool).waiting.retain(|waiting| *waiting != id);
        }
        self.flush_client(id, &[], io);
        self.update_pause(Peer::Client(id), io);
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

/// How many bytes in front are a whole request: all up to what ReadyForQuery answers.
fn first_request(held: &[u8]) -> Option<usize> {
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
