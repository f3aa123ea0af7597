//! Handles server messages: matches each with the request that it answers, and records its effects.

use howdah_capture::live::CaptureBuffer;
use howdah_wire::{
    Backend, Frame,
    backend::{BackendMessage, Severity, TransactionStatus, encode},
};

use crate::{
    cluster::TargetRole,
    messages::{
        gather_buffer::GatherBuffer,
        outstanding::{PreviousUnnamed, ReplyTarget, RequestKind, RollbackAction},
    },
    pinning::{answer, pin::StableFunctions},
    prepared::{
        names::{ClientStatements, ServerStatements},
        statements::StatementRegistry,
    },
    refusal::ClientRefusal,
    session::{
        connect_query::ConnectQuery,
        parameter::{SessionParameter, eq_name},
        parameters::{ParameterSets, is_settable},
        state::{SessionStateFlags, SetKind},
        write_detection::WriteDetection,
    },
    state::{
        client::{ClientConnection, InputHold},
        pool_stats::PoolStats,
        server::{ServerConnection, ServerState},
    },
    time::Time,
};

/// The action to take on a server's message.
#[derive(Debug)]
pub(crate) enum ReplyAction {
    /// Forward it to the client.
    Forward,
    /// Drop it: it answers a request of the pooler, or the client must not see it.
    Swallow,
    /// Send these bytes to the client instead.
    Replace(Vec<u8>),
    /// Disconnect the client with this error; the server stays usable.
    Refuse(ClientRefusal),
    /// Disconnect the client with this error, and close the server connection.
    Disconnect(ClientRefusal),
    /// The message answers no outstanding request, or is malformed: the server has violated the
    /// protocol.
    ProtocolViolation,
}

/// Whether the body of a message is examined, so that the message must be complete. Such messages
/// are usually short. All others are streamed, and so are errors longer than [`ERROR_BYTES_MAX`].
fn needs_body(kind: Backend, body_bytes: u32) -> bool {
    match kind {
        Backend::ReadyForQuery | Backend::ParameterStatus | Backend::CommandComplete => true,
        Backend::ErrorResponse => body_bytes <= ERROR_BYTES_MAX,
        _ => false,
    }
}

/// Maximum length, in bytes, of an ErrorResponse body that is examined.
const ERROR_BYTES_MAX: u32 = 8192;

/// The handler for the messages of a server, with the client that is linked to it, if any.
pub(crate) struct ReplyHandler<'a> {
    pub(crate) server: &'a mut ServerConnection,
    pub(crate) client: Option<&'a mut ClientConnection>,
    /// Whether LISTEN is multiplexed; see [`crate::listen::channels`].
    pub(crate) multiplexes_listen: bool,
    /// Whether transaction blocks are refused (statement mode).
    pub(crate) refuses_blocks: bool,
    /// Whether the client keeps its server between transactions (session mode).
    pub(crate) keeps_server: bool,
    /// The query that ran after the server's login, if one is configured.
    pub(crate) connect_query: Option<&'a ConnectQuery>,
    pub(crate) parameter_sets: &'a mut ParameterSets,
    pub(crate) statements: &'a StatementRegistry,
    pub(crate) to_server: &'a mut GatherBuffer,
    pub(crate) stats: &'a mut PoolStats,
    pub(crate) stable_functions: &'a mut StableFunctions,
    pub(crate) now: Time,
    /// The capture buffer, if the client is captured.
    pub(crate) capture: Option<&'a mut CaptureBuffer>,
}

impl ReplyHandler<'_> {
    /// Like [`needs_body`], but also `true` for rows that the pooler has requested (channel names
    /// or settings), which are short.
    pub(crate) fn needs_body(&self, kind: Backend, body_bytes: u32) -> bool {
        let reads_rows = kind == Backend::DataRow
            && self.server.outstanding.front().is_some_and(|it| {
                matches!(
                    it.target,
                    ReplyTarget::ListeningChannels
                        | ReplyTarget::ParseSettings
                        | ReplyTarget::SessionState
                )
            });
        let captures_row = kind == Backend::DataRow
            && self.capture.as_ref().is_some_and(|capture| capture.needs_row(body_bytes));
        reads_rows || captures_row || needs_body(kind, body_bytes)
    }

    /// Processes one message. `body` is complete if [`ReplyHandler::needs_body`] requires it;
    /// otherwise it may be empty.
    #[inline]
    pub(crate) fn handle(&mut self, kind: Backend, body: &[u8]) -> ReplyAction {
        let Some(front) = self.server.outstanding.front() else {
            return self.handle_unsolicited(kind, body);
        };
        let target = front.target;
        // The most frequent message: a row that the client has requested.
        if kind == Backend::DataRow
            && target == ReplyTarget::Client
            && self.server.restore.spliced_query.is_none()
        {
            return ReplyAction::Forward;
        }
        if self.server.restore.spliced_query.is_some()
            && let Some(reply) = self.filter_spliced_reply(kind, body)
        {
            return reply;
        }
        if target == ReplyTarget::ListeningChannels && kind == Backend::DataRow {
            self.read_listening_channel(body);
        }
        if target == ReplyTarget::SessionState && kind == Backend::DataRow {
            answer::read_row(self.server, body);
        }
        if target == ReplyTarget::ParseSettings
            && kind == Backend::DataRow
            && self.server.parameters.parse_state.is_querying
        {
            self.read_parse_settings(body);
        }
        let Some(front) = self.server.outstanding.front() else {
            return ReplyAction::ProtocolViolation;
        };
        let answered = match (kind, &front.kind) {
            (Backend::DataRow | Backend::CopyData | Backend::CopyDone, _) => false,
            (
                Backend::ReadyForQuery,
                RequestKind::Query(_) | RequestKind::FunctionCall | RequestKind::Sync,
            ) => {
                let status = body.first().and_then(|byte| TransactionStatus::from_byte(*byte));
                let Some(status) = status else { return ReplyAction::ProtocolViolation };
                self.server.status = status;
                self.server.batch.is_copying_in = false;
                // If no other request is outstanding, no Parse in flight depends on earlier
                // settings.
                if self.server.outstanding.is_single() {
                    self.server.parameters.parse_state.clear_relied_on();
                }
                if target == ReplyTarget::Client {
                    self.count_request();
                }
                // In statement mode a client never enters a transaction block: do not forward this
                // ReadyForQuery.
                if self.refuses_blocks && status != TransactionStatus::Idle && self.client.is_some()
                {
                    self.server.outstanding.pop();
                    return ReplyAction::Refuse(ClientRefusal::TransactionInStatementMode);
                }
                let begun = self.client.as_ref().and_then(|client| client.routing.as_ref());
                if target == ReplyTarget::Client
                    && begun.is_some_and(|routing| routing.deferred_begin.is_some())
                {
                    // The pooler has answered the client's BEGIN but not sent it yet; the server
                    // has only described a statement. To the client, a transaction is open.
                    self.server.outstanding.pop();
                    let mut ready = Vec::new();
                    encode::ready_for_query(&mut ready, TransactionStatus::InTransaction);
                    return ReplyAction::Replace(ready);
                }
                // The follow-ups below check whether further requests are outstanding, so this one
                // is removed before them.
                if target == ReplyTarget::Parameters {
                    self.parameters_applied();
                } else if target == ReplyTarget::SessionState {
                    answer::apply(
                        self.server,
                        self.client.as_deref_mut(),
                        self.parameter_sets,
                        self.stable_functions,
                        self.now,
                    );
                } else if !self.server.restore.parameters.is_empty()
                    && target == ReplyTarget::Client
                {
                    self.server.outstanding.pop();
                    return match self.restore_startup_parameters() {
                        ReplyAction::Forward => self.query_listening_channels(),
                        reply => reply,
                    };
                } else if self.server.pending_actions.is_some() {
                    self.server.outstanding.pop();
                    return match target {
                        ReplyTarget::ListeningChannels => self.apply_listening_channels(),
                        ReplyTarget::Client => self.query_listening_channels(),
                        _ => ReplyAction::Swallow,
                    };
                }
                true
            }
            // After CommandComplete, a query string continues with its next statement, but an
            // Execute is answered.
            (Backend::CommandComplete, RequestKind::Query(_) | RequestKind::Execute) => {
                self.command_completed(body);
                matches!(
                    self.server.outstanding.front().map(|e| &e.kind),
                    Some(RequestKind::Execute)
                )
            }
            (Backend::NoticeResponse, _) => return self.forward_if_linked(),
            (Backend::NotificationResponse, _) => return self.handle_notification(),
            (Backend::ParameterStatus, _) => return self.handle_parameter_status(body, target),
            (Backend::ErrorResponse, _) => {
                let reply = self.handle_error(body, target);
                self.record_error(body, &reply);
                return reply;
            }
            (Backend::CopyInResponse, RequestKind::Query(_) | RequestKind::Execute) => {
                let of_batch = matches!(front.kind, RequestKind::Execute);
                self.server.batch.is_copying_in = !self.server.outstanding.drop_syncs_in_copy();
                // While the server waits for COPY data, it discards the Sync that seemed to end the
                // batch; the client must send another one.
                self.server.batch.is_open |= of_batch && self.server.batch.is_copying_in;
                false
            }
            // The reply to a query string may contain any other message, until ReadyForQuery ends
            // it.
            (_, RequestKind::Query(_)) => false,
            (Backend::FunctionCallResponse, RequestKind::FunctionCall) => {
                self.assume_write();
                false
            }
            (Backend::ParseComplete, RequestKind::Parse(_) | RequestKind::DuplicateParse(_)) => {
                self.server.parameters.is_setter_prepared |=
                    matches!(target, ReplyTarget::Parameters | ReplyTarget::RestoreParameters);
                true
            }
            (Backend::PortalSuspended, RequestKind::Execute) => {
                let role =
                    self.client.as_ref().map_or(TargetRole::Primary, |client| client.member.role);
                if self.server.write_detection.is_enabled() {
                    self.server.write_detection.record_suspended(role);
                }
                true
            }
            (Backend::BindComplete, RequestKind::Bind(_))
            | (Backend::CloseComplete, RequestKind::Close(_))
            | (Backend::RowDescription | Backend::NoData, RequestKind::Describe(_))
            | (Backend::EmptyQueryResponse, RequestKind::Execute) => true,
            (Backend::ParameterDescription, RequestKind::Describe(_)) => false,
            (Backend::CopyOutResponse | Backend::CopyBothResponse, RequestKind::Execute) => false,
            _ => return ReplyAction::ProtocolViolation,
        };
        if answered {
            self.server.outstanding.pop();
        }
        if target == ReplyTarget::Client { ReplyAction::Forward } else { ReplyAction::Swallow }
    }

    /// Records a write, if the client's writes are tracked, because the reply does not show whether
    /// the request wrote.
    fn assume_write(&mut self) {
        if self.server.write_detection.is_enabled() {
            self.server.write_detection = WriteDetection::Written;
        }
    }

    /// Updates the statistics for an answered request of the client.
    #[inline]
    fn count_request(&mut self) {
        self.stats.queries += 1;
        self.stats.query_time.add(self.server.state_since, self.now);
        if self.server.status == TransactionStatus::Idle {
            self.stats.transactions += 1;
            self.stats.transaction_time.add(self.server.work_started, self.now);
        }
    }

    /// Handles a message that arrives while no request is outstanding.
    fn handle_unsolicited(&mut self, kind: Backend, body: &[u8]) -> ReplyAction {
        match kind {
            Backend::NoticeResponse => self.forward_if_linked(),
            Backend::NotificationResponse => self.handle_notification(),
            Backend::ParameterStatus => self.handle_parameter_status(body, ReplyTarget::Client),
            Backend::ErrorResponse if matches!(self.server.state, ServerState::Linked(_)) => {
                // With the end of the transaction in the same read, the server is not released yet.
                // Its error is not the client's, and no other client may get it.
                if !self.keeps_server && self.server.is_quiescent() {
                    self.server.is_ending = true;
                    return ReplyAction::Swallow;
                }
                ReplyAction::Forward
            }
            // The server is about to close the connection.
            Backend::ErrorResponse => ReplyAction::Disconnect(ClientRefusal::ServerLost),
            _ => ReplyAction::ProtocolViolation,
        }
    }

    fn forward_if_linked(&self) -> ReplyAction {
        if self.client.is_some() { ReplyAction::Forward } else { ReplyAction::Swallow }
    }

    /// Drops a notification if LISTEN is multiplexed, because the dedicated connection delivers
    /// notifications then. Otherwise forwards it to the linked client, if there is one.
    fn handle_notification(&self) -> ReplyAction {
        if self.multiplexes_listen { ReplyAction::Swallow } else { self.forward_if_linked() }
    }

    /// Records how a completed statement has changed the session. `body` is that of
    /// CommandComplete.
    fn command_completed(&mut self, body: &[u8]) {
        let tag = body.strip_suffix(b"\0").unwrap_or(body);
        let server = &mut *self.server;
        // A tag with a row count is that of a statement that cannot have changed session settings.
        if tag.last().is_some_and(u8::is_ascii_digit) && !server.write_detection.is_enabled() {
            return;
        }
        let Some(front) = server.outstanding.front() else { return };
        if !matches!(front.target, ReplyTarget::Client | ReplyTarget::Cleaning) {
            return;
        }
        if server.write_detection.is_enabled() {
            let role =
                self.client.as_ref().map_or(TargetRole::Primary, |client| client.member.role);
            server.write_detection.record_tag(tag, role);
        }
        // The statement may have undone state that the connect query set up, and this query cannot
        // be repeated.
        if front.target == ReplyTarget::Client
            && self.connect_query.is_some_and(|query| !query.is_repeatable)
        {
            server.session_state |= SessionStateFlags::cleared_by_tag(tag);
        }
        match tag {
            b"SET" => {
                let kind = match front.kind {
                    RequestKind::Query(kind) => kind,
                    _ => server.set_kind,
                };
                if kind != SetKind::NoReset && front.target == ReplyTarget::Client {
                    server.session_state |= SessionStateFlags::SETTINGS;
                }
                server.mark_parameters_reset();
            }
            b"RESET" => {
                if front.target == ReplyTarget::Cleaning {
                    server.parameters.handle_reset();
                } else if self.connect_query.is_some() {
                    server.session_state |= SessionStateFlags::SETTINGS;
                }
                server.mark_parameters_reset();
            }
            b"DISCARD ALL" | b"DEALLOCATE ALL" => {
                server.statements.clear();
                server.parameters.is_setter_prepared = false;
                if tag == b"DISCARD ALL" {
                    let is_reset = front.target == ReplyTarget::Cleaning;
                    if is_reset || server.outstanding.is_single() {
                        // If other requests are outstanding, their flags are already set and must
                        // stay.
                        server.session_state = SessionStateFlags::NONE;
                        if let Some(pin) = &mut server.pin {
                            pin.discarded_all();
                        }
                    }
                    if !is_reset && self.connect_query.is_some() {
                        server.session_state |= SessionStateFlags::SETTINGS;
                    }
                    server.parameters.handle_reset();
                    server.mark_parameters_reset();
                }
                if let Some(client) = self.client.as_deref_mut() {
                    client.statements.named.clear();
                    if tag == b"DISCARD ALL"
                        && let Some(channels) = &mut client.channels
                    {
                        channels.unlisten_all();
                        server.pending_actions = None;
                    }
                }
            }
            b"DEALLOCATE" if matches!(front.kind, RequestKind::Execute) => {
                self.deallocate_completed();
            }
            b"LISTEN" | b"UNLISTEN" => self.listen_completed(tag),
            _ => server.session_state |= SessionStateFlags::from_tag(tag),
        }
    }

    /// Removes, for the client and the server, the statement that a DEALLOCATE has deallocated. The
    /// client sent the DEALLOCATE by the extended protocol.
    fn deallocate_completed(&mut self) {
        let Some(name) = self.server.batch.deallocated_name.take() else { return };
        let Some(client) = self.client.as_deref_mut() else { return };
        if let Some(statement) = client.statements.named.remove(&name) {
            self.server.statements.remove(statement.id);
        }
    }

    /// Records a parameter's new value for the server and, if the client is to see the change, for
    /// the client too.
    fn handle_parameter_status(&mut self, body: &[u8], target: ReplyTarget) -> ReplyAction {
        let frame = Frame { tag: Backend::ParameterStatus.tag(), body };
        let Ok(BackendMessage::ParameterStatus { name, value }) = BackendMessage::parse(frame)
        else {
            return ReplyAction::ProtocolViolation;
        };
        let settings = &mut self.server.parameters;
        if target == ReplyTarget::ParseSettings && self.client.is_some() {
            settings.handle_temporary_report(name, value);
            return ReplyAction::Swallow;
        }
        // The server's parameters no longer equal the applied set, unless the client's set changes
        // in the same way; see below.
        let applied = settings.applied.take();
        settings.handle_report(name, value);
        let Some(client) = self.client.as_deref_mut() else { return ReplyAction::Swallow };
        if target == ReplyTarget::Parameters {
            return ReplyAction::Swallow;
        }
        let is_reset = |setting: &SessionParameter| eq_name(&setting.name, name);
        if self.server.restore.is_due
            && target == ReplyTarget::Client
            && let Some(setting) = self.server.restore.parameters.iter().find(|it| is_reset(it))
            && *setting.value != *value
        {
            // The client's startup value will be restored before its ReadyForQuery; report only
            // that value.
            return ReplyAction::Swallow;
        }
        let settings = &mut self.server.parameters;
        if let Some(routing) = &mut client.routing {
            routing.handle_parameter(name, value);
        }
        if is_settable(name) {
            let changed = self.parameter_sets.with(&client.parameters, name, value);
            if applied.is_some_and(|applied| std::sync::Arc::ptr_eq(&applied, &client.parameters)) {
                settings.applied = Some(std::sync::Arc::clone(&changed));
            }
            client.parameters = changed;
        }
        ReplyAction::Forward
    }

    /// Reads the row with the current values of the settings that affect parsing.
    fn read_parse_settings(&mut self, body: &[u8]) {
        let frame = Frame { tag: Backend::DataRow.tag(), body };
        let Ok(BackendMessage::DataRow(mut cells)) = BackendMessage::parse(frame) else { return };
        let mut value = || cells.next().flatten().map(Into::into);
        self.server.parameters.handle_parse_values(std::array::from_fn(|_| value()));
    }

    /// Records that the server has applied the client's parameters, and stores the values as the
    /// server spells them. Otherwise the same parameters would never count as applied.
    fn parameters_applied(&mut self) {
        let Some(client) = self.client.as_deref_mut() else { return };
        let settings = &mut self.server.parameters;
        client.parameters =
            self.parameter_sets.intern(settings.reported_spelling(&client.parameters));
        client.parameters.mark_accepted();
        settings.mark_applied(std::sync::Arc::clone(&client.parameters));
        if client.input_hold == InputHold::ApplyingParameters {
            client.input_hold = InputHold::ParametersApplied;
        }
    }

    /// Handles an ErrorResponse: rolls back changes recorded for requests that the server now
    /// skips, and decides which message the client gets.
    pub(crate) fn handle_error(&mut self, body: &[u8], target: ReplyTarget) -> ReplyAction {
        match target {
            ReplyTarget::Parameters | ReplyTarget::Begin => {
                return ReplyAction::Disconnect(parameter_refused(body));
            }
            ReplyTarget::Cleaning | ReplyTarget::ListeningChannels => {
                return ReplyAction::Disconnect(ClientRefusal::ServerLost);
            }
            ReplyTarget::SessionState => {
                if let Some(pin) = &mut self.server.pin {
                    pin.check_failed(); // The server is asked again.
                }
                return ReplyAction::Swallow;
            }
            ReplyTarget::ParseSettings if self.server.outstanding.is_batch_for(target) => {
                return ReplyAction::Disconnect(parameter_refused(body));
            }
            ReplyTarget::Client
            | ReplyTarget::Pooler
            | ReplyTarget::RestoreParameters
            | ReplyTarget::ParseSettings => {}
        }
        // A procedure may have committed something before it failed.
        self.assume_write();
        if self.server.status == TransactionStatus::InTransaction {
            // ReadyForQuery will report this status, but client messages that arrive before it
            // already need it.
            self.server.status = TransactionStatus::Failed;
        }
        self.server.restore.is_due = false;
        self.server.batch.deallocated_name = None;
        if let Some(reply) = self.retry_outdated_statement(body) {
            return reply;
        }
        let refusal = self.server.pending_actions.as_mut().and_then(|it| it.refusal.take());
        let instead = match self.server.outstanding.front().map(|entry| &entry.kind) {
            Some(RequestKind::Query(_) | RequestKind::FunctionCall | RequestKind::Sync) | None => {
                return refusal.map_or(ReplyAction::Forward, ReplyAction::Replace);
            }
            _ if refusal.is_some() => refusal,
            Some(RequestKind::DuplicateParse(name))
                if memchr::memmem::find(body, b"C42P05\0").is_some() =>
            {
                Some(duplicate_statement_error(name))
            }
            Some(_) => None,
        };
        self.skip_to_sync();
        match instead {
            _ if target == ReplyTarget::RestoreParameters => ReplyAction::Swallow,
            Some(error) => ReplyAction::Replace(error),
            None => ReplyAction::Forward,
        }
    }

    /// Rolls back the changes recorded for the failed request and for those that the server skips
    /// until Sync.
    pub(crate) fn skip_to_sync(&mut self) {
        let ServerConnection { outstanding: owed, statements, .. } = &mut *self.server;
        let (client, shared) = (&mut self.client, self.statements);
        let mut unnamed = None;
        let has_sync = owed.skip_to_sync(|rollback, is_failed| match rollback {
            // Even a failed Parse has dropped the previous unnamed statement.
            RollbackAction::RestoreUnnamed(_) if is_failed => unnamed = Some(Vec::new()),
            RollbackAction::RestoreUnnamed(PreviousUnnamed::Text(text)) => unnamed = Some(text),
            RollbackAction::RestoreUnnamed(PreviousUnnamed::Any) => {}
            rollback => {
                let client = client.as_deref_mut().map(|client| &mut client.statements);
                undo_request(rollback, client, statements, shared);
            }
        });
        if let Some(text) = unnamed.and_then(|text| owed.set_previous_unnamed(text))
            && let Some(client) = client
        {
            client.statements.unnamed = text;
            client.statements.unnamed_is_simple = false;
            client.statements.unnamed_settings = None;
        }
        self.server.statements.unnamed_is_ours = false;
        self.server.batch.is_copying_in = false;
        self.server.batch.is_skipping = !has_sync;
    }
}

/// Rolls back the change recorded for a request that has failed, or that the server skips because
/// an earlier one failed.
fn undo_request(
    rollback: RollbackAction,
    client: Option<&mut ClientStatements>,
    server: &mut ServerStatements,
    shared: &StatementRegistry,
) {
    match &rollback {
        RollbackAction::RemoveNameAndStatement(_, id) | RollbackAction::RemoveStatement(id) => {
            server.remove(*id);
        }
        RollbackAction::RestoreStatement(id) => server.insert(*id),
        _ => {}
    }
    let Some(client) = client else { return };
    match rollback {
        RollbackAction::RemoveName(name) => drop(client.named.remove(&name)),
        RollbackAction::RemoveNameAndStatement(name, _) => {
            if let Some(statement) = client.named.remove(&name) {
                shared.parse_failed(&statement);
            }
        }
        RollbackAction::RestoreName(name, statement) => drop(client.named.insert(name, statement)),
        RollbackAction::RestoreUnnamed(_)
        | RollbackAction::RemoveStatement(_)
        | RollbackAction::RestoreStatement(_) => {}
    }
}

/// Returns PostgreSQL's error for a Parse of an existing name, with the client's name for the
/// statement.
fn duplicate_statement_error(name: &[u8]) -> Vec<u8> {
    let message = [b"prepared statement \"", name, b"\" already exists"].concat();
    let mut buf = Vec::new();
    let fields = encode::essentials(Severity::Error, b"42P05", &message);
    encode::error_response(&mut buf, fields).expect(NO_ZERO_BYTE);
    buf
}

pub(crate) const NO_ZERO_BYTE: &str = "a name on the wire has no zero byte";

/// Returns the error for a client whose server has rejected a statement with which the pooler
/// prepares it, with the server's message if it can be parsed.
fn parameter_refused(body: &[u8]) -> ClientRefusal {
    let frame = Frame { tag: Backend::ErrorResponse.tag(), body };
    match BackendMessage::parse(frame) {
        Ok(BackendMessage::ErrorResponse(error)) => ClientRefusal::ServerSetup {
            sqlstate: error.sqlstate().try_into().unwrap_or(*b"22023"),
            message: String::from_utf8_lossy(error.message()).into_owned(),
        },
        _ => ClientRefusal::ServerSetup {
            sqlstate: *b"22023",
            message: "the server rejected a statement that prepares it for the client".to_owned(),
        },
    }
}
