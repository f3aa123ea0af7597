//! From client to server: headers are walked, requests are counted, bytes go on as they are.

use std::ops::Range;

use howdah_route::Route;
use howdah_wire::{
    Frontend, Header,
    backend::{TransactionStatus, encode},
};

use super::{
    Core, InjectedFault,
    own::Own,
    request::{Upstream, deallocate, deallocated_name},
    rewrite::{Message, Rewriter, Rewritten},
    route::{RoutingContext, Way, refuse_batch, refuse_query, write_answer},
};
use crate::{
    Io,
    client::{Client, ClientState, Syncing},
    gather::Gather,
    ids::{ClientId, Peer},
    inlet::{Fate, FrameCursor, header_at, rest},
    parse_settings::Doubt,
    pool::Pool,
    refusal::Refusal,
    routing::Batch,
    spec::Mode,
    spread::FanOutRequest,
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
    /// Nothing is open at the client's server, and the message in front may be for another.
    Settled,
    /// The messages in front are for several shards.
    Spread(Box<FanOutRequest>),
}

impl Core {
    pub(super) fn upstream(&mut self, id: ClientId, bytes: &[u8], io: &mut dyn Io) {
        let mut bytes = bytes;
        self.tap_said(id, bytes);
        if let Some(client) = self.clients.get(id)
            && let Some(pool) = &mut self.pools[client.pool.index()]
        {
            pool.tally.client_bytes += bytes.len() as u64;
        }
        let holds_up = self.makes(InjectedFault::MirrorHoldsUp) && self.is_ahead_of_mirrors(id);
        while let Some(client) = self.clients.get_mut(id) {
            if client.must_wait() || holds_up {
                client.inlet.hold(bytes);
                if client.spread.is_some() {
                    self.update_pause(Peer::Client(id), io);
                }
                return;
            }
            if client.inlet.held.is_empty() {
                break;
            }
            let (now, later) = bytes.split_at(client.inlet.wants().min(bytes.len()));
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
        let client = self.clients.get(id);
        if client.is_some_and(|client| client.state == ClientState::Spread) {
            return self.copy_on(id, input, io);
        }
        let roams = client.is_some_and(|client| client.roams);
        let mut at = 0;
        let goes_on = roams && self.has_kept_request(id);
        let mut keeps = goes_on || roams && self.may_ask_elsewhere(id);
        let stop = loop {
            let stop = self.walk_client(id, input, &mut at);
            match stop {
                Stop::NeedsServer => match self.link_idle(id) {
                    Some(true) => {}
                    Some(false) => break Stop::NeedsSettings,
                    None => break stop,
                },
                Stop::Settled => {
                    keeps = false;
                    self.flush_client(id, &input[..at], io);
                    let server = self.clients.get(id).and_then(Client::server);
                    let Some(server) = server else { break stop };
                    self.flush_server(server, &input[..at], io);
                    self.release_if_settled(server, io);
                    if self.clients.get(id).is_some_and(|client| client.server().is_some()) {
                        break Stop::Doubtful;
                    }
                }
                stop => break stop,
            }
        };
        keeps &= matches!(stop, Stop::Starved) && self.to_client.is_empty();
        self.flush_client(id, input, io);
        let Some(client) = self.clients.get_mut(id) else { return at };
        if client.state == ClientState::Idle && client.has_begun() {
            client.since = self.now;
        }
        let (server, concern) = (client.server(), client.concern(id));
        let (waits, listens) = (client.must_wait(), client.listens.is_some());
        if let Some(server) = server {
            self.flush_server(server, input, io);
            if roams {
                self.keep_request(id, keeps.then_some(&input[..at]));
            }
        }
        if listens {
            self.follow_listens(id, io);
        }
        match stop {
            Stop::Starved | Stop::Doubtful | Stop::Settled => {
                if waits {
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
            Stop::Spread(what) => {
                at += what.bytes;
                self.spread(id, *what, io);
            }
        }
        self.unsettled.extend(concern);
        if goes_on && keeps && at == input.len() {
            self.ask_elsewhere_if_silent(id, io);
        }
        at
    }

    fn walk_client(&mut self, id: ClientId, input: &[u8], at: &mut usize) -> Stop {
        let ignores_settings = self.makes(InjectedFault::ForeignLiterals);
        let Some(client) = self.clients.get_mut(id) else { return Stop::Goodbye };
        client.inlet.looks_ahead = false;
        let to_client = &mut self.to_client;
        let seed = u64::from(self.worker.0) << 32 | id.index() as u64;
        let roads =
            if client.roams && client.is_somebody() { self.routers.of(client.home) } else { None };
        let statements: &Statements = &self.statements;
        let roads = roads.map(|(slot, home)| RoutingContext { slot, home, statements, seed });
        let Some(server) = client.server().and_then(|server| self.servers.get_mut(server)) else {
            let mut alone = Alone { client, to_client, roads, input };
            return walk(&mut alone, self.body_bytes_max, input, at);
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
        let listens = shares && spec.listen_bytes.is_some();
        if ignores_settings {
            let none = statements.parse_settings(&Default::default());
            server.settings.parsing.doubt = Doubt::None;
            server.settings.parsing.set_current(none);
        }
        let rewriter =
            Rewriter { client, server, statements, statements_max, listens, tally, to_server };
        let simple_queries = spec.simple_queries;
        let mut judge =
            Upstream { rewriter, to_client, shares, listens, simple_queries, input, roads };
        walk(&mut judge, self.body_bytes_max, input, at)
    }
}

/// Who decides what becomes of a client's messages.
pub(super) trait Judge {
    /// The client's.
    fn inlet(&mut self) -> &mut FrameCursor;

    /// Sends a range of the input on to the server.
    fn forward(&mut self, range: Range<usize>);

    /// Counts a message, and says what is to go on of it.
    fn judge(&mut self, kind: Frontend, message: Message<'_>) -> Rewritten;

    /// A message of so many bytes was dealt with, or its front was.
    #[inline]
    fn passed(&mut self, bytes: usize) {
        let _ = bytes;
    }
}

/// Walks over messages as far as they can be dealt with: each is framed and judged, and its body
/// streams as was decided when its front was there.
#[inline]
fn walk(judge: &mut impl Judge, body_bytes_max: u32, input: &[u8], at: &mut usize) -> Stop {
    let inlet = judge.inlet();
    if inlet.body_left > 0 {
        let taken = inlet.take(input.len() - *at);
        let (forwards, is_cut) = (inlet.fate != Fate::Drop, inlet.body_left > 0);
        if forwards {
            judge.forward(*at..*at + taken);
        }
        *at += taken;
        if is_cut {
            return Stop::Starved;
        }
    }
    while *at < input.len() {
        let Some((header, kind)) = front(input, *at, body_bytes_max) else {
            return why_no_front(input, *at, body_bytes_max);
        };
        let start = *at + Header::BYTES;
        let end = input.len().min(start + header.body_bytes as usize);
        // A client that stops in the middle of a short message gets no server for it, and costs none.
        if end - start < header.body_bytes as usize && header.body_bytes <= SHORT_BYTES_MAX {
            return Stop::Starved;
        }
        let message = Message { header, body: &input[start..end], at: *at };
        let bytes = message.bytes();
        let fate = match judge.judge(kind, message) {
            Rewritten::AsIs => {
                judge.forward(*at..end);
                let is_vital = matches!(kind, Frontend::Execute | Frontend::FunctionCall);
                if is_vital { Fate::Vital } else { Fate::Forward }
            }
            Rewritten::Front(bytes) => {
                judge.forward(start + bytes..end);
                Fate::Forward
            }
            Rewritten::Whole => Fate::Drop,
            Rewritten::Stop(stop) => return stop,
        };
        judge.passed(bytes);
        *at = end;
        let inlet = judge.inlet();
        inlet.fate = fate;
        inlet.body_left = header.body_bytes - rest(end - start);
    }
    Stop::Starved
}

/// A header and its kind, if they are there and can be followed.
#[inline]
fn front(input: &[u8], at: usize, body_bytes_max: u32) -> Option<(Header, Frontend)> {
    let header = header_at(input, at).ok()??;
    let kind = Frontend::from_tag(header.tag)?;
    let may_be = header.body_bytes <= kind.body_bytes_max().min(body_bytes_max);
    may_be.then_some((header, kind))
}

/// Why there is none.
#[cold]
fn why_no_front(input: &[u8], at: usize, body_bytes_max: u32) -> Stop {
    let fault = |why: String| Stop::Fault(Refusal::Protocol(why));
    let header = match header_at(input, at) {
        Ok(Some(header)) => header,
        Ok(None) => return Stop::Starved,
        Err(error) => return fault(error.to_string()),
    };
    let Some(kind) = Frontend::from_tag(header.tag) else {
        return fault(format!("no message has the tag {}", header.tag));
    };
    match header.within(kind.body_bytes_max().min(body_bytes_max)) {
        Ok(_) => Stop::Starved,
        Err(error) => fault(error.to_string()),
    }
}

/// Messages with bodies up to this are held until they are whole.
const SHORT_BYTES_MAX: u32 = 4096;

/// A client that has no server, up to a message that needs one.
struct Alone<'a> {
    client: &'a mut Client,
    to_client: &'a mut Gather,
    /// How its requests are routed, if they are.
    roads: Option<RoutingContext<'a>>,
    input: &'a [u8],
}

impl Judge for Alone<'_> {
    fn inlet(&mut self) -> &mut FrameCursor {
        &mut self.client.inlet
    }

    fn forward(&mut self, _: Range<usize>) {}

    fn judge(&mut self, kind: Frontend, message: Message<'_>) -> Rewritten {
        if let Some(answered) = self.own(kind, message) {
            return answered;
        }
        match kind {
            Frontend::Terminate => return Rewritten::Stop(Stop::Goodbye),
            Frontend::Authentication => return misplaced(kind),
            Frontend::Sync => {
                let status = self.status();
                self.to_client.make(|buf| encode::ready_for_query(buf, status));
            }
            // Nothing is under way that could be flushed, and COPY data that comes now is of a COPY
            // that has failed already.
            Frontend::Flush | Frontend::CopyData | Frontend::CopyDone | Frontend::CopyFail => {}
            Frontend::Query if self.client.statements.named.is_empty() => {
                return self.query(message);
            }
            Frontend::Query => match deallocated_name(message) {
                Some(name) if self.client.statements.named.contains_key(name.as_slice()) => {
                    deallocate(self.client, &name, self.to_client);
                    let status = self.status();
                    self.to_client.make(|buf| encode::ready_for_query(buf, status));
                }
                _ => return self.query(message),
            },
            Frontend::FunctionCall => return self.function_call(message),
            Frontend::Parse
            | Frontend::Bind
            | Frontend::Describe
            | Frontend::Execute
            | Frontend::Close => return self.batch(kind, message),
        }
        Rewritten::Whole
    }
}

impl Alone<'_> {
    /// What ReadyForQuery says.
    fn status(&self) -> TransactionStatus {
        match &self.client.routing {
            Some(routing) if routing.begun.is_some() => TransactionStatus::InTransaction,
            _ => TransactionStatus::Idle,
        }
    }

    /// A message of a batch that the pooler answers.
    #[inline]
    fn own(&mut self, kind: Frontend, message: Message<'_>) -> Option<Rewritten> {
        let routing = self.client.routing.as_ref()?;
        if routing.batch == Batch::Servers {
            return None;
        }
        let status = self.status();
        let (client, to_client) = (&mut *self.client, &mut *self.to_client);
        Own { client, roads: self.roads.as_mut()?, to_client, status }.judge(kind, message)
    }

    fn query(&mut self, message: Message<'_>) -> Rewritten {
        let Some(roads) = &mut self.roads else { return Rewritten::Stop(Stop::NeedsServer) };
        let way = roads.query(self.client, message);
        if matches!(way, Way::Answered(_) | Way::Refused(_) | Way::Begun(_)) {
            // As at a server, whatever the string says.
            self.client.statements.drop_unnamed();
        }
        match way {
            Way::Server => return Rewritten::Stop(Stop::NeedsServer),
            Way::Unknown => return Rewritten::Stop(Stop::Starved),
            Way::Answered(answer) => {
                let status = self.status();
                self.to_client.make(|buf| {
                    write_answer(buf, &answer);
                    encode::ready_for_query(buf, status);
                });
            }
            Way::Begun(route) => self.begin(message, route),
            Way::Refused(refusal) => refuse_query(self.to_client, &refusal, self.status()),
            Way::Spread(what) => return Rewritten::Stop(Stop::Spread(what)),
            Way::Own => {}
        }
        Rewritten::Whole
    }

    /// Says that a transaction has begun, and has the next request begin it.
    fn begin(&mut self, message: Message<'_>, route: Route) {
        let Some(routing) = &mut self.client.routing else { return };
        routing.begun = Some((message.body.into(), route));
        self.to_client.make(|buf| {
            encode::command_complete(buf, b"BEGIN").expect("it holds no zero byte");
            encode::ready_for_query(buf, TransactionStatus::InTransaction);
        });
    }

    fn function_call(&mut self, message: Message<'_>) -> Rewritten {
        let Some(roads) = &mut self.roads else { return Rewritten::Stop(Stop::NeedsServer) };
        match roads.function_call(self.client, message) {
            Way::Refused(refusal) => {
                refuse_query(self.to_client, &refusal, self.status());
                Rewritten::Whole
            }
            _ => Rewritten::Stop(Stop::NeedsServer),
        }
    }

    fn batch(&mut self, kind: Frontend, message: Message<'_>) -> Rewritten {
        let Some(roads) = &mut self.roads else { return Rewritten::Stop(Stop::NeedsServer) };
        match roads.batch(self.client, kind, message, self.input) {
            Way::Unknown => {
                self.client.inlet.looks_ahead = true;
                Rewritten::Stop(Stop::Starved)
            }
            Way::Own => {
                roads.routing(self.client).batch = Batch::Own;
                self.own(kind, message).unwrap_or(Rewritten::Whole)
            }
            Way::Refused(refusal) => {
                refuse_batch(self.client, self.to_client, &refusal);
                Rewritten::Whole
            }
            Way::Spread(what) => Rewritten::Stop(Stop::Spread(what)),
            Way::Server | Way::Answered(_) | Way::Begun(_) => Rewritten::Stop(Stop::NeedsServer),
        }
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
            || self.spread.as_ref().is_some_and(|spread| !spread.takes_data())
            || matches!(self.syncing, Syncing::Waiting | Syncing::Behind | Syncing::Hearing)
    }
}
