//! What a client listens to where its servers are others' too: its statements, and what a server says of
//! them at the transaction's end. See [`crate::listen`] for how.

use howdah_wire::{
    Backend, Frame, Frontend,
    backend::{Message as Said, Severity, encode},
    frontend,
};

use super::{
    reply::{Listener, Reply},
    request::Upstream,
    rewrite::{self, Message, Rewriter, Rewritten},
    settle,
    upstream::Stop,
};
use crate::{
    client::Syncing,
    dirt::SessionStateFlags,
    gather::Gather,
    listen::{self, ASK, Gap, ListenAction},
    owed::{ReplyTarget, Request},
    put_back::{SplicedQuery, plain_statements, weave},
    server::Server,
    statements::sql_of,
};

/// What has to be before a statement about channels can run.
pub(super) enum Before {
    /// Nothing of the client's goes on now.
    Wait(Rewritten),
    /// It cannot be: it is to fail, and this error is to be told.
    Refuse(Vec<u8>),
}

impl Upstream<'_> {
    /// Whether a query string has to be there to its end: it begins with a statement about channels.
    pub(super) fn waits_for_channels(&self, message: Message<'_>) -> bool {
        self.listens
            && !message.is_whole()
            && message.header.body_bytes as usize <= rewrite::HELD_BYTES_MAX
            && listen::begins(message.body)
    }

    /// What a query string does to what its client listens to.
    #[inline]
    pub(super) fn channel_ops(&self, message: Message<'_>) -> Vec<ListenAction> {
        let Rewriter { client, server, .. } = &self.rewriter;
        let is_failed = server.status == howdah_wire::backend::TransactionStatus::Failed;
        if !self.listens || !message.is_whole() || server.copying_in || is_failed {
            return Vec::new();
        }
        let Some(sql) = message.body.strip_suffix(b"\0") else { return Vec::new() };
        let ops = ops_of(sql);
        let has_any =
            server.listening.is_some() || client.listens.as_ref().is_some_and(|it| !it.is_idle());
        match ops.iter().all(|op| !matches!(op, ListenAction::Listen(_))) && !has_any {
            true => Vec::new(), // Drivers say UNLISTEN * to whoever gets a connection next.
            false => ops,
        }
    }

    /// Sees to it that the dedicated connection listens to what a client is about to listen to.
    pub(super) fn before_listening(&mut self, ops: &[ListenAction]) -> Option<Before> {
        if let Some(stalled) = self.stall() {
            return Some(Before::Wait(stalled));
        }
        let client = &mut *self.rewriter.client;
        let listens = client.listens.get_or_insert_default();
        if listens.refusal.is_none() && listens.ask(ops.iter()) {
            client.syncing = Syncing::Hearing;
            return Some(Before::Wait(Rewritten::Stop(Stop::Starved)));
        }
        listens.refusal.take().map(|why| {
            let (text, mut error) = (format!("cannot listen: {why}"), Vec::new());
            let fields = encode::essentials(Severity::Error, CANNOT_LISTEN, text.as_bytes());
            if encode::error_response(&mut error, fields).is_err() {
                tracing::debug!("a reason with a zero byte in it");
            }
            Before::Refuse(error)
        })
    }

    /// Has a query string fail at the server, so that its transaction fails as it would have.
    pub(super) fn refuse_query(&mut self, error: Vec<u8>) -> Rewritten {
        let Rewriter { client, server, to_server, .. } = &mut self.rewriter;
        client.statements.drop_unnamed();
        server.statements.unnamed_is_ours = true;
        server.batch_open = false; // ReadyForQuery ends it as Sync would.
        server.listening.get_or_insert_default().refusal = Some(error);
        server.holds_back = true;
        server.owed.push(Request::Query(crate::dirt::SetKind::NotSet));
        to_server.make(|buf| frontend::encode::query(buf, NO_STATEMENT).expect(NO_ZERO_BYTE));
        Rewritten::Whole
    }

    /// A query string with what tells behind each statement about channels whether it counts.
    pub(super) fn woven_ops(&mut self, message: Message<'_>) -> Option<SplicedQuery> {
        let Rewriter { client, server, .. } = &mut self.rewriter;
        let sql = message.body.strip_suffix(b"\0")?;
        let listening = server.listening.get_or_insert_default();
        server.dirt |= SessionStateFlags::LISTEN;
        let mut stand_in = |op| format!("LISTEN \"{}\"", listen::token(listening.add(op)));
        if let Some(found) = listen::statement(sql) {
            return Some(SplicedQuery::behind(&sql[..found.end], &stand_in(found.op)));
        }
        let in_block = server.status != howdah_wire::backend::TransactionStatus::Idle;
        weave(sql, client.startup.list(), in_block, |statement| {
            listen::statement(statement).map(|found| stand_in(found.op))
        })
    }

    /// An Execute of a portal whose statement is about channels.
    pub(super) fn listening_execute(&mut self, message: Message<'_>) -> Option<Rewritten> {
        let (portal, op) = self.rewriter.server.listening.as_ref()?.portal.clone()?;
        let is_it = message.is_whole() && message.string(0).is_some_and(|it| *it.0 == *portal);
        if !is_it || self.rewriter.server.copying_in {
            return None;
        }
        let refusal = match self.before_listening(std::slice::from_ref(&op)) {
            Some(Before::Wait(rewritten)) => return Some(rewritten),
            Some(Before::Refuse(error)) => Some(error),
            None => None,
        };
        let Rewriter { server, to_server, .. } = &mut self.rewriter;
        server.dirt |= SessionStateFlags::LISTEN;
        server.owed.push(Request::Execute);
        let listening = server.listening.get_or_insert_default();
        listening.portal = None;
        if let Some(error) = refusal {
            listening.refusal = Some(error);
            to_server.make(|buf| {
                frontend::encode::execute(buf, NO_STATEMENT, 0).expect(NO_ZERO_BYTE);
            });
            return Some(Rewritten::Whole);
        }
        let number = listening.add(op);
        to_server.make(|buf| {
            rewrite::write_header(buf, Frontend::Execute, message.body.len());
            buf.extend_from_slice(message.body);
        });
        settle::listen_in_batch(server, number, to_server);
        Some(Rewritten::Whole)
    }

    /// The client goes on with its transaction: what was notified up to now was not for it.
    pub(super) fn forget_early(&mut self) {
        let Rewriter { client, server, .. } = &mut self.rewriter;
        if server.listening.is_some()
            && let Some(listens) = &mut client.listens
        {
            listens.forget_early();
        }
    }
}

impl Rewriter<'_> {
    /// Notes a portal whose statement is about channels.
    pub(super) fn note_listening(&mut self, portal: &[u8], statement: &[u8]) {
        let found = self.text_of(statement).and_then(|text| listen::statement(sql_of(text)));
        let listens = self.client.listens.as_ref().is_some_and(|it| !it.is_idle());
        match found {
            Some(found)
                if listens
                    || self.server.listening.is_some()
                    || matches!(found.op, ListenAction::Listen(_)) =>
            {
                let listening = self.server.listening.get_or_insert_default();
                listening.portal = Some((portal.into(), found.op));
            }
            _ => {
                if let Some(listening) = &mut self.server.listening
                    && listening.portal.as_ref().is_some_and(|it| *it.0 == *portal)
                {
                    listening.portal = None;
                }
            }
        }
    }
}

impl Listener<'_> {
    /// A client's LISTEN or UNLISTEN has run.
    pub(super) fn channels_changed(&mut self, tag: &[u8]) {
        self.server.dirt |= SessionStateFlags::of_tag(tag);
        let Some(client) = self.client.as_deref_mut().filter(|_| self.listens) else { return };
        let listens = client.listens.as_ref().is_some_and(|it| !it.is_idle());
        if tag == b"UNLISTEN" && !listens && self.server.listening.is_none() {
            return;
        }
        let listening = self.server.listening.get_or_insert_default();
        listening.tags += 1;
        if listening.tags > listening.len() && (tag == b"LISTEN" || listens) {
            client.listens.get_or_insert_default().say(&Gap::NoEffect);
        }
    }

    /// A transaction has ended that had to do with channels: the server is asked what it listens to, and
    /// the client gets its ReadyForQuery after that.
    pub(super) fn ask_what_is_heard(&mut self) -> Reply {
        let server = &mut *self.server;
        let is_over = server.status == howdah_wire::backend::TransactionStatus::Idle;
        if !is_over || server.listening.is_none() || !server.owed.is_empty() || server.batch_open {
            return Reply::Forward;
        }
        if server.listening.as_ref().is_some_and(|it| it.is_empty()) {
            server.listening = None;
            return Reply::Forward;
        }
        server.owed.push_for(ReplyTarget::Listens, Request::Query(crate::dirt::SetKind::NotSet));
        self.to_server.make(|buf| frontend::encode::query(buf, ASK).expect(NO_ZERO_BYTE));
        Reply::Swallow
    }

    /// A name in the answer.
    pub(super) fn hear_channel(&mut self, body: &[u8]) {
        let frame = Frame { tag: Backend::DataRow.tag(), body };
        if let Ok(Said::DataRow(mut cells)) = Said::parse(frame)
            && let (Some(Some(channel)), Some(listening)) =
                (cells.next(), &mut self.server.listening)
        {
            listening.hear(channel);
        }
    }

    /// The answer is whole: what counts of the transaction's statements is done.
    pub(super) fn know_what_is_heard(&mut self) -> Reply {
        let Server { listening, dirt, .. } = &mut *self.server;
        *dirt = dirt.without(SessionStateFlags::LISTEN);
        let outcome = listening.take().map(|it| it.outcome()).unwrap_or_default();
        let Some(client) = self.client.as_deref_mut() else { return Reply::Swallow };
        if let Some(listens) = &mut client.listens {
            listens.settle(outcome.iter());
        }
        Reply::Forward
    }

    /// What waited for the client to be in no transaction goes before its ReadyForQuery.
    pub(super) fn tell_news(&mut self, to: &mut Gather) {
        if let Some(client) = self.client.as_deref_mut()
            && let Some(listens) = &mut client.listens
            && listens.has_news()
        {
            to.make(|buf| listens.write_news(buf));
        }
    }
}

/// What the statements of a query string do, as far as their ends are beyond doubt.
fn ops_of(sql: &[u8]) -> Vec<ListenAction> {
    if listen::begins(sql)
        && let Some(found) = listen::statement(sql)
    {
        return vec![found.op];
    }
    let end = memchr::memchr(b';', sql).filter(|end| !sql[end + 1..].trim_ascii().is_empty());
    if end.is_none() || !mentions(sql) {
        return Vec::new();
    }
    plain_statements(sql).filter_map(listen::statement).map(|found| found.op).collect()
}

/// Whether a text has the word somewhere.
fn mentions(sql: &[u8]) -> bool {
    memchr::memchr2_iter(b's', b'S', sql).any(|at| {
        at.checked_sub(2).is_some_and(|start| {
            sql.get(start..start + 6).is_some_and(|word| word.eq_ignore_ascii_case(b"listen"))
        })
    })
}

/// SQLSTATE of a LISTEN that cannot be: the state of things is not what it needs. It is none of those by
/// which drivers give a connection up.
const CANNOT_LISTEN: &[u8] = b"55000";

/// No statement and no portal: a server refuses it.
const NO_STATEMENT: &[u8] = b"howdah_cannot_listen";
const NO_ZERO_BYTE: &str = "it holds no zero byte";
