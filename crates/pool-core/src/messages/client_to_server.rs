//! The path from client to server: frames messages, tracks requests, and forwards bytes unchanged
//! where possible.

use std::ops::Range;

use howdah_route::Route;
use howdah_sql::StateKinds;
use howdah_wire::{
    Frontend, Header,
    backend::{TransactionStatus, encode},
};

use crate::{
    call::CoreCall,
    clients::leaving,
    fan_out,
    listen::notifications,
    messages::{
        MessagePath,
        frame_cursor::{BodyHandling, FrameCursor, body_length, header_at},
        gather_buffer::GatherBuffer,
        handling::{MessageHandler, PartialMessage, RewriteResult, StopReason, misplaced_message},
        linked_pair::LinkedPair,
        local_batch::LocalBatchHandler,
        request::{LinkedHandler, deallocate, deallocated_name},
        rewrite::Rewriter,
    },
    pinning::observer::StatementObserver,
    refusal::ClientRefusal,
    routing::{
        BatchOwner,
        context::{Dispatch, RoutingContext, refuse_batch, refuse_query, write_command_reply},
    },
    servers::{assignment, release, rerouting},
    spec::PoolingMode,
    state::{
        client::{ClientConnection, ClientState, InputHold},
        ids::{ClientId, PeerId},
        pool::PoolState,
    },
    time::Time,
};

impl MessagePath<'_> {
    /// Processes bytes that a client sent: handles as many messages as possible and buffers the
    /// rest, or buffers all bytes while the client waits.
    pub(crate) fn client_bytes(&mut self, id: ClientId, bytes: &[u8], call: &mut CoreCall<'_>) {
        let mut bytes = bytes;
        let Some(client) = self.peers.clients.get_mut(id) else { return };
        if self.peers.capture.is_running() || self.mirrors.has_clients() {
            self.peers.capture.client_bytes(client, &self.peers.servers, bytes, call.now);
            self.mirrors.buffer(client, &self.peers.servers, bytes);
        }
        if let Some(pool) = self.pools.get_mut(client.pool) {
            pool.stats.client_bytes += bytes.len() as u64;
        }
        while let Some(client) = self.peers.clients.get_mut(id) {
            if client.must_buffer_input() {
                client.input.buffer(bytes);
                if client.fan_out.is_some() {
                    self.peers.update_pause(PeerId::Client(id), call);
                }
                return;
            }
            if client.input.buffered.is_empty() {
                break;
            }
            // Buffered bytes must be processed first. Append only as many new bytes as the next
            // message needs, so that the others need not be copied.
            let (now, later) = bytes.split_at(client.input.bytes_needed().min(bytes.len()));
            if now.is_empty() {
                return;
            }
            client.input.buffer(now);
            bytes = later;
            self.process_buffered(id, call);
        }
        if !bytes.is_empty() {
            let consumed = self.process_input(id, bytes, call);
            if let Some(client) = self.peers.clients.get_mut(id) {
                client.input.buffer(&bytes[consumed..]);
            }
        }
    }

    /// Processes a client's buffered input as far as possible.
    pub(crate) fn process_buffered(&mut self, id: ClientId, call: &mut CoreCall<'_>) {
        let Some(client) = self.peers.clients.get_mut(id) else { return };
        if client.input.buffered.is_empty() {
            return;
        }
        let mut held = std::mem::take(&mut client.input.buffered);
        let consumed =
            if client.must_buffer_input() { 0 } else { self.process_input(id, &held, call) };
        if let Some(client) = self.peers.clients.get_mut(id)
            && consumed < held.len()
        {
            held.drain(..consumed);
            client.input.buffered = held;
        }
    }

    /// Processes as many bytes of `input` as possible, and returns their number.
    fn process_input(&mut self, id: ClientId, input: &[u8], call: &mut CoreCall<'_>) -> usize {
        let client = self.peers.clients.get(id);
        if client.is_some_and(|client| client.state == ClientState::FanOut) {
            return fan_out::copy::process_input(self.peers, self.pools, call, id, input);
        }
        let is_clustered = client.is_some_and(|client| client.member.is_clustered);
        let mut at = 0;
        let continues = is_clustered && rerouting::has_buffered_request(self.peers, id);
        let mut can_buffer = continues || is_clustered && rerouting::may_reroute(self.peers, id);
        // One input may need several servers in turn: each round handles messages up to the next
        // point where a server must be assigned or released.
        let stop = loop {
            let stop = self.process_messages(id, input, &mut at, call.now);
            match stop {
                StopReason::NeedsServer => {
                    match assignment::link_idle_server(self.peers, self.pools, call, id) {
                        Some(true) => {}
                        Some(false) => break StopReason::NeedsParameters,
                        None => break stop,
                    }
                }
                StopReason::ServerReleased => {
                    can_buffer = false;
                    // Send the bytes up to here before the server may get another client.
                    self.peers.flush_client(id, &input[..at], call);
                    let server = self.peers.clients.get(id).and_then(ClientConnection::server);
                    let Some(server) = server else { break stop };
                    self.peers.flush_server(server, &input[..at], call);
                    release::release_if_quiescent(self.peers, self.pools, call, server);
                    if let Some(client) = self.peers.clients.get_mut(id)
                        && client.server().is_some()
                    {
                        match self.peers.servers.get(server) {
                            // The server was asked for its session state first.
                            Some(server) if !server.outstanding.is_empty() => {
                                client.input_hold = InputHold::AwaitingReplies;
                            }
                            // The client is pinned from now on: its input goes to this server.
                            Some(server) if server.is_pinned() => continue,
                            _ => {}
                        }
                        break StopReason::AwaitsReplies;
                    }
                }
                stop => break stop,
            }
        };
        // A request can be rerouted only if it went to a single server and the pooler has answered
        // no part of it itself.
        can_buffer &= matches!(stop, StopReason::NeedsMoreInput) && self.peers.to_client.is_empty();
        self.peers.flush_client(id, input, call);
        let Some(client) = self.peers.clients.get_mut(id) else { return at };
        // The BEGIN that the pooler has just answered starts an idle transaction, although no
        // server has received it.
        if client.state == ClientState::Idle && client.has_deferred_begin() {
            client.state_since = call.now;
        }
        let (server, next) = (client.server(), client.step_on_progress(id));
        let (must_wait, listens) = (client.must_buffer_input(), client.channels.is_some());
        if let Some(server) = server {
            self.peers.flush_server(server, input, call);
            if is_clustered {
                rerouting::buffer_request(self.peers, id, can_buffer.then_some(&input[..at]));
            }
        }
        if listens {
            notifications::update_listens(&mut self.peers.clients, call, id);
        }
        match stop {
            StopReason::NeedsMoreInput | StopReason::AwaitsReplies | StopReason::ServerReleased => {
                if must_wait {
                    self.peers.update_pause(PeerId::Client(id), call);
                }
                if let Some(server) = server {
                    release::release_if_quiescent(self.peers, self.pools, call, server);
                }
            }
            StopReason::NeedsServer => {
                assignment::wait_for_server(self.peers, self.pools, call, id);
            }
            StopReason::NeedsParameters => self.peers.update_pause(PeerId::Client(id), call),
            StopReason::Terminate => leaving::terminate(self.peers, self.pools, call, id),
            StopReason::Fault(refusal) => {
                leaving::refuse(self.peers, self.pools, call, id, &refusal);
            }
            StopReason::FanOut(request) => {
                at += request.bytes;
                fan_out::start(self.peers, call, id, *request);
            }
        }
        call.steps.push_if_any(next);
        if continues && can_buffer && at == input.len() {
            rerouting::if_checks_fail(self.peers, self.pools, self.routers, call, id);
        }
        at
    }

    /// Processes the messages in `input` from `at` on, until the core must act; advances `at`.
    fn process_messages(
        &mut self,
        id: ClientId,
        input: &[u8],
        at: &mut usize,
        now: Time,
    ) -> StopReason {
        let Some(client) = self.peers.clients.get_mut(id) else { return StopReason::Terminate };
        client.input.is_collecting_batch = false;
        let to_client = &mut self.peers.to_client;
        let seed = u64::from(self.pools.worker.0) << 32 | id.index() as u64;
        let context = if client.member.is_clustered && client.is_external() {
            self.routers.for_pool(client.owner_pool)
        } else {
            None
        };
        let statements = self.statements;
        let context =
            context.map(|(slot, owner)| RoutingContext { slot, pool: owner, statements, seed });
        let Some(server) = client.server().and_then(|server| self.peers.servers.get_mut(server))
        else {
            let mut handler = UnlinkedHandler { client, to_client, routing: context, input };
            return handle_messages(&mut handler, self.peers.body_bytes_max, input, at);
        };
        server.batch.retry_buffer.discard_incomplete();
        if server.outstanding.is_empty() {
            server.state_since = now; // Until now, the server was waiting for the client.
            if server.is_quiescent() {
                server.work_started = now;
            }
        }
        let pool = self.pools.get_mut(client.pool);
        let PoolState { spec, stats, stable_functions, .. } =
            pool.expect("pools of clients are never removed");
        let is_shared = spec.mode != PoolingMode::Session;
        let to_server = &mut self.peers.to_server;
        let statements_max = if is_shared { spec.statements_per_server as usize } else { 0 };
        let multiplexes_listen = is_shared && spec.listen_bytes.is_some();
        // The pooler's own clients end with their transactions.
        let is_adaptive = spec.mode == PoolingMode::Adaptive && client.is_external();
        let observer = is_adaptive.then(|| StatementObserver {
            effects: self.effects,
            stable_functions,
            spec: &spec.pinning,
            follows: if multiplexes_listen { StateKinds::CHANNELS } else { StateKinds::NONE },
            now,
        });
        let pair =
            LinkedPair { client, server, statements, statements_max, stats, to_server, observer };
        let rewriter = Rewriter { pair, multiplexes_listen };
        let allows_simple_queries = spec.allows_simple_queries;
        let mut handler = LinkedHandler {
            rewriter,
            to_client,
            is_shared,
            multiplexes_listen,
            allows_simple_queries,
            input,
            routing: context,
        };
        handle_messages(&mut handler, self.peers.body_bytes_max, input, at)
    }
}

/// Processes messages as far as possible. The first part of a message determines how to handle its
/// body, the rest of which may then be streamed.
#[inline]
fn handle_messages(
    handler: &mut impl MessageHandler,
    body_bytes_max: u32,
    input: &[u8],
    at: &mut usize,
) -> StopReason {
    let inlet = handler.input();
    if inlet.body_left > 0 {
        let taken = inlet.take_body(input.len() - *at);
        let (forwards, is_cut) = (inlet.body_handling != BodyHandling::Drop, inlet.body_left > 0);
        if forwards {
            handler.forward(*at..*at + taken);
        }
        *at += taken;
        if is_cut {
            return StopReason::NeedsMoreInput;
        }
    }
    while *at < input.len() {
        let Some((header, kind)) = next_header(input, *at, body_bytes_max) else {
            return header_error(input, *at, body_bytes_max);
        };
        let start = *at + Header::BYTES;
        let end = input.len().min(start + header.body_bytes as usize);
        // Wait until a short message is complete, so that a client that stops in the middle of one
        // does not occupy a server.
        if end - start < header.body_bytes as usize && header.body_bytes <= SHORT_BYTES_MAX {
            return StopReason::NeedsMoreInput;
        }
        let message = PartialMessage { header, body: &input[start..end], at: *at };
        let bytes = message.total_bytes();
        let fate = match handler.handle(kind, message) {
            RewriteResult::AsIs => {
                handler.forward(*at..end);
                let is_vital = matches!(kind, Frontend::Execute | Frontend::FunctionCall);
                if is_vital { BodyHandling::ForwardExecutable } else { BodyHandling::Forward }
            }
            RewriteResult::FrontReplaced(bytes) => {
                handler.forward(start + bytes..end);
                BodyHandling::Forward
            }
            RewriteResult::Consumed => BodyHandling::Drop,
            RewriteResult::Stop(stop) => return stop,
        };
        handler.handled(bytes);
        *at = end;
        let inlet = handler.input();
        inlet.body_handling = fate;
        inlet.body_left = header.body_bytes - body_length(end - start);
    }
    StopReason::NeedsMoreInput
}

/// Returns the next header and its kind, if they are complete and valid.
#[inline]
fn next_header(input: &[u8], at: usize, body_bytes_max: u32) -> Option<(Header, Frontend)> {
    let header = header_at(input, at).ok()??;
    let kind = Frontend::from_tag(header.tag)?;
    let may_be = header.body_bytes <= kind.body_bytes_max().min(body_bytes_max);
    may_be.then_some((header, kind))
}

/// Returns the reason why [`next_header`] returned `None`.
#[cold]
fn header_error(input: &[u8], at: usize, body_bytes_max: u32) -> StopReason {
    let fault = |why: String| StopReason::Fault(ClientRefusal::ProtocolViolation(why));
    let header = match header_at(input, at) {
        Ok(Some(header)) => header,
        Ok(None) => return StopReason::NeedsMoreInput,
        Err(error) => return fault(error.to_string()),
    };
    let Some(kind) = Frontend::from_tag(header.tag) else {
        return fault(format!("no message has the tag {}", header.tag));
    };
    match header.limited_to(kind.body_bytes_max().min(body_bytes_max)) {
        Ok(_) => StopReason::NeedsMoreInput,
        Err(error) => fault(error.to_string()),
    }
}

/// Maximum body length, in bytes, of messages that are always held until they are complete.
const SHORT_BYTES_MAX: u32 = 4096;

/// The handler for the messages of a client that has no server, up to the first one that needs one.
struct UnlinkedHandler<'a> {
    client: &'a mut ClientConnection,
    to_client: &'a mut GatherBuffer,
    /// The routing context of the client's database, if the client is routed.
    routing: Option<RoutingContext<'a>>,
    input: &'a [u8],
}

impl MessageHandler for UnlinkedHandler<'_> {
    fn input(&mut self) -> &mut FrameCursor {
        &mut self.client.input
    }

    fn forward(&mut self, _: Range<usize>) {}

    fn handle(&mut self, kind: Frontend, message: PartialMessage<'_>) -> RewriteResult {
        if let Some(answered) = self.handle_local_batch(kind, message) {
            return answered;
        }
        match kind {
            Frontend::Terminate => return RewriteResult::Stop(StopReason::Terminate),
            Frontend::Authentication => return misplaced_message(kind),
            Frontend::Sync => {
                let status = self.transaction_status();
                self.to_client.push_with(|buf| encode::ready_for_query(buf, status));
            }
            // Flush has no effect because no request is outstanding, and CopyData that arrives now
            // belongs to a COPY that has failed.
            Frontend::Flush | Frontend::CopyData | Frontend::CopyDone | Frontend::CopyFail => {}
            Frontend::Query if self.client.statements.named.is_empty() => {
                return self.handle_query(message);
            }
            Frontend::Query => match deallocated_name(message) {
                Some(name) if self.client.statements.named.contains_key(name.as_slice()) => {
                    deallocate(self.client, &name, self.to_client);
                    let status = self.transaction_status();
                    self.to_client.push_with(|buf| encode::ready_for_query(buf, status));
                }
                _ => return self.handle_query(message),
            },
            Frontend::FunctionCall => return self.handle_function_call(message),
            Frontend::Parse
            | Frontend::Bind
            | Frontend::Describe
            | Frontend::Execute
            | Frontend::Close => return self.handle_batch(kind, message),
        }
        RewriteResult::Consumed
    }
}

impl UnlinkedHandler<'_> {
    /// Returns the transaction status to report in ReadyForQuery.
    fn transaction_status(&self) -> TransactionStatus {
        match &self.client.routing {
            Some(routing) if routing.deferred_begin.is_some() => TransactionStatus::InTransaction,
            _ => TransactionStatus::Idle,
        }
    }

    /// Handles a message of a batch that the pooler answers itself; `None` if servers answer the
    /// batch.
    #[inline]
    fn handle_local_batch(
        &mut self,
        kind: Frontend,
        message: PartialMessage<'_>,
    ) -> Option<RewriteResult> {
        let routing = self.client.routing.as_ref()?;
        if routing.batch_owner == BatchOwner::Servers {
            return None;
        }
        let status = self.transaction_status();
        let (client, to_client) = (&mut *self.client, &mut *self.to_client);
        LocalBatchHandler { client, routing: self.routing.as_mut()?, to_client, status }
            .handle(kind, message)
    }

    fn handle_query(&mut self, message: PartialMessage<'_>) -> RewriteResult {
        let Some(context) = &mut self.routing else {
            return RewriteResult::Stop(StopReason::NeedsServer);
        };
        let dispatch = context.dispatch_query(self.client, message);
        if matches!(
            dispatch,
            Dispatch::Answered(_) | Dispatch::Refused(_) | Dispatch::DeferredBegin(_)
        ) {
            // As on a server, any query string drops the unnamed statement.
            self.client.statements.clear_unnamed();
        }
        match dispatch {
            Dispatch::Server => return RewriteResult::Stop(StopReason::NeedsServer),
            Dispatch::NeedsMoreInput => return RewriteResult::Stop(StopReason::NeedsMoreInput),
            Dispatch::Answered(answer) => {
                let status = self.transaction_status();
                self.to_client.push_with(|buf| {
                    write_command_reply(buf, &answer);
                    encode::ready_for_query(buf, status);
                });
            }
            Dispatch::DeferredBegin(route) => self.defer_begin(message, route),
            Dispatch::Refused(refusal) => {
                refuse_query(self.to_client, &refusal, self.transaction_status());
            }
            Dispatch::FanOut(request) => return RewriteResult::Stop(StopReason::FanOut(request)),
            Dispatch::LocalBatch => {}
        }
        RewriteResult::Consumed
    }

    /// Replies to a BEGIN, and stores it to be sent to a server before the next request that runs a
    /// statement.
    fn defer_begin(&mut self, message: PartialMessage<'_>, route: Route) {
        let Some(routing) = &mut self.client.routing else { return };
        routing.deferred_begin = Some((message.body.into(), route));
        self.to_client.push_with(|buf| {
            encode::command_complete(buf, b"BEGIN").expect("the text has no zero byte");
            encode::ready_for_query(buf, TransactionStatus::InTransaction);
        });
    }

    fn handle_function_call(&mut self, message: PartialMessage<'_>) -> RewriteResult {
        let Some(context) = &mut self.routing else {
            return RewriteResult::Stop(StopReason::NeedsServer);
        };
        match context.dispatch_function_call(self.client, message) {
            Dispatch::Refused(refusal) => {
                refuse_query(self.to_client, &refusal, self.transaction_status());
                RewriteResult::Consumed
            }
            _ => RewriteResult::Stop(StopReason::NeedsServer),
        }
    }

    fn handle_batch(&mut self, kind: Frontend, message: PartialMessage<'_>) -> RewriteResult {
        let Some(context) = &mut self.routing else {
            return RewriteResult::Stop(StopReason::NeedsServer);
        };
        match context.dispatch_batch(self.client, kind, message, self.input) {
            Dispatch::NeedsMoreInput => {
                self.client.input.is_collecting_batch = true;
                RewriteResult::Stop(StopReason::NeedsMoreInput)
            }
            Dispatch::LocalBatch => {
                context.client_routing(self.client).batch_owner = BatchOwner::Pooler;
                self.handle_local_batch(kind, message).unwrap_or(RewriteResult::Consumed)
            }
            Dispatch::Refused(refusal) => {
                refuse_batch(self.client, self.to_client, &refusal);
                RewriteResult::Consumed
            }
            Dispatch::FanOut(request) => RewriteResult::Stop(StopReason::FanOut(request)),
            Dispatch::Server | Dispatch::Answered(_) | Dispatch::DeferredBegin(_) => {
                RewriteResult::Stop(StopReason::NeedsServer)
            }
        }
    }
}

impl ClientConnection {
    /// Whether the client's input must be buffered, because the client waits for a server, for
    /// replies, for LISTEN, or for the end of its login or fan-out request.
    pub(crate) fn must_buffer_input(&self) -> bool {
        matches!(self.state, ClientState::Waiting | ClientState::Welcome)
            || self.fan_out.as_ref().is_some_and(|fan_out| !fan_out.accepts_copy_data())
            || matches!(
                self.input_hold,
                InputHold::ApplyingParameters
                    | InputHold::AwaitingReplies
                    | InputHold::AwaitingListen
                    | InputHold::Leaving
            )
    }
}
