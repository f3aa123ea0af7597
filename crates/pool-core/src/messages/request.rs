//! Handles the messages of a client that has a server: tracks requests, rewrites statement names,
//! and answers some messages itself.
//!
//! The meaning of a message may depend on replies that have not arrived: whether a Parse in an
//! earlier batch failed, or whether the server skips a batch. In such cases the client's bytes are
//! held until those replies have arrived ([`LinkedHandler::wait_for_replies`]). So errors come in
//! the same order, and with the same codes, as on a direct connection.

use std::ops::Range;

use howdah_wire::{
    Frontend,
    backend::{TransactionStatus, encode},
    frontend,
};

use crate::{
    messages::{
        fast_path,
        frame_cursor::FrameCursor,
        gather_buffer::GatherBuffer,
        handling::{
            ListenPrecondition, MessageHandler, PartialMessage, RewriteResult, StopReason,
            misplaced_message,
        },
        linked_pair::LinkedPair,
        local_batch::LocalBatchHandler,
        outstanding::{PreviousUnnamed, RequestKind, RollbackAction},
        rewrite::Rewriter,
    },
    prepared::{deallocate, parse_settings::Uncertainty, statements::sql_text},
    refusal::ClientRefusal,
    routing::{
        BatchOwner,
        context::{
            Dispatch, FAN_OUT_IN_BATCH, RoutingContext, refuse_batch, write_command_reply,
            write_refusal,
        },
    },
    session::{
        parameters::is_settable,
        restore::{SplicedQuery, changes_parameters, splice},
        state::{SessionStateFlags, SetKind},
    },
    state::client::{ClientConnection, InputHold},
};

/// The handler for the messages of a client that has a server.
pub(crate) struct LinkedHandler<'a> {
    pub(crate) rewriter: Rewriter<'a>,
    pub(crate) to_client: &'a mut GatherBuffer,
    /// Whether other clients may get the server after this transaction: not in session mode.
    pub(crate) is_shared: bool,
    /// Whether LISTEN is multiplexed; see [`crate::listen::channels`].
    pub(crate) multiplexes_listen: bool,
    /// Whether the client may use the simple query protocol.
    pub(crate) allows_simple_queries: bool,
    /// The bytes from the client that are being processed.
    pub(crate) input: &'a [u8],
    /// The routing context of the client's database, if the client is routed.
    pub(crate) routing: Option<RoutingContext<'a>>,
}

impl MessageHandler for LinkedHandler<'_> {
    #[inline]
    fn input(&mut self) -> &mut FrameCursor {
        &mut self.rewriter.pair.client.input
    }

    #[inline]
    fn forward(&mut self, range: Range<usize>) {
        self.rewriter.pair.to_server.push_input(range);
    }

    #[inline]
    fn handle(&mut self, kind: Frontend, message: PartialMessage<'_>) -> RewriteResult {
        if self.rewriter.pair.server.restore.is_in_flight
            && let Some(stalled) = self.hold_until_restored(kind)
        {
            return stalled;
        }
        if let Some(answered) = self.handle_local_batch(kind, message) {
            return answered;
        }
        let server = &mut *self.rewriter.pair.server;
        match kind {
            // The server ignores these messages until the Sync of a failed batch, so they are not
            // tracked.
            Frontend::Query | Frontend::FunctionCall if server.batch.is_skipping => {}
            Frontend::Query if !self.allows_simple_queries => {
                return RewriteResult::Stop(StopReason::Fault(ClientRefusal::SimpleQuery));
            }
            Frontend::Query => return self.handle_query(message),
            Frontend::FunctionCall => return self.handle_function_call(),
            // A server that waits for COPY data ignores Sync.
            Frontend::Sync if server.batch.is_copying_in => {}
            Frontend::Sync => {
                self.rewriter.finish_batch(self.input);
                self.rewriter.discard_early_notifications();
                self.rewriter.pair.server.outstanding.push(RequestKind::Sync);
            }
            Frontend::Flush => self.send_local_replies(),
            // The COPY has already failed; a server would ignore these messages.
            Frontend::CopyData | Frontend::CopyDone | Frontend::CopyFail
                if server.outstanding.is_empty() =>
            {
                return RewriteResult::Consumed;
            }
            Frontend::CopyData => {}
            Frontend::CopyDone | Frontend::CopyFail => {
                server.batch.is_copying_in = false;
                server.outstanding.push(RequestKind::CopyEnd);
            }
            Frontend::Terminate => return RewriteResult::Stop(StopReason::Terminate),
            Frontend::Authentication => return misplaced_message(kind),
            _ if server.batch.is_skipping => {}
            Frontend::Parse
            | Frontend::Bind
            | Frontend::Describe
            | Frontend::Execute
            | Frontend::Close => return self.handle_extended(kind, message),
        }
        RewriteResult::AsIs
    }

    #[inline]
    fn handled(&mut self, bytes: usize) {
        if let Some(routing) = &mut self.rewriter.pair.client.routing {
            routing.inspected_bytes = routing.inspected_bytes.saturating_sub(bytes);
        }
    }
}

impl LinkedHandler<'_> {
    /// Handles a message of a batch that the pooler answers itself; `None` if servers answer the
    /// batch.
    #[inline]
    fn handle_local_batch(
        &mut self,
        kind: Frontend,
        message: PartialMessage<'_>,
    ) -> Option<RewriteResult> {
        let routing = self.rewriter.pair.client.routing.as_ref()?;
        if routing.batch_owner == BatchOwner::Servers {
            return None;
        }
        let LinkedPair { client, server, .. } = &mut self.rewriter.pair;
        let to_client = &mut *self.to_client;
        let status = server.status;
        LocalBatchHandler { client, routing: self.routing.as_mut()?, to_client, status }
            .handle(kind, message)
    }

    /// Waits for outstanding replies, then releases the server, so that the next message can go to
    /// another one. Returns `None` if the client keeps its server, as in a transaction or in
    /// session mode.
    fn unlink_if_idle(&mut self) -> Option<RewriteResult> {
        if let Some(stalled) = self.wait_for_replies() {
            return Some(stalled);
        }
        let server = &self.rewriter.pair.server;
        let is_over = self.is_shared && server.is_quiescent() && !server.is_pinned();
        is_over.then_some(RewriteResult::Stop(StopReason::ServerReleased))
    }

    /// Routes a query string. Returns `None` if it goes to the client's current server.
    #[inline]
    fn try_route_query(&mut self, message: PartialMessage<'_>) -> Option<RewriteResult> {
        let context = self.routing.as_ref()?;
        // During COPY the message goes to the server, which rejects it and ends the COPY.
        if !context.query_needs_routing(self.rewriter.pair.client, message)
            || self.rewriter.pair.server.batch.is_copying_in
        {
            return None;
        }
        self.route_query(message)
    }

    fn route_query(&mut self, message: PartialMessage<'_>) -> Option<RewriteResult> {
        if let Some(stopped) = self.unlink_if_idle() {
            return Some(stopped);
        }
        let answer = match self
            .routing
            .as_mut()?
            .dispatch_linked_query(self.rewriter.pair.client, message)
        {
            Dispatch::Answered(answer) => Ok(answer),
            Dispatch::Refused(refusal) => Err(refusal),
            Dispatch::NeedsMoreInput => {
                return Some(RewriteResult::Stop(StopReason::NeedsMoreInput));
            }
            // A client that has a server is bound to its shard.
            Dispatch::FanOut(_) => Err(FAN_OUT_IN_BATCH),
            Dispatch::Server | Dispatch::LocalBatch | Dispatch::DeferredBegin(_) => {
                return None;
            }
        };
        let LinkedPair { client, server, to_server, .. } = &mut self.rewriter.pair;
        client.statements.clear_unnamed();
        server.statements.unnamed_is_ours = false; // The server still has one.
        self.to_client.push_with(|buf| match &answer {
            Ok(answer) => write_command_reply(buf, answer),
            Err(refusal) => write_refusal(buf, refusal),
        });
        // An open batch ends with the server's own ReadyForQuery.
        if server.finish_batch() {
            server.outstanding.push(RequestKind::Sync);
            to_server.push_with(frontend::encode::sync);
        } else {
            let status = server.status;
            self.to_client.push_with(|buf| encode::ready_for_query(buf, status));
        }
        Some(RewriteResult::Consumed)
    }

    /// Routes a batch, or the next message in it. Returns `None` if it goes to the client's current
    /// server.
    #[inline]
    fn try_route_batch(
        &mut self,
        kind: Frontend,
        message: PartialMessage<'_>,
    ) -> Option<RewriteResult> {
        let context = self.routing.as_ref()?;
        let is_first = !self.rewriter.pair.server.batch.is_open;
        let concerns = if is_first {
            context.batch_needs_routing(self.rewriter.pair.client, kind, message)
        } else {
            context.message_needs_routing(self.rewriter.pair.client)
        };
        if !concerns || self.rewriter.pair.server.batch.is_copying_in {
            return None;
        }
        self.route_batch(kind, message, is_first)
    }

    fn route_batch(
        &mut self,
        kind: Frontend,
        message: PartialMessage<'_>,
        is_first: bool,
    ) -> Option<RewriteResult> {
        if is_first && let Some(stopped) = self.unlink_if_idle() {
            return Some(stopped);
        }
        let LinkedPair { client, .. } = &mut self.rewriter.pair;
        match self
            .routing
            .as_mut()?
            .dispatch_linked_batch(client, kind, message, self.input, is_first)
        {
            Dispatch::Server | Dispatch::Answered(_) | Dispatch::DeferredBegin(_) => None,
            Dispatch::NeedsMoreInput => {
                client.input.is_collecting_batch = true;
                Some(RewriteResult::Stop(StopReason::NeedsMoreInput))
            }
            Dispatch::FanOut(_) => Some(self.poison_batch(&FAN_OUT_IN_BATCH)),
            Dispatch::Refused(refusal) if !is_first => Some(self.poison_batch(&refusal)),
            Dispatch::Refused(refusal) => {
                refuse_batch(client, self.to_client, &refusal);
                Some(RewriteResult::Consumed)
            }
            Dispatch::LocalBatch => {
                if let Some(routing) = &mut client.routing {
                    routing.batch_owner = BatchOwner::Pooler;
                }
                self.handle_local_batch(kind, message)
            }
        }
    }

    /// Refuses a message in the middle of a batch that was partly sent. The server must roll that
    /// part back, so it gets a Parse that fails in place of the message; the reason is part of the
    /// error text.
    fn poison_batch(&mut self, refusal: &howdah_route::Refusal) -> RewriteResult {
        let text = refusal.to_string().replace(['\'', '\\', '\0'], " ");
        let sql = format!("SELECT 'refused by the pooler: {text}'::pg_catalog.int4");
        let LinkedPair { client, server, to_server, .. } = &mut self.rewriter.pair;
        let before = std::mem::take(&mut client.statements.unnamed);
        let rollback = RollbackAction::RestoreUnnamed(PreviousUnnamed::Text(before));
        server.statements.unnamed_is_ours = true;
        server.outstanding.push(RequestKind::Parse(Some(Box::new(rollback))));
        to_server.push_with(|buf| {
            frontend::encode::parse(buf, b"", sql.as_bytes(), &[])
                .expect("the text has no zero byte");
        });
        RewriteResult::Consumed
    }

    /// Sends the pooler's own replies that are next in order. They wait while a server message,
    /// such as a notice, is only partly forwarded.
    fn send_local_replies(&mut self) {
        let server = &mut *self.rewriter.pair.server;
        if server.input.is_inside_forwarded_body() {
            return;
        }
        while let Some(reply) = server.outstanding.pop_local_reply() {
            self.to_client.push_with(|buf| buf.extend_from_slice(&reply));
        }
    }

    /// Holds the client's input until all its requests are answered. Returns `None` if they are, or
    /// if the server waits for COPY data: it then sends no replies, and the input must reach it.
    pub(crate) fn wait_for_replies(&mut self) -> Option<RewriteResult> {
        self.send_local_replies();
        let LinkedPair { client, server, to_server, .. } = &mut self.rewriter.pair;
        let quiet = server.outstanding.is_empty() && !server.input.is_inside_forwarded_body();
        if quiet || server.batch.is_copying_in {
            return None;
        }
        if server.batch.is_open {
            // Without Flush or Sync, the server need not send its replies.
            to_server.push_with(frontend::encode::flush);
        }
        client.input_hold = InputHold::AwaitingReplies;
        Some(RewriteResult::Stop(StopReason::NeedsMoreInput))
    }

    /// Holds messages that follow a parameter reset, a spliced query string or a LISTEN, until the
    /// pooler's own statements for it are answered.
    fn hold_until_restored(&mut self, kind: Frontend) -> Option<RewriteResult> {
        if matches!(kind, Frontend::Terminate | Frontend::Flush) {
            return None;
        }
        let stalled = self.wait_for_replies();
        self.rewriter.pair.server.restore.is_in_flight = stalled.is_some();
        stalled
    }

    /// Handles Parse, Bind, Describe, Execute or Close.
    #[inline]
    fn handle_extended(&mut self, kind: Frontend, message: PartialMessage<'_>) -> RewriteResult {
        if let Some(rewritten) = self.try_route_batch(kind, message) {
            return rewritten;
        }
        let rewriter = &mut self.rewriter;
        if !rewriter.pair.server.batch.is_open {
            rewriter.start_batch();
        }
        let rewritten = if kind == Frontend::Execute {
            match self.execute_listen_portal(message) {
                Some(rewritten) => rewritten,
                None => self.rewriter.execute(message),
            }
        } else if rewriter.pair.statements_max == 0 {
            self.forward_unrenamed(kind, message)
        } else {
            self.rewrite_names(kind, message)
        };
        if !matches!(rewritten, RewriteResult::Stop(_)) {
            self.rewriter.pair.server.batch.is_open = true;
        }
        rewritten
    }

    /// Forwards a Parse, Bind, Describe or Close unchanged, if statement names are not rewritten.
    fn forward_unrenamed(&mut self, kind: Frontend, message: PartialMessage<'_>) -> RewriteResult {
        self.rewriter.pair.observe_unrenamed(kind, message);
        let server = &mut *self.rewriter.pair.server;
        if kind == Frontend::Parse {
            if self.is_shared {
                server.session_state |= message_state_flags(message);
                server.set_kind = SetKind::NeedsReset;
            }
            if let Some(name_end) = memchr::memchr(0, message.body) {
                let sql = sql_text(&message.body[name_end + 1..]);
                server.record_reset_parameters(sql, &self.rewriter.pair.client.startup_parameters);
            }
        }
        server.outstanding.push(match kind {
            Frontend::Parse => RequestKind::Parse(None),
            Frontend::Bind => RequestKind::Bind(0),
            Frontend::Describe => RequestKind::Describe(0),
            _ => RequestKind::Close(None),
        });
        RewriteResult::AsIs
    }

    /// Handles a Parse, Bind, Describe or Close, if clients' statement names are replaced by names
    /// that all clients share. Waits for outstanding replies if they decide what the name means.
    #[inline]
    fn rewrite_names(&mut self, kind: Frontend, message: PartialMessage<'_>) -> RewriteResult {
        loop {
            let rewriter = &mut self.rewriter;
            let rewritten = match kind {
                Frontend::Parse => rewriter.parse(message),
                Frontend::Bind => rewriter.bind(message),
                Frontend::Describe => rewriter.describe(message),
                _ => rewriter.close(message),
            };
            if !matches!(rewritten, RewriteResult::Stop(StopReason::AwaitsReplies)) {
                return rewritten;
            }
            if let Some(stalled) = self.wait_for_replies() {
                return stalled;
            }
        }
    }

    fn handle_function_call(&mut self) -> RewriteResult {
        if self.rewriter.pair.server.batch.is_open
            && let Some(stalled) = self.wait_for_replies()
        {
            return stalled; // If the batch has failed, the server skips this message.
        }
        self.rewriter.pair.observe_unknown();
        let server = &mut *self.rewriter.pair.server;
        server.finish_batch(); // ReadyForQuery ends the batch as Sync would.
        // The called function may be `set_config`.
        server.parameters.parse_state.record_change(Uncertainty::Unreported);
        server.outstanding.push(RequestKind::FunctionCall);
        RewriteResult::AsIs
    }

    fn handle_query(&mut self, message: PartialMessage<'_>) -> RewriteResult {
        if self.rewriter.pair.server.batch.is_open
            && let Some(stalled) = self.wait_for_replies()
        {
            return stalled; // If the batch has failed, the server skips this message.
        }
        if let Some(rewritten) = self.try_route_query(message) {
            return rewritten;
        }
        if message.is_complete()
            && let Some(sql) = message.body.strip_suffix(b"\0")
            && fast_path::is_simple(sql)
        {
            return self.fast_path_query(sql);
        }
        if self.is_shared
            && let Some(rewritten) = self.try_deallocate(message)
        {
            return rewritten;
        }
        if self.needs_complete_listen(message) {
            return RewriteResult::Stop(StopReason::NeedsMoreInput);
        }
        let actions = self.listen_actions(message);
        if !actions.is_empty()
            && let Some(rewritten) = self.prepare_listen(&actions)
        {
            return match rewritten {
                ListenPrecondition::Wait(rewritten) => rewritten,
                ListenPrecondition::Refuse(error) => self.rewriter.fail_listen_query(error),
            };
        }
        let spliced = if actions.is_empty() {
            self.splice_restore(message)
        } else {
            self.rewriter.splice_listen_markers(message)
        };
        if spliced.is_some()
            && let Some(stalled) = self.wait_for_replies()
        {
            return stalled; // Spliced replies are recognized only if no others are pending.
        }
        let set_kind = self.record_query_effects(message);
        let LinkedPair { server, to_server, .. } = &mut self.rewriter.pair;
        server.finish_batch(); // ReadyForQuery ends the batch as Sync would.
        server.restore.is_in_flight = !server.restore.parameters.is_empty()
            || spliced.is_some()
            || server.pending_actions.is_some();
        server.outstanding.push(RequestKind::Query(set_kind));
        let Some(spliced) = spliced else { return RewriteResult::AsIs };
        to_server.push_with(|buf| {
            frontend::encode::query(buf, &spliced.sql).expect("spliced text has no zero byte");
        });
        server.restore.spliced_query = Some(Box::new(spliced));
        RewriteResult::Consumed
    }

    /// Handles a query string for which [`fast_path::is_simple`] returns `true`.
    #[inline]
    fn fast_path_query(&mut self, sql: &[u8]) -> RewriteResult {
        self.rewriter.pair.observe(sql);
        let LinkedPair { client, server, .. } = &mut self.rewriter.pair;
        let set_kind = if self.is_shared {
            let flags = SessionStateFlags::from_text(sql);
            server.session_state |= flags;
            if flags.has(SessionStateFlags::SETTINGS) || server.parameters.parse_state.may_change()
            {
                server.record_parse_settings_change(sql);
            }
            client.statements.clear_unnamed();
            server.statements.unnamed_is_ours = true;
            SetKind::NotSet
        } else {
            SetKind::NeedsReset
        };
        server.finish_batch(); // ReadyForQuery ends the batch as Sync would.
        server.restore.is_in_flight =
            !server.restore.parameters.is_empty() || server.pending_actions.is_some();
        server.outstanding.push(RequestKind::Query(set_kind));
        RewriteResult::AsIs
    }

    /// Returns the query string to send in place of one that resets parameters among other
    /// statements; it restores the client's startup values after each reset. Returns `None` if the
    /// query string is sent unchanged.
    fn splice_restore(&self, message: PartialMessage<'_>) -> Option<SplicedQuery> {
        let LinkedPair { client, server, .. } = &self.rewriter.pair;
        let startup = client.startup_parameters.list();
        if startup.is_empty() || !message.is_complete() || server.batch.is_copying_in {
            return None;
        }
        let sql = message.body.strip_suffix(b"\0").filter(|sql| changes_parameters(sql))?;
        splice(sql, startup, server.status != TransactionStatus::Idle, |_| None)
    }

    /// Handles a query string that only deallocates a statement that was prepared by the extended
    /// protocol. Returns `None` for other query strings, and if the server will reject the query
    /// string, as during COPY or in a failed transaction.
    fn try_deallocate(&mut self, message: PartialMessage<'_>) -> Option<RewriteResult> {
        let LinkedPair { client, server, .. } = &mut self.rewriter.pair;
        let name = deallocated_name(message).filter(|_| !server.batch.is_copying_in)?;
        let has_name =
            |client: &ClientConnection| client.statements.named.contains_key(name.as_slice());
        if has_name(client) || server.outstanding.is_ambiguous(&name, 0) {
            if let Some(stalled) = self.wait_for_replies() {
                return Some(stalled);
            }
            let LinkedPair { client, server, .. } = &mut self.rewriter.pair;
            if has_name(client) && server.status != TransactionStatus::Failed {
                return Some(self.deallocate(&name));
            }
        }
        None
    }

    /// Records the possible effects of a query string on the session, and returns what a `SET` tag
    /// in its reply will mean.
    fn record_query_effects(&mut self, message: PartialMessage<'_>) -> SetKind {
        self.rewriter.pair.observe_message(message);
        let LinkedPair { client, server, .. } = &mut self.rewriter.pair;
        let sql = message.body.strip_suffix(b"\0").unwrap_or(message.body);
        server.record_reset_parameters(sql, &client.startup_parameters);
        if !self.is_shared {
            return SetKind::NeedsReset;
        }
        let flags = message_state_flags(message);
        server.session_state |= flags;
        if flags == SessionStateFlags::UNKNOWN {
            server.parameters.parse_state.record_change(Uncertainty::Unreported);
        } else {
            server.record_parse_settings_change(sql);
        }
        // A query string drops the unnamed statement, so neither the client nor the server has one
        // now.
        client.statements.clear_unnamed();
        server.statements.unnamed_is_ours = true;
        server.batch.may_deallocate |= if client.statements.named.is_empty() {
            deallocate::is_deallocation(sql)
        } else {
            deallocate::may_deallocate(sql)
        };
        if flags == SessionStateFlags::UNKNOWN {
            return SetKind::NeedsReset;
        }
        let settings = &server.parameters;
        let reported = |name: &[u8]| is_settable(name) && settings.value(name).is_some();
        SetKind::from_text(sql, reported)
    }

    /// Deallocates a client's statement and replies to the client, without sending the request to
    /// the server. If a batch is open, a Sync is sent in its place, so that the server's own
    /// ReadyForQuery follows.
    fn deallocate(&mut self, name: &[u8]) -> RewriteResult {
        let LinkedPair { client, server, to_server, .. } = &mut self.rewriter.pair;
        deallocate(client, name, self.to_client);
        server.statements.unnamed_is_ours = false; // The server still has one.
        if server.finish_batch() {
            server.outstanding.push(RequestKind::Sync);
            to_server.push_with(frontend::encode::sync);
        } else {
            let status = server.status;
            self.to_client.push_with(|buf| encode::ready_for_query(buf, status));
        }
        RewriteResult::Consumed
    }
}

/// Returns the session state that the SQL in a message may change although command tags do not show
/// it; `UNKNOWN` if the message is incomplete.
fn message_state_flags(message: PartialMessage<'_>) -> SessionStateFlags {
    if message.is_complete() {
        SessionStateFlags::from_text(message.body)
    } else {
        SessionStateFlags::UNKNOWN
    }
}

/// Returns the statement name in a query string that consists of a single DEALLOCATE; `None`
/// otherwise.
pub(crate) fn deallocated_name(message: PartialMessage<'_>) -> Option<Vec<u8>> {
    deallocate::name(message.body.strip_suffix(b"\0")?).filter(|_| message.is_complete())
}

/// Removes a client's statement and appends the reply that a server would send, without
/// ReadyForQuery.
pub(crate) fn deallocate(client: &mut ClientConnection, name: &[u8], to: &mut GatherBuffer) {
    client.statements.named.remove(name);
    client.statements.clear_unnamed();
    to.push_with(|buf| {
        encode::command_complete(buf, b"DEALLOCATE").expect("the text has no zero byte");
    });
}
