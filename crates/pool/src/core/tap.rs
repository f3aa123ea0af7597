//! What clients say and hear goes on a tape, while a capture is made.
//!
//! Bytes are taken as they come, whatever becomes of them here: what the pooler itself asks of servers, and
//! what these answer to that, is no part of it. Without a tape this costs a comparison for each read and
//! each message.

use howdah_record::{CaptureBuffer, Entry};
use howdah_wire::{Backend, Frame, backend::TransactionStatus};

use super::{Core, reply::Listener};
use crate::{
    client::{Client, ClientState, Syncing},
    ids::{ClientId, ServerId},
    server::Server,
    slab::Slab,
    time::Time,
};

impl Core {
    /// Records clients from here on: new ones from their beginning, others from when they are between
    /// two transactions.
    pub fn record(&mut self, tape: CaptureBuffer) {
        self.stop_recording();
        self.tape = Some(Box::new(tape));
        self.overhears = true;
    }

    /// Ends that.
    pub fn stop_recording(&mut self) {
        if let Some(tape) = self.tape.take() {
            tape.end();
        }
        self.overhears = self.mirrored > 0;
    }

    /// When [`Core::hand_over_tape`] is due; [`Time::NEVER`] if there is nothing on a tape.
    pub fn tape_due(&self) -> Time {
        self.tape.as_ref().and_then(|tape| tape.due()).map_or(Time::NEVER, Time)
    }

    /// Hands over what lies on the tape for long enough.
    pub fn hand_over_tape(&mut self, now: Time) {
        if let Some(tape) = &mut self.tape
            && tape.due().is_some_and(|due| due <= now.0)
        {
            tape.hand_over();
        }
    }

    /// A client sent these bytes.
    #[inline]
    pub(super) fn tap_said(&mut self, id: ClientId, bytes: &[u8]) {
        if self.overhears {
            self.tap_said_of(id, bytes);
            self.keep_for_mirrors(id, bytes);
        }
    }

    fn tap_said_of(&mut self, id: ClientId, bytes: &[u8]) {
        let Self { tape, clients, servers, .. } = self;
        let (Some(tape), Some(client)) = (tape, clients.get_mut(id)) else { return };
        if !client.is_somebody() {
            return; // Its client has said it.
        }
        if tape.is_closed() {
            self.stop_recording();
            return;
        }
        if !tape.has(&client.mark) {
            if !is_between_transactions(client, servers) {
                return tape.passed_over(&client.mark, bytes.len());
            }
            if !tape.has_room(bytes.len()) {
                return;
            }
            enter(tape, client, false, self.now);
        }
        tape.said(&mut client.mark, bytes, self.now.0);
    }

    /// A client is greeted. What it sent before that is held.
    pub(super) fn tap_greeted(&mut self, id: ClientId) {
        let (Some(tape), Some(client)) = (&mut self.tape, self.clients.get_mut(id)) else { return };
        if !tape.has(&client.mark) && tape.has_room(client.inlet.held.len()) {
            enter(tape, client, true, self.now);
            tape.said(&mut client.mark, &client.inlet.held, self.now.0);
        }
    }

    /// A client that waited has a server.
    pub(super) fn tap_granted(&mut self, id: ClientId) {
        if let Some(tape) = &mut self.tape
            && let Some(client) = self.clients.get(id).filter(|client| tape.has(&client.mark))
        {
            tape.granted(&client.mark, self.now.0);
        }
    }

    /// Somebody cancels a client's statement.
    pub(super) fn tap_cancelled(&mut self, id: ClientId) {
        if let Some(tape) = &mut self.tape
            && let Some(client) = self.clients.get(id).filter(|client| tape.has(&client.mark))
        {
            tape.cancelled(&client.mark, self.now.0);
        }
    }

    /// A client is gone.
    pub(super) fn tap_left(&mut self, client: &Client) {
        if let Some(tape) = &mut self.tape {
            tape.left(&client.mark, self.now.0);
        }
    }

    /// A client is about to be sent what was made here.
    #[inline]
    pub(super) fn tap_made(&mut self, id: ClientId) {
        if let Some(tape) = &mut self.tape
            && let Some(client) = self.clients.get_mut(id)
            && tape.has(&client.mark)
        {
            hear_made(tape, client, self.to_client.made(), self.now);
        }
    }
}

impl Listener<'_> {
    /// The client hears this.
    #[inline]
    pub(super) fn overhear(&mut self, kind: Backend, body: &[u8]) {
        if let (Some(tape), Some(client)) = (&mut self.tape, &mut self.client) {
            tape.heard(&mut client.mark, kind, body, self.now.0);
        }
    }

    /// The client hears this instead.
    pub(super) fn overhear_made(&mut self, made: &[u8]) {
        if let (Some(tape), Some(client)) = (&mut self.tape, &mut self.client) {
            hear_made(tape, client, made, self.now);
        }
    }
}

fn hear_made(tape: &mut CaptureBuffer, client: &mut Client, mut made: &[u8], now: Time) {
    while let Ok(Some((Frame { tag, body }, rest))) = Frame::split(made, u32::MAX) {
        if let Some(kind) = Backend::from_tag(tag) {
            tape.heard(&mut client.mark, kind, body, now.0);
        }
        made = rest;
    }
}

/// Whether nothing is under way, so that what a client sends next begins a transaction.
pub(super) fn is_between_transactions(client: &Client, servers: &Slab<ServerId, Server>) -> bool {
    let is_quiet = |server: &Server| {
        server.owed.is_empty()
            && server.status == TransactionStatus::Idle
            && !server.batch_open
            && !server.skipping
            && !server.inlet.is_inside_forwarded()
    };
    let stands = match client.state {
        ClientState::Idle => true,
        ClientState::Linked(server) => servers.get(server).is_some_and(is_quiet),
        ClientState::Welcome | ClientState::Waiting | ClientState::Spread => false,
    };
    stands
        && client.inlet.held.is_empty()
        && client.inlet.at_boundary()
        && client.syncing == Syncing::No
}

fn enter(tape: &mut CaptureBuffer, client: &mut Client, is_new: bool, now: Time) {
    let entry = Entry {
        is_new,
        pool: u32::try_from(client.home.index()).unwrap_or(u32::MAX),
        settings: client.wishes.list().iter().map(|setting| (&*setting.name, &*setting.value)),
        statements: client.statements.named.iter().map(|(name, it)| (&**name, it.id, &*it.text)),
        unnamed: &client.statements.unnamed,
    };
    tape.enter(&mut client.mark, entry, now.0);
}
