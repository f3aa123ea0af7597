//! What a client's message means while it has a server: a request to count, a name to rewrite, or
//! something that the pooler answers.
//!
//! What a message means may depend on answers that have not come: whether a Parse in an earlier batch
//! failed, whether a batch is being skipped. Where a guess could be wrong, the client's bytes are held
//! until the answers are there ([`Upstream::stall`]); so errors come in the order, and with the codes,
//! that the server alone would give.

use std::ops::Range;

use howdah_wire::{
    Frontend,
    backend::{TransactionStatus, encode},
    frontend,
};

use super::{
    listen::Before,
    own::Own,
    rewrite::{Message, Rewriter, Rewritten},
    route::{RoutingContext, SPREAD, Way, refuse_batch, write_answer, write_refusal},
    upstream::{Judge, Stop, misplaced},
};
use crate::{
    client::{Client, Syncing},
    deallocate,
    dirt::{SessionStateFlags, SetKind},
    gather::Gather,
    inlet::FrameCursor,
    owed::{Request, RollbackAction, UnnamedBefore},
    parse_settings::Doubt,
    plain,
    put_back::{SplicedQuery, touches_settings, weave},
    refusal::Refusal,
    routing::Batch,
    settings::is_settable,
    statements::sql_of,
};

/// A client that has a server.
pub(super) struct Upstream<'a> {
    pub(super) rewriter: Rewriter<'a>,
    pub(super) to_client: &'a mut Gather,
    /// Whether others will use the server after this transaction.
    pub(super) shares: bool,
    /// Whether the pooler follows what it listens to.
    pub(super) listens: bool,
    /// Whether it may send Query.
    pub(super) simple_queries: bool,
    /// What the client sent.
    pub(super) input: &'a [u8],
    /// How its requests are routed, if they are.
    pub(super) roads: Option<RoutingContext<'a>>,
}

impl Judge for Upstream<'_> {
    #[inline]
    fn inlet(&mut self) -> &mut FrameCursor {
        &mut self.rewriter.client.inlet
    }

    #[inline]
    fn forward(&mut self, range: Range<usize>) {
        self.rewriter.to_server.input(range);
    }

    #[inline]
    fn judge(&mut self, kind: Frontend, message: Message<'_>) -> Rewritten {
        if self.rewriter.server.holds_back
            && let Some(stalled) = self.hold_back(kind)
        {
            return stalled;
        }
        if let Some(answered) = self.own(kind, message) {
            return answered;
        }
        let server = &mut *self.rewriter.server;
        match kind {
            Frontend::Query | Frontend::FunctionCall if server.skipping => {}
            Frontend::Query if !self.simple_queries => {
                return Rewritten::Stop(Stop::Fault(Refusal::SimpleQuery));
            }
            Frontend::Query => return self.query(message),
            Frontend::FunctionCall => return self.function_call(),
            Frontend::Sync if server.copying_in => {}
            Frontend::Sync => {
                self.rewriter.end_batch(self.input);
                self.forget_early();
                self.rewriter.server.owed.push(Request::Sync);
            }
            Frontend::Flush => self.answer_here(),
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
            Frontend::Terminate => return Rewritten::Stop(Stop::Goodbye),
            Frontend::Authentication => return misplaced(kind),
            _ if server.skipping => {}
            Frontend::Parse
            | Frontend::Bind
            | Frontend::Describe
            | Frontend::Execute
            | Frontend::Close => return self.extended(kind, message),
        }
        Rewritten::AsIs
    }

    #[inline]
    fn passed(&mut self, bytes: usize) {
        if let Some(routing) = &mut self.rewriter.client.routing {
            routing.looked_at = routing.looked_at.saturating_sub(bytes);
        }
    }
}

impl Upstream<'_> {
    /// A message of a batch that the pooler answers.
    #[inline]
    fn own(&mut self, kind: Frontend, message: Message<'_>) -> Option<Rewritten> {
        let routing = self.rewriter.client.routing.as_ref()?;
        if routing.batch == Batch::Servers {
            return None;
        }
        let Rewriter { client, server, .. } = &mut self.rewriter;
        let to_client = &mut *self.to_client;
        let status = server.status;
        Own { client, roads: self.roads.as_mut()?, to_client, status }.judge(kind, message)
    }

    /// Waits for what is under way; and if that leaves nothing open, has the client part with its server.
    fn settle(&mut self) -> Option<Rewritten> {
        if let Some(stalled) = self.stall() {
            return Some(stalled);
        }
        let is_over = self.shares && self.rewriter.server.is_settled();
        is_over.then_some(Rewritten::Stop(Stop::Settled))
    }

    /// What becomes of a query string that does not go to the client's server.
    #[inline]
    fn routed(&mut self, message: Message<'_>) -> Option<Rewritten> {
        let roads = self.roads.as_ref()?;
        // The server ends a COPY, and says so.
        if !roads.concerns_query(self.rewriter.client, message) || self.rewriter.server.copying_in {
            return None;
        }
        self.route_query(message)
    }

    fn route_query(&mut self, message: Message<'_>) -> Option<Rewritten> {
        if let Some(stopped) = self.settle() {
            return Some(stopped);
        }
        let answer = match self.roads.as_mut()?.query_linked(self.rewriter.client, message) {
            Way::Answered(answer) => Ok(answer),
            Way::Refused(refusal) => Err(refusal),
            Way::Unknown => return Some(Rewritten::Stop(Stop::Starved)),
            // Whoever has a server is on one shard.
            Way::Spread(_) => Err(SPREAD),
            Way::Server | Way::Own | Way::Begun(_) => return None,
        };
        let Rewriter { client, server, to_server, .. } = &mut self.rewriter;
        client.statements.drop_unnamed();
        server.statements.unnamed_is_ours = false; // The server still has what this string ended.
        self.to_client.make(|buf| match &answer {
            Ok(answer) => write_answer(buf, answer),
            Err(refusal) => write_refusal(buf, refusal),
        });
        // A batch that is open ends with the server's own ReadyForQuery.
        if std::mem::take(&mut server.batch_open) {
            server.owed.push(Request::Sync);
            to_server.make(frontend::encode::sync);
        } else {
            let status = server.status;
            self.to_client.make(|buf| encode::ready_for_query(buf, status));
        }
        Some(Rewritten::Whole)
    }

    /// What becomes of a batch, or of a message of it, that does not go to the client's server.
    #[inline]
    fn routed_batch(&mut self, kind: Frontend, message: Message<'_>) -> Option<Rewritten> {
        let roads = self.roads.as_ref()?;
        let is_first = !self.rewriter.server.batch_open;
        let concerns = match is_first {
            true => roads.concerns_batch(self.rewriter.client, kind, message),
            false => roads.concerns_message(self.rewriter.client),
        };
        if !concerns || self.rewriter.server.copying_in {
            return None;
        }
        self.route_batch(kind, message, is_first)
    }

    fn route_batch(
        &mut self,
        kind: Frontend,
        message: Message<'_>,
        is_first: bool,
    ) -> Option<Rewritten> {
        if is_first && let Some(stopped) = self.settle() {
            return Some(stopped);
        }
        let Rewriter { client, .. } = &mut self.rewriter;
        match self.roads.as_mut()?.batch_linked(client, kind, message, self.input, is_first) {
            Way::Server | Way::Answered(_) | Way::Begun(_) => None,
            Way::Unknown => {
                client.inlet.looks_ahead = true;
                Some(Rewritten::Stop(Stop::Starved))
            }
            Way::Spread(_) => Some(self.poison(&SPREAD)),
            Way::Refused(refusal) if !is_first => Some(self.poison(&refusal)),
            Way::Refused(refusal) => {
                refuse_batch(client, self.to_client, &refusal);
                Some(Rewritten::Whole)
            }
            Way::Own => {
                if let Some(routing) = &mut client.routing {
                    routing.batch = Batch::Own;
                }
                self.own(kind, message)
            }
        }
    }

    /// Refuses a message in the middle of a batch, of which the server has a part already: it is to take
    /// that back, so it gets what fails in the place of the message, with the reason in its words.
    fn poison(&mut self, refusal: &howdah_route::Refusal) -> Rewritten {
        let text = refusal.to_string().replace(['\'', '\\', '\0'], " ");
        let sql = format!("SELECT 'refused by the pooler: {text}'::pg_catalog.int4");
        let Rewriter { client, server, to_server, .. } = &mut self.rewriter;
        let before = std::mem::take(&mut client.statements.unnamed);
        let undo = RollbackAction::Unnamed(UnnamedBefore::Text(before));
        server.statements.unnamed_is_ours = true;
        server.owed.push(Request::Parse(Some(Box::new(undo))));
        to_server.make(|buf| {
            frontend::encode::parse(buf, b"", sql.as_bytes(), &[]).expect("it has no zero byte");
        });
        Rewritten::Whole
    }

    /// Gives the replies that are the pooler's to give and whose turn has come. In the middle of a
    /// notice, say, they follow when that has ended.
    fn answer_here(&mut self) {
        let server = &mut *self.rewriter.server;
        if server.inlet.is_inside_forwarded() {
            return;
        }
        while let Some(reply) = server.owed.answer_here() {
            self.to_client.make(|buf| buf.extend_from_slice(&reply));
        }
    }

    /// Has the client wait until everything it asked for is answered; `None` if it is. A server that
    /// waits for COPY data answers nothing more: there the server is to judge what comes.
    pub(super) fn stall(&mut self) -> Option<Rewritten> {
        self.answer_here();
        let Rewriter { client, server, to_server, .. } = &mut self.rewriter;
        let quiet = server.owed.is_empty() && !server.inlet.is_inside_forwarded();
        if quiet || server.copying_in {
            return None;
        }
        if server.batch_open {
            to_server.make(frontend::encode::flush); // Else the server keeps its answers to itself.
        }
        client.syncing = Syncing::Behind;
        Some(Rewritten::Stop(Stop::Starved))
    }

    /// Has what comes behind a statement that puts settings back wait until they are back.
    fn hold_back(&mut self, kind: Frontend) -> Option<Rewritten> {
        if matches!(kind, Frontend::Terminate | Frontend::Flush) {
            return None;
        }
        let stalled = self.stall();
        self.rewriter.server.holds_back = stalled.is_some();
        stalled
    }

    /// A message of the extended protocol that is part of a batch.
    #[inline]
    fn extended(&mut self, kind: Frontend, message: Message<'_>) -> Rewritten {
        if let Some(rewritten) = self.routed_batch(kind, message) {
            return rewritten;
        }
        let rewriter = &mut self.rewriter;
        if !rewriter.server.batch_open {
            rewriter.begin_batch();
        }
        let rewritten = if kind == Frontend::Execute {
            match self.listening_execute(message) {
                Some(rewritten) => rewritten,
                None => self.rewriter.execute(message),
            }
        } else if rewriter.statements_max == 0 {
            self.passed_on(kind, message)
        } else {
            self.rewritten(kind, message)
        };
        if !matches!(rewritten, Rewritten::Stop(_)) {
            self.rewriter.server.batch_open = true;
        }
        rewritten
    }

    /// Names stay as they are.
    fn passed_on(&mut self, kind: Frontend, message: Message<'_>) -> Rewritten {
        let server = &mut *self.rewriter.server;
        if kind == Frontend::Parse {
            if self.shares {
                server.dirt |= dirt_of(message);
                server.set_kind = SetKind::Lasting;
            }
            if let Some(name_end) = memchr::memchr(0, message.body) {
                let sql = sql_of(&message.body[name_end + 1..]);
                server.note_put_back(sql, &self.rewriter.client.startup);
            }
        }
        server.owed.push(match kind {
            Frontend::Parse => Request::Parse(None),
            Frontend::Bind => Request::Bind(0),
            Frontend::Describe => Request::Describe(0),
            _ => Request::Close(None),
        });
        Rewritten::AsIs
    }

    /// Names of statements are the client's, and become those that are shared.
    #[inline]
    fn rewritten(&mut self, kind: Frontend, message: Message<'_>) -> Rewritten {
        loop {
            let rewriter = &mut self.rewriter;
            let rewritten = match kind {
                Frontend::Parse => rewriter.parse(message),
                Frontend::Bind => rewriter.bind(message),
                Frontend::Describe => rewriter.describe(message),
                _ => rewriter.close(message),
            };
            if !matches!(rewritten, Rewritten::Stop(Stop::Doubtful)) {
                return rewritten;
            }
            if let Some(stalled) = self.stall() {
                return stalled;
            }
        }
    }

    fn function_call(&mut self) -> Rewritten {
        if self.rewriter.server.batch_open
            && let Some(stalled) = self.stall()
        {
            return stalled; // The batch may have failed, and then the server skips this.
        }
        let server = &mut *self.rewriter.server;
        server.batch_open = false; // ReadyForQuery ends it as Sync would.
        // `set_config` may be called like this.
        server.settings.parsing.change(Doubt::Unreported);
        server.owed.push(Request::Function);
        Rewritten::AsIs
    }

    fn query(&mut self, message: Message<'_>) -> Rewritten {
        if self.rewriter.server.batch_open
            && let Some(stalled) = self.stall()
        {
            return stalled; // The batch may have failed, and then the server skips this.
        }
        if let Some(rewritten) = self.routed(message) {
            return rewritten;
        }
        if message.is_whole()
            && let Some(sql) = message.body.strip_suffix(b"\0")
            && plain::is_plain(sql)
        {
            return self.plain_query(sql);
        }
        if self.shares
            && let Some(rewritten) = self.deallocated(message)
        {
            return rewritten;
        }
        if self.waits_for_channels(message) {
            return Rewritten::Stop(Stop::Starved);
        }
        let ops = self.channel_ops(message);
        if !ops.is_empty()
            && let Some(rewritten) = self.before_listening(&ops)
        {
            return match rewritten {
                Before::Wait(rewritten) => rewritten,
                Before::Refuse(error) => self.refuse_query(error),
            };
        }
        let woven = if ops.is_empty() { self.woven(message) } else { self.woven_ops(message) };
        if woven.is_some()
            && let Some(stalled) = self.stall()
        {
            return stalled; // Its answers are told from others by being the only ones.
        }
        let set_kind = self.note_query(message);
        let Rewriter { server, to_server, .. } = &mut self.rewriter;
        server.batch_open = false; // ReadyForQuery ends it as Sync would.
        server.holds_back =
            !server.put_back.is_empty() || woven.is_some() || server.listening.is_some();
        server.owed.push(Request::Query(set_kind));
        let Some(woven) = woven else { return Rewritten::AsIs };
        to_server.make(|buf| {
            frontend::encode::query(buf, &woven.sql).expect("only plain text is woven into");
        });
        server.woven = Some(Box::new(woven));
        Rewritten::Whole
    }

    /// A query string that does nothing to its session but what words in it tell.
    #[inline]
    fn plain_query(&mut self, sql: &[u8]) -> Rewritten {
        let Rewriter { client, server, .. } = &mut self.rewriter;
        let set_kind = if self.shares {
            let dirt = SessionStateFlags::of_text(sql);
            server.dirt |= dirt;
            if dirt.has(SessionStateFlags::SETTINGS) || server.settings.parsing.may_change() {
                server.note_parse_settings(sql);
            }
            client.statements.drop_unnamed();
            server.statements.unnamed_is_ours = true;
            SetKind::NotSet
        } else {
            SetKind::Lasting
        };
        server.batch_open = false; // ReadyForQuery ends it as Sync would.
        server.holds_back = !server.put_back.is_empty() || server.listening.is_some();
        server.owed.push(Request::Query(set_kind));
        Rewritten::AsIs
    }

    /// A query string in the place of one that puts settings back, and does something else.
    fn woven(&self, message: Message<'_>) -> Option<SplicedQuery> {
        let Rewriter { client, server, .. } = &self.rewriter;
        let startup = client.startup.list();
        if startup.is_empty() || !message.is_whole() || server.copying_in {
            return None;
        }
        let sql = message.body.strip_suffix(b"\0").filter(|sql| touches_settings(sql))?;
        weave(sql, startup, server.status != TransactionStatus::Idle, |_| None)
    }

    /// What becomes of a query string that deallocates what the client prepared by protocol; `None` if
    /// it does not, or if that is for the server to refuse.
    fn deallocated(&mut self, message: Message<'_>) -> Option<Rewritten> {
        let Rewriter { client, server, .. } = &mut self.rewriter;
        let name = deallocated_name(message).filter(|_| !server.copying_in)?;
        let knows = |client: &Client| client.statements.named.contains_key(name.as_slice());
        if knows(client) || server.owed.leaves_in_doubt(&name, 0) {
            if let Some(stalled) = self.stall() {
                return Some(stalled);
            }
            let Rewriter { client, server, .. } = &mut self.rewriter;
            if knows(client) && server.status != TransactionStatus::Failed {
                return Some(self.deallocate(&name));
            }
        }
        None
    }

    /// Notes what a query string may leave behind.
    fn note_query(&mut self, message: Message<'_>) -> SetKind {
        let Rewriter { client, server, .. } = &mut self.rewriter;
        let sql = message.body.strip_suffix(b"\0").unwrap_or(message.body);
        server.note_put_back(sql, &client.startup);
        if !self.shares {
            return SetKind::Lasting;
        }
        let dirt = dirt_of(message);
        server.dirt |= dirt;
        match dirt == SessionStateFlags::UNKNOWN {
            true => server.settings.parsing.change(Doubt::Unreported),
            false => server.note_parse_settings(sql),
        }
        // A query string ends the unnamed statement: the server has nobody's now.
        client.statements.drop_unnamed();
        server.statements.unnamed_is_ours = true;
        server.forgets |= match client.statements.named.is_empty() {
            true => deallocate::begins(sql),
            false => deallocate::may_forget(sql),
        };
        if dirt == SessionStateFlags::UNKNOWN {
            return SetKind::Lasting;
        }
        let settings = &server.settings;
        let reported = |name: &[u8]| is_settable(name) && settings.value(name).is_some();
        SetKind::of_text(sql, reported)
    }

    /// Takes a statement from the client, in the server's place. A batch that is open ends with the
    /// server's own ReadyForQuery.
    fn deallocate(&mut self, name: &[u8]) -> Rewritten {
        let Rewriter { client, server, to_server, .. } = &mut self.rewriter;
        deallocate(client, name, self.to_client);
        server.statements.unnamed_is_ours = false; // The server still has what this string ended.
        if std::mem::take(&mut server.batch_open) {
            server.owed.push(Request::Sync);
            to_server.make(frontend::encode::sync);
        } else {
            let status = server.status;
            self.to_client.make(|buf| encode::ready_for_query(buf, status));
        }
        Rewritten::Whole
    }
}

/// What the text in a message may leave behind; of a text that is not all there, anything.
fn dirt_of(message: Message<'_>) -> SessionStateFlags {
    if message.is_whole() {
        SessionStateFlags::of_text(message.body)
    } else {
        SessionStateFlags::UNKNOWN
    }
}

/// The name that a query string deallocates, if that is all it does.
pub(super) fn deallocated_name(message: Message<'_>) -> Option<Vec<u8>> {
    deallocate::name(message.body.strip_suffix(b"\0")?).filter(|_| message.is_whole())
}

/// Takes a statement from a client, and says so as the server would, up to ReadyForQuery.
pub(super) fn deallocate(client: &mut Client, name: &[u8], to: &mut Gather) {
    client.statements.named.remove(name);
    client.statements.drop_unnamed();
    to.make(|buf| {
        encode::command_complete(buf, b"DEALLOCATE").expect("it holds no zero byte");
    });
}
