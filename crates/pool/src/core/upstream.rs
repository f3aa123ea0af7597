//! From client to server: headers are walked, requests are counted, bytes go on as they are.

use howdah_wire::{
    Frontend, Header,
    backend::{TransactionStatus, encode},
};

use super::{
    Core,
    rewrite::{Message, Rewriter, Rewritten},
};
use crate::{
    Io,
    client::{Client, ClientState, Syncing},
    deallocate,
    dirt::{Dirt, SetKind},
    gather::Gather,
    ids::{ClientId, Peer},
    inlet::{Fate, Inlet, header_at},
    owed::Request,
    refusal::Refusal,
    settings::is_settable,
    spec::Mode,
    statements::Statements,
};

/// Why a walk over a client's bytes stopped.
enum Stop {
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
}

impl Core {
    pub(super) fn upstream(&mut self, id: ClientId, bytes: &[u8], io: &mut dyn Io) {
        let mut bytes = bytes;
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
            Stop::Starved => {
                if self.clients.get(id).is_some_and(Client::must_wait) {
                    self.update_pause(Peer::Client(id), io);
                }
                if let Some(server) = server {
                    self.release_if_settled(server, io);
                }
            }
            Stop::NeedsServer => self.wait(id, io),
            Stop::NeedsSettings => self.update_pause(Peer::Client(id), io),
            Stop::Goodbye => self.close_client(id, io),
            Stop::Fault(refusal) => self.refuse(id, &refusal, io),
        }
        at
    }

    fn walk_client(&mut self, id: ClientId, input: &[u8], at: &mut usize) -> Stop {
        let Some(client) = self.clients.get_mut(id) else { return Stop::Goodbye };
        let Some(server) = client.server().and_then(|server| self.servers.get_mut(server)) else {
            return walk_alone(client, &mut self.to_client, input, at);
        };
        if server.owed.is_empty() {
            server.since = self.now; // It waited for the client until now.
        }
        let pool = self.pools[client.pool.index()].as_ref();
        let spec = &pool.expect("pools of clients are never removed").spec;
        let shares = spec.mode != Mode::Session;
        let to_server = &mut self.to_server;
        let statements_max = if shares { spec.statements_per_server as usize } else { 0 };
        let statements: &Statements = &self.statements;
        let rewriter = Rewriter { client, server, statements, statements_max, to_server };
        Upstream { rewriter, to_client: &mut self.to_client, shares }.walk(input, at)
    }
}

/// A client that has a server.
struct Upstream<'a> {
    rewriter: Rewriter<'a>,
    to_client: &'a mut Gather,
    /// Whether others will use the server after this transaction.
    shares: bool,
}

impl Upstream<'_> {
    fn walk(&mut self, input: &[u8], at: &mut usize) -> Stop {
        loop {
            let Rewriter { client, to_server, .. } = &mut self.rewriter;
            if !stream_body(&mut client.inlet, input, at, Some(to_server)) {
                return Stop::Starved;
            }
            let (header, kind) = match front(input, *at) {
                Ok(front) => front,
                Err(stop) => return stop,
            };
            let start = *at + Header::BYTES;
            let end = input.len().min(start + header.body_bytes as usize);
            let message = Message { header, body: &input[start..end] };
            let inlet = &mut self.rewriter.client.inlet;
            inlet.fate = Fate::Forward;
            inlet.body_left = header.body_bytes;
            match self.message(kind, message) {
                Rewritten::AsIs => {
                    self.rewriter.to_server.input(*at..start);
                    *at = start;
                }
                Rewritten::Front(bytes) => {
                    *at = start + bytes;
                    let bytes = u32::try_from(bytes).expect("it is at most the body");
                    self.rewriter.client.inlet.body_left -= bytes;
                }
                Rewritten::Whole => {
                    self.rewriter.client.inlet.fate = Fate::Drop;
                    *at = start;
                }
                Rewritten::Starved => {
                    self.rewriter.client.inlet.body_left = 0;
                    return Stop::Starved;
                }
                Rewritten::Fault(refusal) => return Stop::Fault(refusal),
            }
            if kind == Frontend::Terminate {
                return Stop::Goodbye;
            }
        }
    }

    /// Counts a message, and says what is to go on of it.
    #[inline]
    fn message(&mut self, kind: Frontend, message: Message<'_>) -> Rewritten {
        let server = &mut *self.rewriter.server;
        match kind {
            Frontend::Query if server.skipping => {}
            Frontend::Query => return self.query(message),
            Frontend::Sync if server.copying_in => {}
            Frontend::Sync => {
                server.batch_open = false;
                server.skipping = false;
                server.owed.push(Request::Sync);
            }
            // In the middle of a notice, say, they follow when that has ended.
            Frontend::Flush if server.inlet.is_inside_forwarded() => {}
            Frontend::Flush => {
                while let Some(reply) = server.owed.answer_here() {
                    self.to_client.make(|buf| buf.extend_from_slice(&reply));
                }
            }
            // Of a COPY that has failed already: a server would not look at it.
            Frontend::CopyData | Frontend::CopyDone | Frontend::CopyFail
                if server.owed.is_empty() =>
            {
                return Rewritten::Whole;
            }
            Frontend::CopyData => {}
            Frontend::CopyDone | Frontend::CopyFail => {
                server.copying_in = false;
                server.owed.push(Request::CopyEnd);
            }
            Frontend::Terminate => return Rewritten::Whole,
            Frontend::Authentication => {
                let misplaced = format!("{kind} after the login");
                return Rewritten::Fault(Refusal::Protocol(misplaced));
            }
            _ if server.skipping => {}
            Frontend::FunctionCall => server.owed.push(Request::Function),
            Frontend::Parse
            | Frontend::Bind
            | Frontend::Describe
            | Frontend::Execute
            | Frontend::Close => return self.extended(kind, message),
        }
        Rewritten::AsIs
    }

    /// A message of the extended protocol that is part of a batch.
    #[inline]
    fn extended(&mut self, kind: Frontend, message: Message<'_>) -> Rewritten {
        let rewriter = &mut self.rewriter;
        if !rewriter.server.batch_open {
            rewriter.server.statements.batch_begins();
        }
        let rewritten = if kind == Frontend::Execute {
            rewriter.server.owed.push(Request::Execute);
            Rewritten::AsIs
        } else if rewriter.statements_max == 0 {
            if self.shares && kind == Frontend::Parse {
                rewriter.server.dirt |= dirt_of(message);
                rewriter.server.set_kind = SetKind::Lasting;
            }
            let request = match kind {
                Frontend::Parse => Request::Parse(None),
                Frontend::Bind => Request::Bind,
                Frontend::Describe => Request::Describe,
                _ => Request::Close(None),
            };
            rewriter.server.owed.push(request);
            Rewritten::AsIs
        } else {
            match kind {
                Frontend::Parse => rewriter.parse(message),
                Frontend::Bind => rewriter.bind(message),
                Frontend::Describe => rewriter.describe(message),
                _ => rewriter.close(message),
            }
        };
        if !matches!(rewritten, Rewritten::Starved) {
            rewriter.server.batch_open = true;
        }
        rewritten
    }

    fn query(&mut self, message: Message<'_>) -> Rewritten {
        let Rewriter { client, server, .. } = &mut self.rewriter;
        let mut set_kind = SetKind::Lasting;
        if self.shares {
            if !message.is_whole() && message.header.body_bytes <= SHORT_BYTES_MAX {
                return Rewritten::Starved;
            }
            let sql = message.body.strip_suffix(b"\0").unwrap_or(message.body);
            if let Some(name) = deallocates(client, message)
                && !server.batch_open
            {
                if !server.owed.is_empty() || server.inlet.is_inside_forwarded() {
                    client.syncing = Syncing::Behind;
                    return Rewritten::Starved;
                }
                if server.status != TransactionStatus::Failed {
                    deallocate(client, &name, server.status, self.to_client);
                    return Rewritten::Whole;
                }
            }
            let dirt = dirt_of(message);
            server.dirt |= dirt;
            if dirt != Dirt::UNKNOWN {
                let settings = &server.settings;
                let reported = |name: &[u8]| is_settable(name) && settings.value(name).is_some();
                set_kind = SetKind::of_text(sql, reported);
            }
            // A query string ends the unnamed statement: the server has nobody's now.
            client.statements.drop_unnamed();
            server.statements.unnamed_is_ours = true;
        }
        server.owed.push(Request::Query(set_kind));
        Rewritten::AsIs
    }
}

/// What the text in a message may leave behind; of a text that is not all there, anything.
fn dirt_of(message: Message<'_>) -> Dirt {
    if message.is_whole() { Dirt::of_text(message.body) } else { Dirt::UNKNOWN }
}

/// Bodies up to this are held until they are whole where their contents matter.
const SHORT_BYTES_MAX: u32 = 4096;

/// The name of a statement that the client prepared by protocol, if all that a query string does is
/// to deallocate it.
fn deallocates(client: &Client, message: Message<'_>) -> Option<Vec<u8>> {
    if client.statements.named.is_empty() || !message.is_whole() {
        return None;
    }
    let sql = message.body.strip_suffix(b"\0").unwrap_or(message.body);
    deallocate::name(sql).filter(|name| client.statements.named.contains_key(name.as_slice()))
}

/// Takes a statement from a client, and says so as the server would.
fn deallocate(client: &mut Client, name: &[u8], status: TransactionStatus, to: &mut Gather) {
    client.statements.named.remove(name);
    client.statements.drop_unnamed();
    to.make(|buf| {
        encode::command_complete(buf, b"DEALLOCATE").expect("it holds no zero byte");
        encode::ready_for_query(buf, status);
    });
}

/// Takes what is there of a body that streams; whether all of it was.
#[inline]
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
#[inline]
fn front(input: &[u8], at: usize) -> Result<(Header, Frontend), Stop> {
    let header = match header_at(input, at) {
        Ok(Some(header)) => header,
        Ok(None) => return Err(Stop::Starved),
        Err(error) => return Err(Stop::Fault(Refusal::Protocol(error.to_string()))),
    };
    let Some(kind) = Frontend::from_tag(header.tag) else {
        let unknown = format!("no message has the tag {}", header.tag);
        return Err(Stop::Fault(Refusal::Protocol(unknown)));
    };
    match header.within(kind.body_bytes_max()) {
        Ok(header) => Ok((header, kind)),
        Err(error) => Err(Stop::Fault(Refusal::Protocol(error.to_string()))),
    }
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
        let start = *at + Header::BYTES;
        let end = input.len().min(start + header.body_bytes as usize);
        let message = Message { header, body: &input[start..end] };
        // A client that stops in the middle of a short message gets no server for it.
        if !message.is_whole() && header.body_bytes <= SHORT_BYTES_MAX {
            return Stop::Starved;
        }
        match kind {
            Frontend::Terminate => return Stop::Goodbye,
            Frontend::Authentication => {
                return Stop::Fault(Refusal::Protocol(format!("{kind} after the login")));
            }
            Frontend::Sync => {
                to_client.make(|buf| encode::ready_for_query(buf, TransactionStatus::Idle));
            }
            // Nothing is under way that could be flushed, and COPY data that comes now is of a COPY
            // that has failed already.
            Frontend::Flush | Frontend::CopyData | Frontend::CopyDone | Frontend::CopyFail => {}
            Frontend::Query => match deallocates(client, message) {
                Some(name) => deallocate(client, &name, TransactionStatus::Idle, to_client),
                None => return Stop::NeedsServer,
            },
            _ => return Stop::NeedsServer,
        }
        *at = start;
        client.inlet.fate = Fate::Drop;
        client.inlet.body_left = header.body_bytes;
    }
}

impl Client {
    /// Whether nothing it sends can be dealt with now.
    pub(super) fn must_wait(&self) -> bool {
        matches!(self.state, ClientState::Waiting | ClientState::Welcome)
            || matches!(self.syncing, Syncing::Waiting | Syncing::Behind)
    }
}
