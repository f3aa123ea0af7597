//! A client and its server as one unit: makes sure that the server has the statement that a message
//! of the client refers to, parsed under the settings that the client expects.

use std::sync::Arc;

use howdah_wire::{Frontend, backend::TransactionStatus};

use crate::{
    messages::{
        gather_buffer::GatherBuffer,
        handling::{PartialMessage, StopReason},
        outstanding::{ReplyTarget, RequestKind, RollbackAction},
        write,
    },
    pinning::observer::StatementObserver,
    prepared::{
        deallocate,
        names::ClientStatements,
        parse_settings::{ParseSettings, Uncertainty, depends_on_parse_settings},
        statements::{NAME_PREFIX, PooledStatement, StatementRegistry, UNKNOWN_SETTINGS, sql_text},
    },
    servers::setup,
    session::{
        parameters::is_settable,
        state::{SessionStateFlags, SetKind},
    },
    state::{
        client::{ClientConnection, InputHold},
        pool_stats::PoolStats,
        server::ServerConnection,
    },
};

/// A client, the server that it is linked to, and the prepared statements of their worker.
pub(crate) struct LinkedPair<'a> {
    pub(crate) client: &'a mut ClientConnection,
    pub(crate) server: &'a mut ServerConnection,
    pub(crate) statements: &'a StatementRegistry,
    /// The most statements that a server may have; 0 if statement names are not rewritten.
    pub(crate) statements_max: usize,
    pub(crate) stats: &'a mut PoolStats,
    pub(crate) to_server: &'a mut GatherBuffer,
    /// Recognizes what statements leave in the session, in adaptive mode.
    pub(crate) observer: Option<StatementObserver<'a>>,
}

impl LinkedPair<'_> {
    /// Returns the text of a client's statement, or of the unnamed one if the name is empty.
    pub(crate) fn statement_text(&self, statement: &[u8]) -> Option<&[u8]> {
        let ClientStatements { named, unnamed, .. } = &self.client.statements;
        match statement {
            b"" => Some(&unnamed[..]),
            name => named.get(name).map(|statement| &*statement.text),
        }
    }

    /// Whether outstanding replies decide which statement `name` means, or if the server has the
    /// statement `id`, when it processes a message sent now. `id` is 0 for a name without a
    /// statement.
    pub(super) fn is_ambiguous(&mut self, name: &[u8], id: u64) -> bool {
        let server = &mut *self.server;
        if server.batch.may_deallocate && server.outstanding.is_empty() {
            server.batch.may_deallocate = false;
        }
        !server.batch.is_copying_in
            && (server.batch.may_deallocate || server.outstanding.is_ambiguous(name, id))
    }

    /// Sends a Parse for a statement, unless the server already has it.
    pub(super) fn ensure_prepared(&mut self, statement: &PooledStatement) {
        if self.server.statements.touch(statement.id) {
            return;
        }
        self.evict_statement();
        self.stats.server_parses += 1;
        self.server.statements.insert(statement.id);
        let rollback = Box::new(RollbackAction::RemoveStatement(statement.id));
        self.server.outstanding.push_for(ReplyTarget::Pooler, RequestKind::Parse(Some(rollback)));
        self.to_server.push_with(|buf| write::parse(buf, statement));
    }

    /// Closes the server's least recently used statement if the server has the maximum number. A
    /// statement that the current batch has used, or whose Parse or Close may still fail, is not
    /// closed; the server then has more than the maximum.
    pub(super) fn evict_statement(&mut self) {
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
            write::header(buf, Frontend::Close, 1 + NAME_PREFIX.len() + id.len() + 1);
            buf.push(b'S');
            buf.extend_from_slice(NAME_PREFIX);
            buf.extend_from_slice(id.as_bytes());
            buf.push(0);
        });
    }

    /// Makes sure that the server's unnamed statement is this client's or, if the client has none,
    /// that the server has none either.
    pub(super) fn ensure_unnamed(&mut self) -> Result<(), StopReason> {
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

    pub(super) fn reparse_unnamed(&mut self) {
        self.server.statements.unnamed_is_ours = true;
        self.server.parameters.parse_state.mark_relied_on();
        self.server.outstanding.push_for(ReplyTarget::Pooler, RequestKind::Parse(None));
        let text = std::mem::take(&mut self.client.statements.unnamed);
        self.to_server.push_with(|buf| {
            write::header(buf, Frontend::Parse, text.len() + 1);
            buf.push(0);
            buf.extend_from_slice(&text);
        });
        self.record_effects(sql_text(&text), SessionStateFlags::from_text(sql_text(&text)));
        self.client.statements.unnamed = text;
    }

    /// Returns the statement to use for a client's name on this server. This is the client's
    /// current one if its meaning depends on no settings, if its settings are in force, or if the
    /// server rejects every statement now. A statement whose settings are unknown gets those in
    /// force. Otherwise it is a statement for this client alone, and a Parse for it has been sent
    /// under its settings.
    #[inline]
    pub(super) fn usable_statement(
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
    pub(super) fn usable_under_settings(
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
            self.with_parse_settings(&settings, &current, |pair| {
                pair.ensure_prepared(&own);
            });
        }
        Ok(own)
    }

    /// Changes the server's parse settings from `current` to `settings`, calls `sends`, and changes
    /// the settings back.
    pub(super) fn with_parse_settings(
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

    /// Determines the parse settings that will be in force when the server parses `sql`, if the
    /// meaning of `sql` depends on them. They may stay unknown if the server would reject the
    /// message anyway.
    #[inline]
    pub(super) fn resolve_settings_for(&mut self, sql: &[u8]) -> Result<(), StopReason> {
        if self.server.parameters.parse_state.key != 0 || !depends_on_parse_settings(sql) {
            return Ok(());
        }
        self.resolve_parse_settings()
    }

    /// Determines the parse settings that will be in force when the server processes a message sent
    /// now: waits for outstanding replies if necessary, and queries the settings if the server's
    /// reports are not sufficient.
    #[cold]
    pub(super) fn resolve_parse_settings(&mut self) -> Result<(), StopReason> {
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
            if uncertainty == Uncertainty::Unreported || server.batch.is_open {
                // In a transaction, the query is part of the batch that starts, and an error of the
                // query fails that batch.
                server.batch.is_open |= server.status == TransactionStatus::InTransaction;
                setup::query_parse_settings(server, self.to_server);
                self.client.input_hold = InputHold::AwaitingReplies;
                return Err(StopReason::NeedsMoreInput);
            }
            server.parameters.trust_reports();
        }
        let settings = self.statements.parse_settings(&server.parameters.parse_values());
        server.parameters.parse_state.set_current(settings);
        Ok(())
    }

    /// Whether the server rejects every statement now, except those that end a failed transaction.
    pub(super) fn server_refuses_all(&self) -> bool {
        let has_failed = self.server.status == TransactionStatus::Failed;
        self.server.batch.is_copying_in || has_failed && !self.server.outstanding.awaits_status()
    }

    /// Records which session state a statement that is about to be sent may leave or remove.
    #[inline]
    pub(crate) fn observe(&mut self, sql: &[u8]) {
        if let Some(observer) = &mut self.observer {
            observer.observe(self.server, Some(sql));
        }
    }

    /// Like [`LinkedPair::observe`], for a request whose statement is unknown.
    pub(crate) fn observe_unknown(&mut self) {
        if let Some(observer) = &mut self.observer {
            observer.observe(self.server, None);
        }
    }

    /// Like [`LinkedPair::observe`], for a query string of which only the start may be known.
    pub(crate) fn observe_message(&mut self, message: PartialMessage<'_>) {
        match message.body.strip_suffix(b"\0").filter(|_| message.is_complete()) {
            Some(sql) => self.observe(sql),
            None => self.observe_unknown(),
        }
    }

    /// Like [`LinkedPair::observe`], for a message of the extended protocol if statement names are
    /// not rewritten: it is not known which statement a name means.
    pub(crate) fn observe_unrenamed(&mut self, kind: Frontend, message: PartialMessage<'_>) {
        let text = |(_, at): (&[u8], usize)| sql_text(message.body.get(at..).unwrap_or_default());
        match kind {
            Frontend::Parse if message.is_complete() => match message.string(0).map(text) {
                Some(sql) => self.observe(sql),
                None => self.observe_unknown(),
            },
            Frontend::Parse | Frontend::Bind => self.observe_unknown(),
            _ => {}
        }
    }

    /// Like [`LinkedPair::record_effects`], if it is known whether the text is simple.
    #[inline]
    pub(super) fn record_effects_unless_simple(
        &mut self,
        sql: &[u8],
        flags: SessionStateFlags,
        is_simple: bool,
    ) {
        if is_simple {
            self.server.session_state |= flags;
            self.observe(sql);
        } else {
            self.record_effects(sql, flags);
        }
    }

    /// Records the possible effects of a statement's text on the session.
    pub(super) fn record_effects(&mut self, sql: &[u8], flags: SessionStateFlags) {
        self.observe(sql);
        let server = &mut *self.server;
        server.session_state |= flags;
        server.batch.may_deallocate |= deallocate::is_deallocation(sql);
        server.record_reset_parameters(sql, &self.client.startup_parameters);
        let settings = &server.parameters;
        let reported = |name: &[u8]| is_settable(name) && settings.value(name).is_some();
        server.set_kind = server.set_kind.max(SetKind::from_text(sql, reported));
    }
}
