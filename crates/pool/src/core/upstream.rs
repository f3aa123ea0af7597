//! From client to server: headers are walked, requests are counted, bytes go on as they are.

use howdah_wire::{Frontend, Header};

use super::Core;
use crate::{
    Io,
    client::{Client, ClientState},
    gather::Gather,
    ids::ClientId,
    inlet::{Fate, Inlet, header_at},
    owed::Request,
    refusal::Refusal,
    server::Server,
};

/// Why a walk over a client's bytes stopped.
enum Stop {
    /// Nothing can be done with what is left before more comes.
    Starved,
    /// The message in front needs a server.
    NeedsServer,
    /// The client says goodbye.
    Goodbye,
    /// The client cannot be followed.
    Fault(Refusal),
}

impl Core {
    pub(super) fn upstream(&mut self, id: ClientId, bytes: &[u8], io: &mut dyn Io) {
        let Some(client) = self.clients.get_mut(id) else { return };
        if matches!(client.state, ClientState::Waiting | ClientState::Welcome) {
            return client.inlet.hold(bytes);
        }
        let mut bytes = bytes;
        while let Some(client) = self.clients.get_mut(id)
            && !client.inlet.held.is_empty()
        {
            if client.state == ClientState::Waiting {
                return client.inlet.hold(bytes);
            }
            let (now, later) = bytes.split_at(Inlet::wanting(&client.inlet.held).min(bytes.len()));
            if now.is_empty() {
                return;
            }
            client.inlet.hold(now);
            bytes = later;
            self.replay_held(id, io);
        }
        if !bytes.is_empty() {
            let consumed = self.run(id, bytes, io);
            if let Some(client) = self.clients.get_mut(id) {
                client.inlet.hold(&bytes[consumed..]);
            }
        }
    }

    /// Deals with what was held back.
    pub(super) fn replay_held(&mut self, id: ClientId, io: &mut dyn Io) {
        let Some(client) = self.clients.get_mut(id) else { return };
        if client.inlet.held.is_empty() {
            return;
        }
        let mut held = std::mem::take(&mut client.inlet.held);
        let consumed = self.run(id, &held, io);
        let Some(client) = self.clients.get_mut(id) else { return };
        if consumed < held.len() {
            held.drain(..consumed);
            held.append(&mut client.inlet.held);
            client.inlet.held = held;
        }
    }

    /// Deals with as much of `input` as can be, and gives how much that was.
    fn run(&mut self, id: ClientId, input: &[u8], io: &mut dyn Io) -> usize {
        let mut at = 0;
        let stop = loop {
            let Some(client) = self.clients.get_mut(id) else { return input.len() };
            let server = client.server();
            let stop = match server.and_then(|server| self.servers.get_mut(server)) {
                Some(server) => walk_linked(client, server, &mut self.to_server, input, &mut at),
                None => walk_alone(client, &mut self.to_client, input, &mut at),
            };
            if matches!(stop, Stop::NeedsServer) && self.link_idle(id).is_some() {
                continue;
            }
            break stop;
        };
        self.flush_client(id, input, io);
        let server = self.clients.get(id).and_then(Client::server);
        if let Some(server) = server {
            self.flush_server(server, input, io);
        }
        match stop {
            Stop::Starved => {
                if let Some(server) = server {
                    self.release_if_settled(server, io);
                }
            }
            Stop::NeedsServer => self.wait(id, io),
            Stop::Goodbye => self.close_client(id, io),
            Stop::Fault(refusal) => self.refuse(id, &refusal, io),
        }
        at
    }
}

/// Takes what is there of a body that streams; whether all of it was.
fn stream_body(inlet: &mut Inlet, input: &[u8], at: &mut usize, to: Option<&mut Gather>) -> bool {
    let taken = (input.len() - *at).min(inlet.body_left as usize);
    if inlet.fate == Fate::Forward
        && let Some(to) = to
    {
        to.input(*at..*at + taken);
    }
    *at += taken;
    inlet.body_left -= u32::try_from(taken).expect("it is at most a u32");
    inlet.body_left == 0
}

/// A header and its kind, or why not.
fn front(input: &[u8], at: usize) -> Result<(Header, Frontend), Stop> {
    let protocol =
        |error: &dyn std::fmt::Display| Stop::Fault(Refusal::Protocol(error.to_string()));
    let header = header_at(input, at).map_err(|error| protocol(&error))?.ok_or(Stop::Starved)?;
    let kind = Frontend::from_tag(header.tag)
        .ok_or_else(|| protocol(&format_args!("no message has the tag {}", header.tag)))?;
    header.within(kind.body_bytes_max()).map_err(|error| protocol(&error))?;
    Ok((header, kind))
}

/// Walks the messages of a client that has a server.
fn walk_linked(
    client: &mut Client,
    server: &mut Server,
    to_server: &mut Gather,
    input: &[u8],
    at: &mut usize,
) -> Stop {
    loop {
        if !stream_body(&mut client.inlet, input, at, Some(to_server)) {
            return Stop::Starved;
        }
        let (header, kind) = match front(input, *at) {
            Ok(front) => front,
            Err(stop) => return stop,
        };
        let fate = match request(server, kind) {
            Some(fate) => fate,
            None if kind == Frontend::Terminate => return Stop::Goodbye,
            None => return Stop::Fault(Refusal::Protocol(format!("{kind} after the login"))),
        };
        if fate == Fate::Forward {
            to_server.input(*at..*at + Header::BYTES);
        }
        *at += Header::BYTES;
        client.inlet.fate = fate;
        client.inlet.body_left = header.body_bytes;
    }
}

/// Counts a message that a server is about to get; `None` for one that no server may get.
fn request(server: &mut Server, kind: Frontend) -> Option<Fate> {
    let request = match kind {
        Frontend::Query => Request::Query,
        Frontend::FunctionCall => Request::Function,
        Frontend::Sync if server.copying_in => return Some(Fate::Forward),
        Frontend::Sync => {
            server.batch_open = false;
            server.skipping = false;
            server.owed.push(Request::Sync);
            return Some(Fate::Forward);
        }
        Frontend::Parse => Request::Parse,
        Frontend::Bind => Request::Bind,
        Frontend::Describe => Request::Describe,
        Frontend::Execute => Request::Execute,
        Frontend::Close => Request::Close,
        Frontend::Flush => return Some(Fate::Forward),
        // Of a COPY that has failed already, say: a server would not look at it.
        Frontend::CopyData if server.owed.is_empty() => return Some(Fate::Drop),
        Frontend::CopyData => return Some(Fate::Forward),
        Frontend::CopyDone | Frontend::CopyFail => {
            if server.owed.is_empty() {
                return Some(Fate::Drop);
            }
            server.copying_in = false;
            server.owed.push(Request::CopyEnd);
            return Some(Fate::Forward);
        }
        Frontend::Terminate | Frontend::Authentication => return None,
    };
    if !server.skipping {
        server.batch_open |= !matches!(request, Request::Query | Request::Function);
        server.owed.push(request);
    }
    Some(Fate::Forward)
}

/// Walks the messages of a client that has no server, up to one that needs a server.
fn walk_alone(client: &mut Client, to_client: &mut Gather, input: &[u8], at: &mut usize) -> Stop {
    loop {
        if !stream_body(&mut client.inlet, input, at, None) {
            return Stop::Starved;
        }
        let (header, kind) = match front(input, *at) {
            Ok(front) => front,
            Err(stop) => return stop,
        };
        match kind {
            Frontend::Terminate => return Stop::Goodbye,
            Frontend::Authentication => {
                return Stop::Fault(Refusal::Protocol(format!("{kind} after the login")));
            }
            Frontend::Sync => to_client.make(|buf| {
                howdah_wire::backend::encode::ready_for_query(
                    buf,
                    howdah_wire::backend::TransactionStatus::Idle,
                );
            }),
            // Nothing is under way that could be flushed, and COPY data that comes now is of a COPY
            // that has failed already.
            Frontend::Flush | Frontend::CopyData | Frontend::CopyDone | Frontend::CopyFail => {}
            _ => return Stop::NeedsServer,
        }
        *at += Header::BYTES;
        client.inlet.fate = Fate::Drop;
        client.inlet.body_left = header.body_bytes;
    }
}
