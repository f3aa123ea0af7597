//! Prepared statements outside session mode: replaces clients' statement names by names that all
//! clients share on a server, and prepares a statement that the current server does not have yet.
//!
//! Only names and lengths are rewritten. The rest of a Parse or Bind is sent from the receive
//! buffer without copying, and the values of a Bind need not have arrived yet.

use std::sync::Arc;

use howdah_wire::{Frontend, Header, backend::TransactionStatus};

use crate::{
    messages::{
        gather_buffer::GatherBuffer,
        handling::{HELD_BYTES_MAX, PartialMessage, RewriteResult, StopReason},
        outstanding::{PreviousUnnamed, ReplyTarget, RequestKind, RollbackAction},
    },
    prepared::{
        deallocate,
        names::ClientStatements,
        parse_settings::{NAMES, ParseSettings, Uncertainty, depends_on_parse_settings},
        statements::{
            NAME_PREFIX, PooledStatement, StatementRegistry, UNKNOWN_SETTINGS, is_simple, sql_text,
        },
    },
    servers::setup,
    session::{
        parameters::is_settable,
        restore::{ResettingPortal, parameters_reset_by_statement},
        state::{SessionStateFlags, SetKind},
    },
    state::{
        client::{ClientConnection, InputHold},
        pool_stats::PoolStats,
        server::ServerConnection,
    },
};

/// The state needed to rewrite a client's messages to its server.
pub(crate) struct Rewriter<'a> {
    pub(crate) client: &'a mut ClientConnection,
    pub(crate) server: &'a mut ServerConnection,
    pub(crate) statements: &'a StatementRegistry,
    pub(crate) statements_max: usize,
    /// Whether LISTEN is multiplexed; see [`crate::listen::channels`].
    pub(crate) multiplexes_listen: bool,
    pub(crate) stats: &'a mut PoolStats,
    pub(crate) to_server: &'a mut GatherBuffer,
}

/// The statement that a message refers to.
#[derive(Clone, Copy)]
struct StatementRef {
    /// Id of the pooled statement; 0 for the unnamed statement, or if there is none.
    id: u64,
    /// Whether the statement's text is simple; see [`is_simple`].
    is_simple: bool,
}

impl StatementRef {
    const NONE: Self = Self { id: 0, is_simple: false };
}

impl Rewriter<'_> {
    /// Starts the tracking of a batch's statements, and decides whether the batch may be buffered.
    /// Called before the first message of the batch is handled.
    #[inline]
    pub(crate) fn start_batch(&mut self) {
        let server = &mut *self.server;
        server.statements.start_batch();
        let is_first = server.outstanding.is_empty() && self.to_server.is_empty();
        server.retry_buffer.start_batch(is_first && server.status == TransactionStatus::Idle);
    }

    /// Ends the open batch at its Sync, and buffers the batch in case it must be sent again.
    #[inline]
    pub(crate) fn finish_batch(&mut self, input: &[u8]) {
        self.server.retry_buffer.finish_batch(self.to_server, input);
        self.server.has_restore_in_flight =
            !self.server.parameters_to_restore.is_empty() || self.server.pending_actions.is_some();
        self.server.has_open_batch = false;
        self.server.is_skipping = false;
    }

    /// Handles a Parse: shares a named statement, and forwards an unnamed one.
    pub(crate) fn parse(&mut self, message: PartialMessage<'_>) -> RewriteResult {
        let Some((name, text_at)) = message.string(0) else { return message.missing_field() };
        if name.is_empty() {
            return self.parse_unnamed(message, text_at);
        }
        if !message.is_complete() {
            let is_short = message.header.body_bytes as usize <= HELD_BYTES_MAX;
            return if is_short {
                RewriteResult::Stop(StopReason::NeedsMoreInput)
            } else {
                message.too_long()
            };
        }
        match self.client.statements.named.get(name).cloned() {
            Some(existing) => match self.usable_statement(name, existing) {
                Ok(existing) => self.parse_again(message, text_at, &existing),
                Err(stop) => RewriteResult::Stop(stop),
            },
            None => {
                let text = &message.body[text_at..];
                if let Err(stop) = self.resolve_settings_for(sql_text(text)) {
                    return RewriteResult::Stop(stop);
                }
                let settings = self.server.parameters.parse_state.current();
                let statement = self.statements.intern(text, settings);
                self.parse_shared(message, text_at, &statement)
            }
        }
    }

    fn parse_unnamed(&mut self, message: PartialMessage<'_>, text_at: usize) -> RewriteResult {
        let is_short = message.header.body_bytes as usize <= HELD_BYTES_MAX;
        if !message.is_complete() && is_short {
            return RewriteResult::Stop(StopReason::NeedsMoreInput);
        }
        let deallocated = match self.deallocated_statement(message, text_at) {
            Some(name) if self.is_ambiguous(&name, 0) => {
                return RewriteResult::Stop(StopReason::AwaitsReplies);
            }
            Some(name) => match self.client.statements.named.get(name.as_slice()).cloned() {
                Some(statement) => match self.usable_statement(&name, statement) {
                    Ok(statement) => Some((name, statement)),
                    Err(stop) => return RewriteResult::Stop(stop),
                },
                None => None,
            },
            None => None,
        };
        let mut is_sensitive = None;
        if message.is_complete() && self.server.parameters.parse_state.key == 0 {
            let text = &message.body[text_at..];
            let sensitive = self.is_sensitive_unnamed(text);
            if sensitive && let Err(stop) = self.resolve_parse_settings() {
                return RewriteResult::Stop(stop);
            }
            is_sensitive = Some(sensitive);
        }
        // From here on, the message must be handled completely: the client's unnamed statement is
        // being replaced.
        let rollback = self.take_unnamed_undo();
        if message.is_complete() {
            let text = &message.body[text_at..];
            let sql = sql_text(text);
            let flags = SessionStateFlags::from_text(sql);
            let is_simple = is_simple(sql) && !flags.has(SessionStateFlags::SETTINGS);
            let settings = self.server.parameters.parse_state.current();
            self.client.statements.set_unnamed(text, is_simple, settings);
            self.client.statements.unnamed_is_sensitive = is_sensitive;
            self.server.parameters.parse_state.mark_relied_on();
            self.record_effects_unless_simple(sql, flags, is_simple);
        } else {
            self.client.statements.clear_unnamed();
            self.server.session_state = SessionStateFlags::UNKNOWN;
        }
        self.server.statements.unnamed_is_ours = true;
        let Some((name, statement)) = deallocated else {
            self.server.outstanding.push(RequestKind::Parse(rollback));
            return RewriteResult::AsIs;
        };
        // The text is a DEALLOCATE of a statement that has a different name on the server.
        self.ensure_prepared(&statement);
        self.server.outstanding.push(RequestKind::Parse(rollback));
        self.server.deallocated_name = Some(name.into());
        let sql_end = text_at + sql_text(&message.body[text_at..]).len();
        self.replace_front(message.header, sql_end, &[b"\0DEALLOCATE ", &statement.name]);
        RewriteResult::FrontReplaced(sql_end)
    }

    /// Whether the meaning of an unnamed statement depends on parse settings. Reuses the result for
    /// the previous text, because many clients prepare the same text again and again.
    fn is_sensitive_unnamed(&self, text: &[u8]) -> bool {
        let ClientStatements { unnamed, unnamed_is_sensitive, .. } = &self.client.statements;
        let known = unnamed_is_sensitive.filter(|_| *unnamed == *text);
        known.unwrap_or_else(|| depends_on_parse_settings(sql_text(text)))
    }

    /// Returns the statement name in an unnamed Parse whose text is a single DEALLOCATE; `None`
    /// otherwise, or if the client has no named statements.
    fn deallocated_statement(
        &self,
        message: PartialMessage<'_>,
        text_at: usize,
    ) -> Option<Vec<u8>> {
        if self.client.statements.named.is_empty() || !message.is_complete() {
            return None;
        }
        deallocate::name(sql_text(&message.body[text_at..]))
    }

    /// Takes the client's unnamed statement, to be restored if the request that replaces it is
    /// skipped. Returns `None` for the first request of a batch, which cannot be skipped.
    fn take_unnamed_undo(&mut self) -> Option<Box<RollbackAction>> {
        self.server.has_open_batch.then(|| {
            let text = std::mem::take(&mut self.client.statements.unnamed);
            Box::new(RollbackAction::RestoreUnnamed(PreviousUnnamed::Text(text)))
        })
    }

    /// Handles a Parse of a name that is already in use: sends it to the server, which rejects it,
    /// so that the error comes in the right order.
    fn parse_again(
        &mut self,
        message: PartialMessage<'_>,
        text_at: usize,
        existing: &PooledStatement,
    ) -> RewriteResult {
        let (name, _) = message.string(0).unwrap_or_default();
        let server = &*self.server;
        let may_fail = !server.is_copying_in
            && !server.statements.contains(existing.id)
            && server.outstanding.awaits_status();
        if may_fail || self.is_ambiguous(name, existing.id) {
            return RewriteResult::Stop(StopReason::AwaitsReplies);
        }
        // In a failed transaction the server reports a different error, whether or not it has the
        // statement.
        if self.server.status != TransactionStatus::Failed {
            self.ensure_prepared(existing);
        }
        self.server.outstanding.push(RequestKind::DuplicateParse(name.into()));
        self.replace_front(message.header, text_at, &[&existing.name, b"\0"]);
        RewriteResult::FrontReplaced(text_at)
    }

    fn parse_shared(
        &mut self,
        message: PartialMessage<'_>,
        text_at: usize,
        statement: &Arc<PooledStatement>,
    ) -> RewriteResult {
        let (name, _) = message.string(0).unwrap_or_default();
        if self.is_ambiguous(name, statement.id) {
            return RewriteResult::Stop(StopReason::AwaitsReplies);
        }
        let id = statement.id;
        self.stats.client_parses += 1;
        self.client.statements.named.insert(name.into(), Arc::clone(statement));
        if !self.server.statements.touch(id) {
            self.evict_statement();
            self.stats.server_parses += 1;
            self.server.statements.insert(id);
            self.server.parameters.parse_state.mark_relied_on();
            let rollback = RollbackAction::RemoveNameAndStatement(name.into(), id);
            self.server.outstanding.push(RequestKind::Parse(Some(Box::new(rollback))));
            self.replace_front(message.header, text_at, &[&statement.name, b"\0"]);
            return RewriteResult::FrontReplaced(text_at);
        }
        let rollback = Box::new(RollbackAction::RemoveName(name.into()));
        if self.server.status != TransactionStatus::Failed
            && !self.server.outstanding.awaits_status()
        {
            self.server.outstanding.push(RequestKind::LocalParse(rollback));
            self.server.retry_buffer.mark_parse();
            return RewriteResult::Consumed;
        }
        // The transaction may have failed, so only the server knows whether it accepts a Parse now.
        // Send the Parse without a name, because the server already has the named statement.
        self.server.outstanding.push(RequestKind::Parse(Some(rollback)));
        self.server.statements.unnamed_is_ours = false;
        self.replace_front(message.header, text_at, &[b"\0"]);
        RewriteResult::FrontReplaced(text_at)
    }

    /// Whether outstanding replies decide which statement `name` means, or if the server has the
    /// statement `id`, when it processes a message sent now. `id` is 0 for a name without a
    /// statement.
    fn is_ambiguous(&mut self, name: &[u8], id: u64) -> bool {
        let server = &mut *self.server;
        if server.may_deallocate && server.outstanding.is_empty() {
            server.may_deallocate = false;
        }
        !server.is_copying_in
            && (server.may_deallocate || server.outstanding.is_ambiguous(name, id))
    }

    /// Handles a Bind: rewrites the statement's name, but not the portal's.
    pub(crate) fn bind(&mut self, message: PartialMessage<'_>) -> RewriteResult {
        let Some((portal, statement_at)) = message.string(0) else {
            return message.missing_field();
        };
        let Some((name, rest_at)) = message.string(statement_at) else {
            return message.missing_field();
        };
        let (rewritten, statement) =
            self.rewrite_reference(message.header, name, rest_at, &[portal, b"\0"]);
        if !matches!(rewritten, RewriteResult::Stop(_)) {
            self.server.outstanding.push(RequestKind::Bind(statement.id));
            self.stats.binds += u64::from(statement.id != 0);
            if self.multiplexes_listen
                && (!statement.is_simple || self.server.pending_actions.is_some())
            {
                self.track_listen_portal(portal, name);
            }
            if !statement.is_simple || self.server.parameters.parse_state.may_change() {
                self.record_setting_change(message, portal, name);
            }
            let may_reset = !statement.is_simple || self.server.resetting_portal.is_some();
            if may_reset && !self.client.startup_parameters.list().is_empty() {
                self.track_resetting_portal(portal, name);
            }
        }
        rewritten
    }

    /// Records whether executing a portal may change the settings that affect parsing.
    fn record_setting_change(
        &mut self,
        message: PartialMessage<'_>,
        portal: &[u8],
        statement: &[u8],
    ) {
        let sql = self.statement_text(statement).map(sql_text);
        // If the name of a setting is among the bound values, it appears literally, in text as well
        // as in binary format.
        let by_parameter = || {
            let body = message.body;
            let names = NAMES.iter().any(|name| contains_ignoring_case(body, name.as_bytes()));
            if message.is_complete() && !names {
                Uncertainty::None
            } else {
                Uncertainty::Unreported
            }
        };
        let uncertainty = sql.map_or(Uncertainty::None, |sql| {
            self.server.parse_settings_uncertainty(sql, by_parameter)
        });
        self.server.parameters.parse_state.record_bind(portal.is_empty(), uncertainty);
    }

    /// Returns the text of a client's statement, or of the unnamed one if the name is empty.
    pub(crate) fn statement_text(&self, statement: &[u8]) -> Option<&[u8]> {
        let ClientStatements { named, unnamed, .. } = &self.client.statements;
        match statement {
            b"" => Some(&unnamed[..]),
            name => named.get(name).map(|statement| &*statement.text),
        }
    }

    /// Records a portal that will reset parameters when it is executed, or forgets it if the name
    /// is bound again.
    fn track_resetting_portal(&mut self, portal: &[u8], statement: &[u8]) {
        let text = self.statement_text(statement);
        let back = text.and_then(|text| {
            parameters_reset_by_statement(sql_text(text), self.client.startup_parameters.list())
        });
        let resetting = &mut self.server.resetting_portal;
        if let Some((back, is_local)) = back {
            *resetting = Some(Box::new(ResettingPortal {
                portal: portal.into(),
                parameters: back,
                is_local,
            }));
        } else if resetting.as_ref().is_some_and(|resetting| *resetting.portal == *portal) {
            *resetting = None;
        }
    }

    /// Handles an Execute. If it resets parameters, statements that restore the client's startup
    /// values follow it in the same batch.
    pub(crate) fn execute(&mut self, message: PartialMessage<'_>) -> RewriteResult {
        self.server.outstanding.push(RequestKind::Execute);
        self.server.parameters.parse_state.record_execute(message.body.first() == Some(&0));
        let runs = |resetting: &mut Box<ResettingPortal>| {
            message.is_complete() && message.string(0).is_some_and(|it| *it.0 == *resetting.portal)
        };
        let Some(resetting) = self.server.resetting_portal.take_if(runs) else {
            return RewriteResult::AsIs;
        };
        self.to_server.push_with(|buf| {
            write_header(buf, Frontend::Execute, message.body.len());
            buf.extend_from_slice(message.body);
        });
        setup::restore_in_batch(self.server, &resetting, self.to_server);
        RewriteResult::Consumed
    }

    /// Handles a Describe: forwards it for a portal, and rewrites the name for a statement.
    pub(crate) fn describe(&mut self, message: PartialMessage<'_>) -> RewriteResult {
        if !message.is_complete() {
            return message.missing_field();
        }
        let Some((name, end)) = message.string(1) else { return message.missing_field() };
        let (rewritten, StatementRef { id, .. }) = match message.body[0] {
            b'S' => self.rewrite_reference(message.header, name, end, &[b"S"]),
            _ => (RewriteResult::AsIs, StatementRef::NONE),
        };
        if !matches!(rewritten, RewriteResult::Stop(_)) {
            self.server.outstanding.push(RequestKind::Describe(id));
        }
        rewritten
    }

    /// Handles a Close: answers it for a named statement, and forwards it otherwise.
    pub(crate) fn close(&mut self, message: PartialMessage<'_>) -> RewriteResult {
        if !message.is_complete() {
            return message.missing_field();
        }
        let Some((name, _)) = message.string(1) else { return message.missing_field() };
        if message.body[0] != b'S' || name.is_empty() {
            let mut rollback = None;
            if message.body[0] == b'S' {
                rollback = self.take_unnamed_undo();
                self.client.statements.clear_unnamed();
                self.server.statements.unnamed_is_ours = true;
            }
            self.server.outstanding.push(RequestKind::Close(rollback));
            return RewriteResult::AsIs;
        }
        if self.is_ambiguous(name, 0) {
            return RewriteResult::Stop(StopReason::AwaitsReplies);
        }
        let removed = self.client.statements.named.remove_entry(name);
        let rollback =
            removed.map(|(name, statement)| Box::new(RollbackAction::RestoreName(name, statement)));
        self.server.outstanding.push(RequestKind::LocalClose(rollback));
        RewriteResult::Consumed
    }

    /// Rewrites the statement name in a message, and returns the statement that it refers to.
    /// `before` is the part of the body that precedes the name; `rest_at` is the offset of the
    /// field after the name.
    #[inline]
    fn rewrite_reference(
        &mut self,
        header: Header,
        name: &[u8],
        rest_at: usize,
        before: &[&[u8]],
    ) -> (RewriteResult, StatementRef) {
        if name.is_empty() {
            if !self.server.is_copying_in && self.server.outstanding.is_unnamed_ambiguous() {
                return (RewriteResult::Stop(StopReason::AwaitsReplies), StatementRef::NONE);
            }
            if let Err(stop) = self.ensure_unnamed() {
                return (RewriteResult::Stop(stop), StatementRef::NONE);
            }
            let is_simple = self.client.statements.unnamed_is_simple;
            return (RewriteResult::AsIs, StatementRef { id: 0, is_simple });
        }
        let statement = self.client.statements.named.get(name).cloned();
        if self.is_ambiguous(name, statement.as_ref().map_or(0, |statement| statement.id)) {
            return (RewriteResult::Stop(StopReason::AwaitsReplies), StatementRef::NONE);
        }
        if let Some(statement) = statement {
            let statement = match self.usable_statement(name, statement) {
                Ok(statement) => statement,
                Err(stop) => return (RewriteResult::Stop(stop), StatementRef::NONE),
            };
            self.server.retry_buffer.mark_shared_statement();
            self.ensure_prepared(&statement);
            self.record_effects_unless_simple(
                sql_text(&statement.text),
                statement.session_state,
                statement.is_simple,
            );
            self.replace_name(header, rest_at, before, &[&statement.name, b"\0"]);
            let PooledStatement { id, is_simple, .. } = *statement;
            return (RewriteResult::FrontReplaced(rest_at), StatementRef { id, is_simple });
        }
        if name.starts_with(NAME_PREFIX) {
            // The name may be that of another client's shared statement on this server: change it
            // so that the server reports a missing statement.
            self.replace_name(header, rest_at, before, &[name, b"?\0"]);
            return (RewriteResult::FrontReplaced(rest_at), StatementRef::NONE);
        }
        (RewriteResult::AsIs, StatementRef::NONE)
    }

    /// Like [`Rewriter::record_effects`], if it is known whether the text is simple.
    #[inline]
    fn record_effects_unless_simple(
        &mut self,
        sql: &[u8],
        flags: SessionStateFlags,
        is_simple: bool,
    ) {
        if is_simple { self.server.session_state |= flags } else { self.record_effects(sql, flags) }
    }

    /// Records the possible effects of a statement's text on the session.
    fn record_effects(&mut self, sql: &[u8], flags: SessionStateFlags) {
        let server = &mut *self.server;
        server.session_state |= flags;
        server.may_deallocate |= deallocate::is_deallocation(sql);
        server.record_reset_parameters(sql, &self.client.startup_parameters);
        let settings = &server.parameters;
        let reported = |name: &[u8]| is_settable(name) && settings.value(name).is_some();
        server.set_kind = server.set_kind.max(SetKind::from_text(sql, reported));
    }

    /// Sends a Parse for a statement, unless the server already has it.
    fn ensure_prepared(&mut self, statement: &PooledStatement) {
        if self.server.statements.touch(statement.id) {
            return;
        }
        self.evict_statement();
        self.stats.server_parses += 1;
        self.server.statements.insert(statement.id);
        let rollback = Box::new(RollbackAction::RemoveStatement(statement.id));
        self.server.outstanding.push_for(ReplyTarget::Pooler, RequestKind::Parse(Some(rollback)));
        self.to_server.push_with(|buf| parse(buf, statement));
    }

    /// Determines the parse settings that will be in force when the server parses `sql`, if the
    /// meaning of `sql` depends on them. They may stay unknown if the server would reject the
    /// message anyway.
    #[inline]
    fn resolve_settings_for(&mut self, sql: &[u8]) -> Result<(), StopReason> {
        if self.server.parameters.parse_state.key != 0 || !depends_on_parse_settings(sql) {
            return Ok(());
        }
        self.resolve_parse_settings()
    }

    /// Determines the parse settings that will be in force when the server processes a message sent
    /// now: waits for outstanding replies if necessary, and queries the settings if the server's
    /// reports are not sufficient.
    #[cold]
    fn resolve_parse_settings(&mut self) -> Result<(), StopReason> {
        if self.server_refuses_all() {
            return Ok(());
        }
        let server = &mut *self.server;
        if server.status == TransactionStatus::Failed {
            // An outstanding request may end the transaction.
            return Err(StopReason::AwaitsReplies);
        }
        let uncertainty = server.parameters.parse_state.uncertainty;
        if uncertainty != Uncertainty::None {
            if !server.outstanding.is_empty() || server.input.is_inside_forwarded_body() {
                return Err(StopReason::AwaitsReplies);
            }
            if uncertainty == Uncertainty::Unreported || server.has_open_batch {
                // In a transaction, the query is part of the batch that starts, and an error of the
                // query fails that batch.
                server.has_open_batch |= server.status == TransactionStatus::InTransaction;
                setup::query_parse_settings(server, self.to_server);
                self.client.input_hold = InputHold::AwaitingReplies;
                return Err(StopReason::NeedsMoreInput);
            }
            server.parameters.parse_state.uncertainty = Uncertainty::None;
        }
        let settings = self.statements.parse_settings(&server.parameters.parse_values());
        server.parameters.parse_state.set_current(settings);
        Ok(())
    }

    /// Whether the server rejects every statement now, except those that end a failed transaction.
    fn server_refuses_all(&self) -> bool {
        let has_failed = self.server.status == TransactionStatus::Failed;
        self.server.is_copying_in || has_failed && !self.server.outstanding.awaits_status()
    }

    /// Returns the statement to use for a client's name on this server. This is the client's
    /// current one if its meaning depends on no settings, if its settings are in force, or if the
    /// server rejects every statement now. A statement whose settings are unknown gets those in
    /// force. Otherwise it is a statement for this client alone, and a Parse for it has been sent
    /// under its settings.
    #[inline]
    fn usable_statement(
        &mut self,
        name: &[u8],
        statement: Arc<PooledStatement>,
    ) -> Result<Arc<PooledStatement>, StopReason> {
        if statement.settings_key == 0 {
            return Ok(statement);
        }
        self.server.parameters.parse_state.mark_relied_on();
        if statement.settings_key == self.server.parameters.parse_state.key {
            return Ok(statement);
        }
        self.usable_under_settings(name, statement)
    }

    #[cold]
    fn usable_under_settings(
        &mut self,
        name: &[u8],
        statement: Arc<PooledStatement>,
    ) -> Result<Arc<PooledStatement>, StopReason> {
        if self.server_refuses_all() {
            return Ok(statement);
        }
        let is_known = statement.settings_key != UNKNOWN_SETTINGS;
        if is_known && !statement.is_shared && self.server.statements.contains(statement.id) {
            return Ok(statement);
        }
        self.resolve_parse_settings()?;
        let Some(current) = self.server.parameters.parse_state.current().cloned() else {
            return Ok(statement);
        };
        let own = match () {
            () if statement.settings_key == current.id => return Ok(statement),
            () if !is_known => self.statements.intern(&statement.text, Some(&current)),
            () if statement.is_shared => self.statements.intern_private(&statement),
            () => statement,
        };
        if self.server.outstanding.awaits_status() {
            // In a failed transaction the server reports a different error: wait for its status.
            return Err(StopReason::AwaitsReplies);
        }
        self.client.statements.named.insert(name.into(), Arc::clone(&own));
        if let Some(settings) = own.settings.as_ref().filter(|its| its.id != current.id)
            && !self.server.statements.contains(own.id)
        {
            let (settings, own) = (Arc::clone(settings), Arc::clone(&own));
            self.with_parse_settings(&settings, &current, |rewriter| {
                rewriter.ensure_prepared(&own);
            });
        }
        Ok(own)
    }

    /// Changes the server's parse settings from `current` to `settings`, calls `sends`, and changes
    /// the settings back.
    fn with_parse_settings(
        &mut self,
        settings: &ParseSettings,
        current: &ParseSettings,
        sends: impl FnOnce(&mut Self),
    ) {
        let (there, back) = settings.difference(current);
        setup::set_parse_settings(self.server, &there, self.to_server);
        sends(self);
        setup::set_parse_settings(self.server, &back, self.to_server);
    }

    /// Makes sure that the server's unnamed statement is this client's or, if the client has none,
    /// that the server has none either.
    fn ensure_unnamed(&mut self) -> Result<(), StopReason> {
        if self.server.statements.unnamed_is_ours {
            return Ok(());
        }
        let ClientStatements { unnamed, unnamed_settings, .. } = &self.client.statements;
        let text = unnamed;
        if text.is_empty() {
            self.server.statements.unnamed_is_ours = true;
            self.server.outstanding.push_for(ReplyTarget::Pooler, RequestKind::Close(None));
            self.to_server.push_with(|buf| buf.extend_from_slice(b"C\0\0\0\x06S\0"));
            return Ok(());
        }
        let settings = unnamed_settings.clone().filter(|settings| {
            settings.id != self.server.parameters.parse_state.key
                && depends_on_parse_settings(sql_text(text))
        });
        if settings.is_some() {
            self.resolve_parse_settings()?;
        }
        let current = self.server.parameters.parse_state.current().cloned();
        match settings.zip(current).filter(|(settings, current)| settings.id != current.id) {
            Some((settings, current)) => {
                self.with_parse_settings(&settings, &current, Self::reparse_unnamed);
            }
            None => self.reparse_unnamed(),
        }
        Ok(())
    }

    fn reparse_unnamed(&mut self) {
        self.server.statements.unnamed_is_ours = true;
        self.server.parameters.parse_state.mark_relied_on();
        self.server.outstanding.push_for(ReplyTarget::Pooler, RequestKind::Parse(None));
        let text = std::mem::take(&mut self.client.statements.unnamed);
        self.to_server.push_with(|buf| {
            write_header(buf, Frontend::Parse, text.len() + 1);
            buf.push(0);
            buf.extend_from_slice(&text);
        });
        self.record_effects(sql_text(&text), SessionStateFlags::from_text(sql_text(&text)));
        self.client.statements.unnamed = text;
    }

    /// Closes the server's least recently used statement if the server has the maximum number. A
    /// statement that the current batch has used, or whose Parse or Close may still fail, is not
    /// closed; the server then has more than the maximum.
    fn evict_statement(&mut self) {
        let server = &mut *self.server;
        let Some(id) = server.statements.eviction_candidate(self.statements_max) else { return };
        if server.outstanding.is_ambiguous(b"", id) {
            return;
        }
        server.statements.remove(id);
        let rollback = Some(Box::new(RollbackAction::RestoreStatement(id)));
        server.outstanding.push_for(ReplyTarget::Pooler, RequestKind::Close(rollback));
        let id = id.to_string();
        self.to_server.push_with(|buf| {
            write_header(buf, Frontend::Close, 1 + NAME_PREFIX.len() + id.len() + 1);
            buf.push(b'S');
            buf.extend_from_slice(NAME_PREFIX);
            buf.extend_from_slice(id.as_bytes());
            buf.push(0);
        });
    }

    fn replace_front(&mut self, header: Header, replaced: usize, by: &[&[u8]]) {
        self.replace_name(header, replaced, &[], by);
    }

    /// Sends a new header, then `before` and `by`, in place of the old header and the first
    /// `replaced` bytes of the body.
    fn replace_name(&mut self, header: Header, replaced: usize, before: &[&[u8]], by: &[&[u8]]) {
        let parts = before.iter().chain(by);
        let added: usize = parts.clone().map(|part| part.len()).sum();
        let bytes = header.body_bytes as usize - replaced + added;
        self.to_server.push_with(|buf| {
            buf.push(header.tag.0);
            buf.extend_from_slice(&length_field(bytes));
            parts.for_each(|part| buf.extend_from_slice(part));
        });
    }
}

/// Whether `text` contains `part`, ignoring ASCII case.
fn contains_ignoring_case(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|found| found.eq_ignore_ascii_case(part))
}

/// Appends a Parse message for a statement, under its shared name.
pub(crate) fn parse(buf: &mut Vec<u8>, statement: &PooledStatement) {
    write_header(buf, Frontend::Parse, statement.name.len() + 1 + statement.text.len());
    buf.extend_from_slice(&statement.name);
    buf.push(0);
    buf.extend_from_slice(&statement.text);
}

pub(crate) fn write_header(buf: &mut Vec<u8>, kind: Frontend, body_bytes: usize) {
    buf.push(kind.tag().0);
    buf.extend_from_slice(&length_field(body_bytes));
}

/// Returns the length field for a body: its length plus the field's own four bytes. It does not
/// overflow, because bodies are under 1 GiB and grow by a statement name at most.
fn length_field(body_bytes: usize) -> [u8; 4] {
    u32::try_from(body_bytes + 4).unwrap_or(u32::MAX).to_be_bytes()
}
