//! From client to server: headers are walked, requests are counted, bytes go on as they are.

use std::ops::Range;

use howdah_wire::{
    Frontend, Header,
    backend::{TransactionStatus, encode},
};

use super::{
    Core,
    request::{Upstream, deallocate, deallocated_name},
    rewrite::{Message, Rewriter, Rewritten},
};
use crate::{
    Io,
    client::{Client, ClientState, Syncing},
    gather::Gather,
    ids::{ClientId, Peer},
    inlet::{Fate, Inlet, header_at},
    pool::Pool,
    refusal::Refusal,
    spec::Mode,
    statements::Statements,
};

/// Why a walk over a client's bytes stopped.
pub(super) enum Stop {
    /// Nothing can be done with what is left before more comes.
    Starved,
    /// The message in front needs a server.
    NeedsServer,
    /// The server is to accept the client's settings first.
    NeedsSettings,
    /// The client says goodbye.
    Goodbye,
    /// The client cannot be followed.
    Fault(Refusal),
    /// What the message in front means is not known before answers have come.
    Doubtful,
}

impl Core {
    pub(super) fn upstream(&mut self, id: ClientId, bytes: &[u8], io: &mut dyn Io) {
        let mut bytes = bytes;
        if let Some(client) = self.clients.get(id)
            && let Some(pool) = &mut self.pools[client.pool.index()]
        {
            pool.tally.client_bytes += bytes.len() as u64;
        }
        while let Some(client) = self.clients.get_mut(id) {
            if client.must_wait() {
                return client.inlet.hold(bytes);
            }
            if client.inlet.held.is_empty() {
                break;
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
        let consumed = if client.must_wait() { 0 } else { self.run(id, &held, io) };
        if let Some(client) = self.clients.get_mut(id)
            && consumed < held.len()
        {
            held.drain(..consumed);
            client.inlet.held = held;
        }
    }

    /// Deals with as much of `input` as can be, and gives how much that was.
    fn run(&mut self, id: ClientId, input: &[u8], io: &mut dyn Io) -> usize {
        let mut at = 0;
        let stop = loop {
            let stop = self.walk_client(id, input, &mut at);
            match stop {
                Stop::NeedsServer => match self.link_idle(id) {
                    Some(true) => {}
                    Some(false) => break Stop::NeedsSettings,
                    None => break stop,
                },
                stop => break stop,
            }
        };
        self.flush_client(id, input, io);
        let server = self.clients.get(id).and_then(Client::server);
        if let Some(server) = server {
            self.flush_server(server, input, io);
        }
        match stop {
            Stop::Starved | Stop::Doubtful => {
                if self.clients.get(id).is_some_and(Client::must_wait) {
                    self.update_pause(Peer::Client(id), io);
                }
                if let Some(server) = server {
                    self.release_if_settled(server, io);
                }
            }
            Stop::NeedsServer => self.wait(id, io),
            Stop::NeedsSettings => self.update_pause(Peer::Client(id), io),
            Stop::Goodbye => self.say_goodbye(id, io),
            Stop::Fault(refusal) => self.refuse(id, &refusal, io),
        }
        at
    }

    fn walk_client(&mut self, id: ClientId, input: &[u8], at: &mut usize) -> Stop {
        let Some(client) = self.clients.get_mut(id) else { return Stop::Goodbye };
        let to_client = &mut self.to_client;
        let Some(server) = client.server().and_then(|server| self.servers.get_mut(server)) else {
            return walk(&mut Alone { client, to_client }, self.body_bytes_max, input, at);
        };
        server.again.forget_open();
        if server.owed.is_empty() {
            server.since = self.now; // It waited for the client until now.
            if server.is_settled() {
                server.began = self.now;
            }
        }
        let pool = self.pools[client.pool.index()].as_mut();
        let Pool { spec, tally, .. } = pool.expect("pools of clients are never removed");
        let shares = spec.mode != Mode::Session;
        let to_server = &mut self.to_server;
        let statements_max = if shares { spec.statements_per_server as usize } else { 0 };
        let statements: &Statements = &self.statements;
        let rewriter = Rewriter { client, server, statements, statements_max, tally, to_server };
        let simple_queries = spec.simple_queries;
        let mut judge = Upstream { rewriter, to_client, shares, simple_queries, input };
        walk(&mut judge, self.body_bytes_max, input, at)
    }
}

/// Who decides what becomes of a client's messages.
pub(super) trait Judge {
    /// The client's.
    fn inlet(&mut self) -> &mut Inlet;

    /// Sends a range of the input on to the server.
    fn forward(&mut self, range: Range<usize>);

    /// Counts a message, and says what is to go on of it.
    fn judge(&mut self, kind: Frontend, message: Message<'_>) -> Rewritten;
}

/// Walks over messages as far as they can be dealt with: each is framed and judged, and its body
/// streams as was decided when its front was there.
#[inline]
fn walk(judge: &mut impl Judge, body_bytes_max: u32, input: &[u8], at: &mut usize) -> Stop {
    loop {
        let inlet = judge.inlet();
        let taken = (input.len() - *at).min(inlet.body_left as usize);
        inlet.body_left -= u32::try_from(taken).expect("it is at most a u32");
        let (forwards, is_cut) = (inlet.fate != Fate::Drop, inlet.body_left > 0);
        if forwards {
            judge.forward(*at..*at + taken);
        }
        *at += taken;
        if is_cut {
            return Stop::Starved;
        }
        let (header, kind) = match front(input, *at, body_bytes_max) {
            Ok(front) => front,
            Err(stop) => return stop,
        };
        let start = *at + Header::BYTES;
        let end = input.len().min(start + header.body_bytes as usize);
        // A client that stops in the middle of a short message gets no server for it, and costs none.
        if end - start < header.body_bytes as usize && header.body_bytes <= SHORT_BYTES_MAX {
            return Stop::Starved;
        }
        let (fate, done) = match judge.judge(kind, Message { header, body: &input[start..end] }) {
            Rewritten::AsIs => {
                judge.forward(*at..start);
                let is_vital = matches!(kind, Frontend::Execute | Frontend::FunctionCall);
                (if is_vital { Fate::Vital } else { Fate::Forward }, 0)
            }
            Rewritten::Front(bytes) => (Fate::Forward, bytes),
            Rewritten::Whole => (Fate::Drop, 0),
            Rewritten::Stop(stop) => return stop,
        };
        *at = start + done;
        let inlet = judge.inlet();
        inlet.fate = fate;
        inlet.body_left = header.body_bytes - u32::try_from(done).expect("it is of the body");
    }
}

/// A header and its kind, or why not.
#[inline]
fn front(input: &[u8], at: usize, body_bytes_max: u32) -> Result<(Header, Frontend), Stop> {
    let header = match header_at(input, at) {
        Ok(Some(header)) => header,
        Ok(None) => return Err(Stop::Starved),
        Err(error) => return Err(Stop::Fault(Refusal::Protocol(error.to_string()))),
    };
    let Some(kind) = Frontend::from_tag(header.tag) else {
        let unknown = format!("no message has the tag {}", header.tag);
        return Err(Stop::Fault(Refusal::Protocol(unknown)));
    };
    match header.within(kind.body_bytes_max().min(body_bytes_max)) {
        Ok(header) => Ok((header, kind)),
        Err(error) => Err(Stop::Fault(Refusal::Protocol(error.to_string()))),
    }
}

/// Messages with bodies up to this are held until they are whole.
const SHORT_BYTES_MAX: u32 = 4096;

/// A client that has no server, up to a message that needs one.
struct Alone<'a> {
    client: &'a mut Client,
    to_client: &'a mut Gather,
}

impl Judge for Alone<'_> {
    fn inlet(&mut self) -> &mut Inlet {
        &mut self.client.inlet
    }

    fn forward(&mut self, _: Range<usize>) {}

    fn judge(&mut self, kind: Frontend, message: Message<'_>) -> Rewritten {
        match kind {
            Frontend::Terminate => return Rewritten::Stop(Stop::Goodbye),
            Frontend::Authentication => return misplaced(kind),
            Frontend::Sync => {
                self.to_client.make(|buf| encode::ready_for_query(buf, TransactionStatus::Idle));
            }
            // Nothing is under way that could be flushed, and COPY data that comes now is of a COPY
            // that has failed already.
            Frontend::Flush | Frontend::CopyData | Frontend::CopyDone | Frontend::CopyFail => {}
            Frontend::Query => match deallocated_name(message) {
                Some(name) if self.client.statements.named.contains_key(name.as_slice()) => {
                    deallocate(self.client, &name, self.to_client);
                    let idle = TransactionStatus::Idle;
                    self.to_client.make(|buf| encode::ready_for_query(buf, idle));
                }
                _ => return Rewritten::Stop(Stop::NeedsServer),
            },
            _ => return Rewritten::Stop(Stop::NeedsServer),
        }
        Rewritten::Whole
    }
}

/// A message that has no place after the login.
pub(super) fn misplaced(kind: Frontend) -> Rewritten {
    Rewritten::Stop(Stop::Fault(Refusal::Protocol(format!("{kind} after the login"))))
}

impl Client {
    /// Whether nothing it sends can be dealt with now.
    pub(super) fn must_wait(&self) -> bool {
        matches!(self.state, ClientState::Waiting | ClientState::Welcome)
            || matches!(self.syncing, Syncing::Waiting | Syncing::Behind)
    }
}
