//! Prepared statements outside session mode: replaces clients' statement names by names that all
//! clients share on a server, and prepares a statement that the current server does not have yet.
//!
//! Only names and lengths are rewritten. The rest of a Parse or Bind is sent from the receive
//! buffer without copying, and the values of a Bind need not have arrived yet.

use std::sync::Arc;

use howdah_wire::{Frontend, Header, backend::TransactionStatus};

use crate::{
    messages::{
        handling::{HELD_BYTES_MAX, PartialMessage, RewriteResult, StopReason},
        linked_pair::LinkedPair,
        outstanding::{PreviousUnnamed, RequestKind, RollbackAction},
        write,
    },
    prepared::{
        deallocate,
        names::ClientStatements,
        parse_settings::{NAMES, Uncertainty, depends_on_parse_settings},
        statements::{NAME_PREFIX, PooledStatement, is_simple, sql_text},
    },
    servers::setup,
    session::{
        restore::{ResettingPortal, parameters_reset_by_statement},
        state::SessionStateFlags,
    },
};

/// The state needed to rewrite a client's messages to its server.
pub(crate) struct Rewriter<'a> {
    pub(crate) pair: LinkedPair<'a>,
    /// Whether LISTEN is multiplexed; see [`crate::listen::channels`].
    pub(crate) multiplexes_listen: bool,
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
        let server = &mut *self.pair.server;
        server.statements.start_batch();
        let is_first = server.outstanding.is_empty() && self.pair.to_server.is_empty();
        server.batch.retry_buffer.start_batch(is_first && server.status == TransactionStatus::Idle);
    }

    /// Ends the open batch at its Sync, and buffers the batch in case it must be sent again.
    #[inline]
    pub(crate) fn finish_batch(&mut self, input: &[u8]) {
        self.pair.server.batch.retry_buffer.finish_batch(self.pair.to_server, input);
        self.pair.server.restore.is_in_flight = !self.pair.server.restore.parameters.is_empty()
            || self.pair.server.pending_actions.is_some();
        self.pair.server.finish_batch();
        self.pair.server.batch.is_skipping = false;
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
        match self.pair.client.statements.named.get(name).cloned() {
            Some(existing) => match self.pair.usable_statement(name, existing) {
                Ok(existing) => self.parse_again(message, text_at, &existing),
                Err(stop) => RewriteResult::Stop(stop),
            },
            None => {
                let text = &message.body[text_at..];
                if let Err(stop) = self.pair.resolve_settings_for(sql_text(text)) {
                    return RewriteResult::Stop(stop);
                }
                let settings = self.pair.server.parameters.parse_state.current();
                let statement = self.pair.statements.intern(text, settings);
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
            Some(name) if self.pair.is_ambiguous(&name, 0) => {
                return RewriteResult::Stop(StopReason::AwaitsReplies);
            }
            Some(name) => match self.pair.client.statements.named.get(name.as_slice()).cloned() {
                Some(statement) => match self.pair.usable_statement(&name, statement) {
                    Ok(statement) => Some((name, statement)),
                    Err(stop) => return RewriteResult::Stop(stop),
                },
                None => None,
            },
            None => None,
        };
        let mut is_sensitive = None;
        if message.is_complete() && self.pair.server.parameters.parse_state.key == 0 {
            let text = &message.body[text_at..];
            let sensitive = self.is_sensitive_unnamed(text);
            if sensitive && let Err(stop) = self.pair.resolve_parse_settings() {
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
            let settings = self.pair.server.parameters.parse_state.current();
            self.pair.client.statements.set_unnamed(text, is_simple, settings);
            self.pair.client.statements.unnamed_is_sensitive = is_sensitive;
            self.pair.server.parameters.parse_state.mark_relied_on();
            self.pair.record_effects_unless_simple(sql, flags, is_simple);
        } else {
            self.pair.client.statements.clear_unnamed();
            self.pair.server.session_state = SessionStateFlags::UNKNOWN;
            self.pair.observe_unknown();
        }
        self.pair.server.statements.unnamed_is_ours = true;
        let Some((name, statement)) = deallocated else {
            self.pair.server.outstanding.push(RequestKind::Parse(rollback));
            return RewriteResult::AsIs;
        };
        // The text is a DEALLOCATE of a statement that has a different name on the server.
        self.pair.ensure_prepared(&statement);
        self.pair.server.outstanding.push(RequestKind::Parse(rollback));
        self.pair.server.batch.deallocated_name = Some(name.into());
        let sql_end = text_at + sql_text(&message.body[text_at..]).len();
        self.replace_front(message.header, sql_end, &[b"\0DEALLOCATE ", &statement.name]);
        RewriteResult::FrontReplaced(sql_end)
    }

    /// Whether the meaning of an unnamed statement depends on parse settings. Reuses the result for
    /// the previous text, because many clients prepare the same text again and again.
    fn is_sensitive_unnamed(&self, text: &[u8]) -> bool {
        let ClientStatements { unnamed, unnamed_is_sensitive, .. } = &self.pair.client.statements;
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
        if self.pair.client.statements.named.is_empty() || !message.is_complete() {
            return None;
        }
        deallocate::name(sql_text(&message.body[text_at..]))
    }

    /// Takes the client's unnamed statement, to be restored if the request that replaces it is
    /// skipped. Returns `None` for the first request of a batch, which cannot be skipped.
    fn take_unnamed_undo(&mut self) -> Option<Box<RollbackAction>> {
        self.pair.server.batch.is_open.then(|| {
            let text = std::mem::take(&mut self.pair.client.statements.unnamed);
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
        let server = &*self.pair.server;
        let may_fail = !server.batch.is_copying_in
            && !server.statements.contains(existing.id)
            && server.outstanding.awaits_status();
        if may_fail || self.pair.is_ambiguous(name, existing.id) {
            return RewriteResult::Stop(StopReason::AwaitsReplies);
        }
        // In a failed transaction the server reports a different error, whether or not it has the
        // statement.
        if self.pair.server.status != TransactionStatus::Failed {
            self.pair.ensure_prepared(existing);
        }
        self.pair.server.outstanding.push(RequestKind::DuplicateParse(name.into()));
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
        if self.pair.is_ambiguous(name, statement.id) {
            return RewriteResult::Stop(StopReason::AwaitsReplies);
        }
        let id = statement.id;
        self.pair.stats.client_parses += 1;
        self.pair.client.statements.named.insert(name.into(), Arc::clone(statement));
        if !self.pair.server.statements.touch(id) {
            self.pair.evict_statement();
            self.pair.stats.server_parses += 1;
            self.pair.server.statements.insert(id);
            self.pair.server.parameters.parse_state.mark_relied_on();
            let rollback = RollbackAction::RemoveNameAndStatement(name.into(), id);
            self.pair.server.outstanding.push(RequestKind::Parse(Some(Box::new(rollback))));
            self.replace_front(message.header, text_at, &[&statement.name, b"\0"]);
            return RewriteResult::FrontReplaced(text_at);
        }
        let rollback = Box::new(RollbackAction::RemoveName(name.into()));
        if self.pair.server.status != TransactionStatus::Failed
            && !self.pair.server.outstanding.awaits_status()
        {
            self.pair.server.outstanding.push(RequestKind::LocalParse(rollback));
            self.pair.server.batch.retry_buffer.mark_parse();
            return RewriteResult::Consumed;
        }
        // The transaction may have failed, so only the server knows whether it accepts a Parse now.
        // Send the Parse without a name, because the server already has the named statement.
        self.pair.server.outstanding.push(RequestKind::Parse(Some(rollback)));
        self.pair.server.statements.unnamed_is_ours = false;
        self.replace_front(message.header, text_at, &[b"\0"]);
        RewriteResult::FrontReplaced(text_at)
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
            self.pair.server.outstanding.push(RequestKind::Bind(statement.id));
            self.pair.stats.binds += u64::from(statement.id != 0);
            if self.multiplexes_listen
                && (!statement.is_simple || self.pair.server.pending_actions.is_some())
            {
                self.track_listen_portal(portal, name);
            }
            if !statement.is_simple || self.pair.server.parameters.parse_state.may_change() {
                self.record_setting_change(message, portal, name);
            }
            let may_reset =
                !statement.is_simple || self.pair.server.restore.resetting_portal.is_some();
            if may_reset && !self.pair.client.startup_parameters.list().is_empty() {
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
        let sql = self.pair.statement_text(statement).map(sql_text);
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
            self.pair.server.parse_settings_uncertainty(sql, by_parameter)
        });
        self.pair.server.parameters.parse_state.record_bind(portal.is_empty(), uncertainty);
    }

    /// Records a portal that will reset parameters when it is executed, or forgets it if the name
    /// is bound again.
    fn track_resetting_portal(&mut self, portal: &[u8], statement: &[u8]) {
        let text = self.pair.statement_text(statement);
        let back = text.and_then(|text| {
            parameters_reset_by_statement(
                sql_text(text),
                self.pair.client.startup_parameters.list(),
            )
        });
        let resetting = &mut self.pair.server.restore.resetting_portal;
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
        self.pair.server.outstanding.push(RequestKind::Execute);
        self.pair.server.parameters.parse_state.record_execute(message.body.first() == Some(&0));
        let runs = |resetting: &mut Box<ResettingPortal>| {
            message.is_complete() && message.string(0).is_some_and(|it| *it.0 == *resetting.portal)
        };
        let Some(resetting) = self.pair.server.restore.resetting_portal.take_if(runs) else {
            return RewriteResult::AsIs;
        };
        self.pair.to_server.push_with(|buf| {
            write::header(buf, Frontend::Execute, message.body.len());
            buf.extend_from_slice(message.body);
        });
        setup::restore_in_batch(self.pair.server, &resetting, self.pair.to_server);
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
            self.pair.server.outstanding.push(RequestKind::Describe(id));
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
                self.pair.client.statements.clear_unnamed();
                self.pair.server.statements.unnamed_is_ours = true;
            }
            self.pair.server.outstanding.push(RequestKind::Close(rollback));
            return RewriteResult::AsIs;
        }
        if self.pair.is_ambiguous(name, 0) {
            return RewriteResult::Stop(StopReason::AwaitsReplies);
        }
        let removed = self.pair.client.statements.named.remove_entry(name);
        let rollback =
            removed.map(|(name, statement)| Box::new(RollbackAction::RestoreName(name, statement)));
        self.pair.server.outstanding.push(RequestKind::LocalClose(rollback));
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
            if !self.pair.server.batch.is_copying_in
                && self.pair.server.outstanding.is_unnamed_ambiguous()
            {
                return (RewriteResult::Stop(StopReason::AwaitsReplies), StatementRef::NONE);
            }
            if let Err(stop) = self.pair.ensure_unnamed() {
                return (RewriteResult::Stop(stop), StatementRef::NONE);
            }
            let is_simple = self.pair.client.statements.unnamed_is_simple;
            return (RewriteResult::AsIs, StatementRef { id: 0, is_simple });
        }
        let statement = self.pair.client.statements.named.get(name).cloned();
        if self.pair.is_ambiguous(name, statement.as_ref().map_or(0, |statement| statement.id)) {
            return (RewriteResult::Stop(StopReason::AwaitsReplies), StatementRef::NONE);
        }
        if let Some(statement) = statement {
            let statement = match self.pair.usable_statement(name, statement) {
                Ok(statement) => statement,
                Err(stop) => return (RewriteResult::Stop(stop), StatementRef::NONE),
            };
            self.pair.server.batch.retry_buffer.mark_shared_statement();
            self.pair.ensure_prepared(&statement);
            self.pair.record_effects_unless_simple(
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
        // The statement may have been prepared by the command PREPARE.
        self.pair.observe_unknown();
        (RewriteResult::AsIs, StatementRef::NONE)
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
        self.pair.to_server.push_with(|buf| {
            buf.push(header.tag.0);
            buf.extend_from_slice(&write::length_field(bytes));
            parts.for_each(|part| buf.extend_from_slice(part));
        });
    }
}

/// Whether `text` contains `part`, ignoring ASCII case.
fn contains_ignoring_case(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|found| found.eq_ignore_ascii_case(part))
}
