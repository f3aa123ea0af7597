//! LISTEN over shared servers: handles a client's LISTEN and UNLISTEN statements, and determines at
//! the end of a transaction which of them were committed. See [`crate::listen::channels`] for
//! the method.

pub(crate) mod channels;
pub(crate) mod client;
pub(crate) mod notifications;
pub(crate) mod statement;

use howdah_wire::{
    Backend, Frame, Frontend,
    backend::{BackendMessage as Said, Severity, encode},
    frontend,
};

use crate::{
    listen::{
        channels as listen,
        channels::{LISTENING_CHANNELS_QUERY, ListenAction, MissedNotifications},
    },
    messages::{
        gather_buffer::GatherBuffer,
        handling::{HELD_BYTES_MAX, ListenPrecondition, PartialMessage, RewriteResult, StopReason},
        linked_pair::LinkedPair,
        outstanding::{ReplyTarget, RequestKind},
        reply::{ReplyAction, ReplyHandler},
        request::LinkedHandler,
        rewrite::Rewriter,
        write,
    },
    prepared::statements::sql_text,
    servers::setup,
    session::{
        restore::{SplicedQuery, splice, unambiguous_statements},
        state::SessionStateFlags,
    },
    state::{client::InputHold, server::ServerConnection},
};

impl LinkedHandler<'_> {
    /// Whether a query string must be complete before it is processed, because it starts with
    /// LISTEN or UNLISTEN.
    pub(super) fn needs_complete_listen(&self, message: PartialMessage<'_>) -> bool {
        self.multiplexes_listen
            && !message.is_complete()
            && message.header.body_bytes as usize <= HELD_BYTES_MAX
            && listen::starts_with_listen(message.body)
    }

    /// Returns the LISTEN and UNLISTEN statements in a query string; empty if the pooler need not,
    /// or cannot, track them.
    #[inline]
    pub(super) fn listen_actions(&self, message: PartialMessage<'_>) -> Vec<ListenAction> {
        let LinkedPair { client, server, .. } = &self.rewriter.pair;
        // A request on its way, such as ROLLBACK, may end the failed transaction.
        let is_failed = server.status == howdah_wire::backend::TransactionStatus::Failed
            && server.outstanding.is_empty();
        if !self.multiplexes_listen
            || !message.is_complete()
            || server.batch.is_copying_in
            || is_failed
        {
            return Vec::new();
        }
        let Some(sql) = message.body.strip_suffix(b"\0") else { return Vec::new() };
        let actions = listen_actions_in(sql);
        let has_any = server.pending_actions.is_some()
            || client.channels.as_ref().is_some_and(|it| !it.is_idle());
        if actions.iter().all(|action| !matches!(action, ListenAction::Listen(_))) && !has_any {
            Vec::new()
        } else {
            actions
        }
    }

    /// Makes sure that the dedicated connection listens to the channels of a client's LISTEN.
    /// Returns `None` if the statement can run now.
    pub(super) fn prepare_listen(
        &mut self,
        actions: &[ListenAction],
    ) -> Option<ListenPrecondition> {
        if let Some(stalled) = self.wait_for_replies() {
            return Some(ListenPrecondition::Wait(stalled));
        }
        let client = &mut *self.rewriter.pair.client;
        let channels = client.channels.get_or_insert_default();
        if channels.refusal.is_none() && channels.request(actions.iter()) {
            client.input_hold = InputHold::AwaitingListen;
            return Some(ListenPrecondition::Wait(RewriteResult::Stop(StopReason::NeedsMoreInput)));
        }
        channels.refusal.take().map(|reason| {
            let (text, mut error) = (format!("cannot listen: {reason}"), Vec::new());
            let fields = encode::essentials(Severity::Error, CANNOT_LISTEN, text.as_bytes());
            if encode::error_response(&mut error, fields).is_err() {
                tracing::debug!("LISTEN error not sent: its text contains a zero byte");
            }
            ListenPrecondition::Refuse(error)
        })
    }

    /// Handles an Execute of the portal that is bound to a LISTEN or UNLISTEN; `None` if the
    /// message must be handled like any other Execute.
    pub(super) fn execute_listen_portal(
        &mut self,
        message: PartialMessage<'_>,
    ) -> Option<RewriteResult> {
        let (portal, action) =
            self.rewriter.pair.server.pending_actions.as_ref()?.portal.clone()?;
        let is_tracked =
            message.is_complete() && message.string(0).is_some_and(|it| *it.0 == *portal);
        if !is_tracked || self.rewriter.pair.server.batch.is_copying_in {
            return None;
        }
        let refusal = match self.prepare_listen(std::slice::from_ref(&action)) {
            Some(ListenPrecondition::Wait(rewritten)) => return Some(rewritten),
            Some(ListenPrecondition::Refuse(error)) => Some(error),
            None => None,
        };
        let LinkedPair { server, to_server, .. } = &mut self.rewriter.pair;
        server.session_state |= SessionStateFlags::LISTEN;
        server.outstanding.push(RequestKind::Execute);
        let pending = server.pending_actions.get_or_insert_default();
        pending.portal = None;
        if let Some(error) = refusal {
            pending.refusal = Some(error);
            to_server.push_with(|buf| {
                frontend::encode::execute(buf, NO_STATEMENT, 0).expect(NO_ZERO_BYTE);
            });
            return Some(RewriteResult::Consumed);
        }
        let number = pending.push(action);
        to_server.push_with(|buf| {
            write::header(buf, Frontend::Execute, message.body.len());
            buf.extend_from_slice(message.body);
        });
        setup::mark_listen_in_batch(server, number, to_server);
        Some(RewriteResult::Consumed)
    }
}

impl Rewriter<'_> {
    /// Sends a statement that fails in place of a query string, so that the client's transaction on
    /// the server fails too. The client gets `error` instead of the server's error.
    pub(super) fn fail_listen_query(&mut self, error: Vec<u8>) -> RewriteResult {
        let LinkedPair { client, server, to_server, .. } = &mut self.pair;
        client.statements.clear_unnamed();
        server.statements.unnamed_is_ours = true;
        server.finish_batch(); // ReadyForQuery ends the batch as Sync would.
        server.pending_actions.get_or_insert_default().refusal = Some(error);
        server.restore.is_in_flight = true;
        server.outstanding.push(RequestKind::Query(crate::session::state::SetKind::NotSet));
        to_server.push_with(|buf| frontend::encode::query(buf, NO_STATEMENT).expect(NO_ZERO_BYTE));
        RewriteResult::Consumed
    }

    /// Returns a query string in which a LISTEN to a marker channel follows each LISTEN or UNLISTEN
    /// that the pooler has found; the marker shows whether the statement was committed. Parameters
    /// that the query string resets are restored too.
    pub(super) fn splice_listen_markers(
        &mut self,
        message: PartialMessage<'_>,
    ) -> Option<SplicedQuery> {
        let LinkedPair { client, server, .. } = &mut self.pair;
        let sql = message.body.strip_suffix(b"\0")?;
        let pending = server.pending_actions.get_or_insert_default();
        server.session_state |= SessionStateFlags::LISTEN;
        let mut marker =
            |action| format!("LISTEN \"{}\"", listen::marker_channel(pending.push(action)));
        if let Some(parsed) = listen::parse(sql) {
            return Some(SplicedQuery::with_appended(&sql[..parsed.end], &marker(parsed.action)));
        }
        let in_block = server.status != howdah_wire::backend::TransactionStatus::Idle;
        splice(sql, client.startup_parameters.list(), in_block, |statement| {
            listen::parse(statement).map(|parsed| marker(parsed.action))
        })
    }

    /// Discards queued notifications of channels whose LISTEN is not committed. Called when the
    /// client sends the Sync that ends the batch, so they arrived before the commit.
    pub(super) fn discard_early_notifications(&mut self) {
        let LinkedPair { client, server, .. } = &mut self.pair;
        if server.pending_actions.is_some()
            && let Some(channels) = &mut client.channels
        {
            channels.drop_uncommitted_notifications();
        }
    }

    /// Records a portal that is bound to a LISTEN or UNLISTEN, or forgets it if the name is bound
    /// again.
    pub(super) fn track_listen_portal(&mut self, portal: &[u8], statement: &[u8]) {
        let parsed =
            self.pair.statement_text(statement).and_then(|text| listen::parse(sql_text(text)));
        let is_listening = self.pair.client.channels.as_ref().is_some_and(|it| !it.is_idle());
        match parsed {
            Some(parsed)
                if is_listening
                    || self.pair.server.pending_actions.is_some()
                    || matches!(parsed.action, ListenAction::Listen(_)) =>
            {
                let pending = self.pair.server.pending_actions.get_or_insert_default();
                pending.portal = Some((portal.into(), parsed.action));
            }
            _ => {
                if let Some(pending) = &mut self.pair.server.pending_actions
                    && pending.portal.as_ref().is_some_and(|it| *it.0 == *portal)
                {
                    pending.portal = None;
                }
            }
        }
    }
}

impl ReplyHandler<'_> {
    /// Handles the command tag of a client's LISTEN or UNLISTEN. Warns the client if the pooler
    /// could not track the statement.
    pub(super) fn listen_completed(&mut self, tag: &[u8]) {
        self.server.session_state |= SessionStateFlags::from_tag(tag);
        let Some(client) = self.client.as_deref_mut().filter(|_| self.multiplexes_listen) else {
            return;
        };
        let is_listening = client.channels.as_ref().is_some_and(|it| !it.is_idle());
        if tag == b"UNLISTEN" && !is_listening && self.server.pending_actions.is_none() {
            return;
        }
        let pending = self.server.pending_actions.get_or_insert_default();
        pending.tags += 1;
        if pending.tags > pending.len() && (tag == b"LISTEN" || is_listening) {
            client.channels.get_or_insert_default().push_warning(&MissedNotifications::NotTracked);
        }
    }

    /// At the end of a transaction with LISTEN or UNLISTEN, queries which channels the server
    /// listens to; the client gets its ReadyForQuery after that.
    pub(super) fn query_listening_channels(&mut self) -> ReplyAction {
        let server = &mut *self.server;
        let is_over = server.status == howdah_wire::backend::TransactionStatus::Idle;
        if !is_over
            || server.pending_actions.is_none()
            || !server.outstanding.is_empty()
            || server.batch.is_open
        {
            return ReplyAction::Forward;
        }
        if server.pending_actions.as_ref().is_some_and(|it| it.is_empty()) {
            server.pending_actions = None;
            return ReplyAction::Forward;
        }
        server.outstanding.push_for(
            ReplyTarget::ListeningChannels,
            RequestKind::Query(crate::session::state::SetKind::NotSet),
        );
        self.to_server.push_with(|buf| {
            frontend::encode::query(buf, LISTENING_CHANNELS_QUERY).expect(NO_ZERO_BYTE);
        });
        ReplyAction::Swallow
    }

    /// Handles a DataRow of the reply to [`channels::LISTENING_CHANNELS_QUERY`]: one channel name.
    pub(super) fn read_listening_channel(&mut self, body: &[u8]) {
        let frame = Frame { tag: Backend::DataRow.tag(), body };
        if let Ok(Said::DataRow(mut cells)) = Said::parse(frame)
            && let (Some(Some(channel)), Some(pending)) =
                (cells.next(), &mut self.server.pending_actions)
        {
            pending.record_channel(channel);
        }
    }

    /// Handles the end of the reply to [`channels::LISTENING_CHANNELS_QUERY`]: applies the
    /// statements that were committed.
    pub(super) fn apply_listening_channels(&mut self) -> ReplyAction {
        let ServerConnection { pending_actions: pending, session_state: flags, .. } =
            &mut *self.server;
        *flags = flags.without(SessionStateFlags::LISTEN);
        let outcome = pending.take().map(|it| it.into_effective()).unwrap_or_default();
        let Some(client) = self.client.as_deref_mut() else { return ReplyAction::Swallow };
        if let Some(channels) = &mut client.channels {
            channels.commit(outcome.iter());
        }
        ReplyAction::Forward
    }

    /// Writes the client's pending notifications and warnings, just before its ReadyForQuery.
    pub(super) fn write_pending_notifications(&mut self, to: &mut GatherBuffer) {
        if let Some(client) = self.client.as_deref_mut()
            && let Some(channels) = &mut client.channels
            && channels.has_pending()
        {
            to.push_with(|buf| channels.write_pending(buf));
        }
    }
}

/// Returns the LISTEN and UNLISTEN statements of a query string, up to the point where statement
/// boundaries become ambiguous.
fn listen_actions_in(sql: &[u8]) -> Vec<ListenAction> {
    if listen::starts_with_listen(sql)
        && let Some(parsed) = listen::parse(sql)
    {
        return vec![parsed.action];
    }
    let end = memchr::memchr(b';', sql).filter(|end| !sql[end + 1..].trim_ascii().is_empty());
    if end.is_none() || !mentions_listen(sql) {
        return Vec::new();
    }
    unambiguous_statements(sql).filter_map(listen::parse).map(|parsed| parsed.action).collect()
}

/// Whether a text contains "listen", ignoring case, also as part of another word.
fn mentions_listen(sql: &[u8]) -> bool {
    memchr::memchr2_iter(b's', b'S', sql).any(|at| {
        at.checked_sub(2).is_some_and(|start| {
            sql.get(start..start + 6).is_some_and(|word| word.eq_ignore_ascii_case(b"listen"))
        })
    })
}

/// SQLSTATE `object_not_in_prerequisite_state`, for a LISTEN that is impossible. Drivers do not
/// treat it as a broken connection.
const CANNOT_LISTEN: &[u8] = b"55000";

/// A query string, and a portal name, that the server always rejects.
const NO_STATEMENT: &[u8] = b"howdah_cannot_listen";
const NO_ZERO_BYTE: &str = "the pooler's own text has no zero byte";
