//! Prepared statements outside session mode: the names that clients give become names that all share
//! on a server, and what the server at hand lacks is prepared on it in passing.
//!
//! Only names and lengths are rewritten. The rest of a Parse or Bind is sent from where it was
//! received, and a Bind's values need not even be there yet.

use std::sync::Arc;

use howdah_wire::{Frontend, Header, backend::TransactionStatus};

use super::{settle, upstream::Stop};
use crate::{
    client::{Client, Syncing},
    deallocate,
    dirt::{SessionStateFlags, SetKind},
    gather::Gather,
    owed::{ReplyTarget, Request, RollbackAction, UnnamedBefore},
    parse_settings::{Doubt, NAMES, ParseSettings, is_sensitive},
    prepared::ClientStatements,
    put_back::{ResettingPortal, put_back_by},
    refusal::Refusal,
    server::Server,
    settings::is_settable,
    statements::{NAME_PREFIX, Statement, Statements, UNKNOWN_SETTINGS, is_plain, sql_of},
    tally::Tally,
};

/// Most of a message that is held until its names are there. Beyond it, a client that wants a
/// statement prepared is refused.
pub(super) const HELD_BYTES_MAX: usize = 4 << 20;

/// What became of the front of a message.
pub(super) enum Rewritten {
    /// Its first so many bytes, after the header, are dealt with; what is left goes on as it is.
    Front(usize),
    /// All of it is dealt with, and nothing of it goes on.
    Whole,
    /// The message is to go on as it is.
    AsIs,
    /// Nothing can be done with it now.
    Stop(Stop),
}

/// A client and its server, and what goes to the latter.
pub(super) struct Rewriter<'a> {
    pub(super) client: &'a mut Client,
    pub(super) server: &'a mut Server,
    pub(super) statements: &'a Statements,
    pub(super) statements_max: usize,
    /// Whether what the client listens to is followed.
    pub(super) listens: bool,
    pub(super) tally: &'a mut Tally,
    pub(super) to_server: &'a mut Gather,
}

/// What is there of a message.
#[derive(Clone, Copy)]
pub(super) struct Message<'a> {
    pub(super) header: Header,
    /// As much of its body as was received.
    pub(super) body: &'a [u8],
    /// Where it begins in what was received.
    pub(super) at: usize,
}

impl<'a> Message<'a> {
    pub(super) fn is_whole(&self) -> bool {
        self.body.len() == self.header.body_bytes as usize
    }

    /// Its length, header included.
    pub(super) fn bytes(&self) -> usize {
        Header::BYTES + self.header.body_bytes as usize
    }

    /// A string at `start`, and where the next field begins.
    pub(super) fn string(&self, start: usize) -> Option<(&'a [u8], usize)> {
        let rest = self.body.get(start..)?;
        let end = memchr::memchr(0, rest)?;
        Some((&rest[..end], start + end + 1))
    }

    fn too_long(&self) -> Rewritten {
        let bytes = self.header.body_bytes as usize;
        Rewritten::Stop(Stop::Fault(Refusal::TooLong { bytes }))
    }

    /// What to say if a field was not found: wait, or that it will never come.
    fn missing(&self) -> Rewritten {
        if self.is_whole() {
            let kind = Frontend::from_tag(self.header.tag).map_or("message", Frontend::name);
            let what = format!("{kind} ends inside its names");
            Rewritten::Stop(Stop::Fault(Refusal::Protocol(what)))
        } else if self.body.len() > HELD_BYTES_MAX {
            self.too_long()
        } else {
            Rewritten::Stop(Stop::Starved)
        }
    }
}

/// The statement that a message refers to.
#[derive(Clone, Copy)]
struct Referred {
    /// 0 if it has none that is shared.
    id: u64,
    /// See [`is_plain`].
    is_plain: bool,
}

impl Referred {
    const NONE: Self = Self { id: 0, is_plain: false };
}

impl Rewriter<'_> {
    /// The first message of a batch is here.
    #[inline]
    pub(super) fn begin_batch(&mut self) {
        let server = &mut *self.server;
        server.statements.batch_begins();
        let is_first = server.owed.is_empty() && self.to_server.is_empty();
        server.again.begin(is_first && server.status == TransactionStatus::Idle);
    }

    /// The Sync of a batch is here.
    #[inline]
    pub(super) fn end_batch(&mut self, input: &[u8]) {
        self.server.again.end(self.to_server, input);
        self.server.holds_back =
            !self.server.put_back.is_empty() || self.server.listening.is_some();
        self.server.batch_open = false;
        self.server.skipping = false;
    }

    /// A Parse: under a client's name it is shared, without one it goes as it is.
    pub(super) fn parse(&mut self, message: Message<'_>) -> Rewritten {
        let Some((name, text_at)) = message.string(0) else { return message.missing() };
        if name.is_empty() {
            return self.parse_unnamed(message, text_at);
        }
        if !message.is_whole() {
            let is_short = message.header.body_bytes as usize <= HELD_BYTES_MAX;
            return if is_short { Rewritten::Stop(Stop::Starved) } else { message.too_long() };
        }
        match self.client.statements.named.get(name).cloned() {
            Some(existing) => match self.usable(name, existing) {
                Ok(existing) => self.parse_again(message, text_at, &existing),
                Err(stop) => Rewritten::Stop(stop),
            },
            None => {
                let text = &message.body[text_at..];
                if let Err(stop) = self.learn_to_parse(sql_of(text)) {
                    return Rewritten::Stop(stop);
                }
                let settings = self.server.settings.parsing.current();
                let statement = self.statements.intern(text, settings);
                self.parse_shared(message, text_at, &statement)
            }
        }
    }

    fn parse_unnamed(&mut self, message: Message<'_>, text_at: usize) -> Rewritten {
        let is_short = message.header.body_bytes as usize <= HELD_BYTES_MAX;
        if !message.is_whole() && is_short {
            return Rewritten::Stop(Stop::Starved);
        }
        let deallocated = match self.deallocated(message, text_at) {
            Some(name) if self.is_doubtful(&name, 0) => return Rewritten::Stop(Stop::Doubtful),
            Some(name) => match self.client.statements.named.get(name.as_slice()).cloned() {
                Some(statement) => match self.usable(&name, statement) {
                    Ok(statement) => Some((name, statement)),
                    Err(stop) => return Rewritten::Stop(stop),
                },
                None => None,
            },
            None => None,
        };
        let mut is_sensitive = None;
        if message.is_whole() && self.server.settings.parsing.key == 0 {
            let text = &message.body[text_at..];
            let sensitive = self.is_sensitive_unnamed(text);
            if sensitive && let Err(stop) = self.learn_parse_settings() {
                return Rewritten::Stop(stop);
            }
            is_sensitive = Some(sensitive);
        }
        let undo = self.before_unnamed();
        if message.is_whole() {
            let text = &message.body[text_at..];
            let sql = sql_of(text);
            let dirt = SessionStateFlags::of_text(sql);
            let is_plain = is_plain(sql) && !dirt.has(SessionStateFlags::SETTINGS);
            let settings = self.server.settings.parsing.current();
            self.client.statements.set_unnamed(text, is_plain, settings);
            self.client.statements.unnamed_is_sensitive = is_sensitive;
            self.server.settings.parsing.rely();
            self.notes_unless_plain(sql, dirt, is_plain);
        } else {
            self.client.statements.drop_unnamed();
            self.server.dirt = SessionStateFlags::UNKNOWN;
        }
        self.server.statements.unnamed_is_ours = true;
        let Some((name, statement)) = deallocated else {
            self.server.owed.push(Request::Parse(undo));
            return Rewritten::AsIs;
        };
        // It is about a statement that has another name there.
        self.hold(&statement);
        self.server.owed.push(Request::Parse(undo));
        self.server.deallocates = Some(name.into());
        let sql_end = text_at + sql_of(&message.body[text_at..]).len();
        self.front(message.header, sql_end, &[b"\0DEALLOCATE ", &statement.name]);
        Rewritten::Front(sql_end)
    }

    /// Whether the meaning of a text depends on settings. Many clients prepare the same text again and again.
    fn is_sensitive_unnamed(&self, text: &[u8]) -> bool {
        let ClientStatements { unnamed, unnamed_is_sensitive, .. } = &self.client.statements;
        let known = unnamed_is_sensitive.filter(|_| *unnamed == *text);
        known.unwrap_or_else(|| is_sensitive(sql_of(text)))
    }

    /// The client's name of the statement that a Parse without a name is to deallocate, if that is all
    /// it does.
    fn deallocated(&self, message: Message<'_>, text_at: usize) -> Option<Vec<u8>> {
        if self.client.statements.named.is_empty() || !message.is_whole() {
            return None;
        }
        deallocate::name(sql_of(&message.body[text_at..]))
    }

    /// What the unnamed statement goes back to if the request that changes it is skipped.
    fn before_unnamed(&mut self) -> Option<Box<RollbackAction>> {
        self.server.batch_open.then(|| {
            let text = std::mem::take(&mut self.client.statements.unnamed);
            Box::new(RollbackAction::Unnamed(UnnamedBefore::Text(text)))
        })
    }

    /// A Parse by a name that the client has used already: the server is to refuse it, in its place.
    fn parse_again(
        &mut self,
        message: Message<'_>,
        text_at: usize,
        existing: &Statement,
    ) -> Rewritten {
        let (name, _) = message.string(0).unwrap_or_default();
        let server = &*self.server;
        let may_fail = !server.copying_in
            && !server.statements.has(existing.id)
            && server.owed.awaits_status();
        if may_fail || self.is_doubtful(name, existing.id) {
            return Rewritten::Stop(Stop::Doubtful);
        }
        // In a failed transaction the server has another error for it, whether or not it is there.
        if self.server.status != TransactionStatus::Failed {
            self.hold(existing);
        }
        self.server.owed.push(Request::ParseAgain(name.into()));
        self.front(message.header, text_at, &[&existing.name, b"\0"]);
        Rewritten::Front(text_at)
    }

    fn parse_shared(
        &mut self,
        message: Message<'_>,
        text_at: usize,
        statement: &Arc<Statement>,
    ) -> Rewritten {
        let (name, _) = message.string(0).unwrap_or_default();
        if self.is_doubtful(name, statement.id) {
            return Rewritten::Stop(Stop::Doubtful);
        }
        let id = statement.id;
        self.tally.client_parses += 1;
        self.client.statements.named.insert(name.into(), Arc::clone(statement));
        if !self.server.statements.touch(id) {
            self.make_room();
            self.tally.server_parses += 1;
            self.server.statements.insert(id);
            self.server.settings.parsing.rely();
            let undo = RollbackAction::NamedAndHeld(name.into(), id);
            self.server.owed.push(Request::Parse(Some(Box::new(undo))));
            self.front(message.header, text_at, &[&statement.name, b"\0"]);
            return Rewritten::Front(text_at);
        }
        let undo = Box::new(RollbackAction::Named(name.into()));
        if self.server.status != TransactionStatus::Failed && !self.server.owed.awaits_status() {
            self.server.owed.push(Request::ParseHere(undo));
            self.server.again.parses();
            return Rewritten::Whole;
        }
        // The server is to judge whether it takes this now; under no name, for it has it.
        self.server.owed.push(Request::Parse(Some(undo)));
        self.server.statements.unnamed_is_ours = false;
        self.front(message.header, text_at, &[b"\0"]);
        Rewritten::Front(text_at)
    }

    /// Whether answers that are still to come decide what a name, or the server's copy of a statement,
    /// is when the server gets to what is sent now. Names that mean nothing have no id, which is 0.
    fn is_doubtful(&mut self, name: &[u8], id: u64) -> bool {
        let server = &mut *self.server;
        if server.forgets && server.owed.is_empty() {
            server.forgets = false;
        }
        !server.copying_in && (server.forgets || server.owed.leaves_in_doubt(name, id))
    }

    /// A Bind: the portal's name stays, the statement's is rewritten.
    pub(super) fn bind(&mut self, message: Message<'_>) -> Rewritten {
        let Some((portal, statement_at)) = message.string(0) else { return message.missing() };
        let Some((name, rest_at)) = message.string(statement_at) else { return message.missing() };
        let (rewritten, to) = self.refer(message.header, name, rest_at, &[portal, b"\0"]);
        if !matches!(rewritten, Rewritten::Stop(_)) {
            self.server.owed.push(Request::Bind(to.id));
            self.tally.binds += u64::from(to.id != 0);
            if self.listens && (!to.is_plain || self.server.listening.is_some()) {
                self.note_listening(portal, name);
            }
            if !to.is_plain || self.server.settings.parsing.may_change() {
                self.note_change(message, portal, name);
            }
            let may_reset = !to.is_plain || self.server.resetting.is_some();
            if may_reset && !self.client.startup.list().is_empty() {
                self.note_resetting(portal, name);
            }
        }
        rewritten
    }

    /// Notes what running a portal does to the settings that matter to parsing.
    fn note_change(&mut self, message: Message<'_>, portal: &[u8], statement: &[u8]) {
        let sql = self.text_of(statement).map(sql_of);
        // The name of a setting among the values stands there as it is, in either format.
        let by_parameter = || {
            let body = message.body;
            let names = NAMES.iter().any(|name| contains_ignoring_case(body, name.as_bytes()));
            if message.is_whole() && !names { Doubt::None } else { Doubt::Unreported }
        };
        let doubt = sql.map_or(Doubt::None, |sql| self.server.change_by(sql, by_parameter));
        self.server.settings.parsing.bind(portal.is_empty(), doubt);
    }

    /// What was prepared by a name, or without one.
    pub(super) fn text_of(&self, statement: &[u8]) -> Option<&[u8]> {
        let ClientStatements { named, unnamed, .. } = &self.client.statements;
        match statement {
            b"" => Some(&unnamed[..]),
            name => named.get(name).map(|statement| &*statement.text),
        }
    }

    /// Notes a portal that will put settings back when it is run.
    fn note_resetting(&mut self, portal: &[u8], statement: &[u8]) {
        let text = self.text_of(statement);
        let back = text.and_then(|text| put_back_by(sql_of(text), self.client.startup.list()));
        let resetting = &mut self.server.resetting;
        if let Some((back, is_local)) = back {
            *resetting = Some(Box::new(ResettingPortal { portal: portal.into(), back, is_local }));
        } else if resetting.as_ref().is_some_and(|noted| *noted.portal == *portal) {
            *resetting = None;
        }
    }

    /// An Execute: behind one that puts settings back goes what sets what the client began with, for
    /// the batch goes on.
    pub(super) fn execute(&mut self, message: Message<'_>) -> Rewritten {
        self.server.owed.push(Request::Execute);
        self.server.settings.parsing.execute(message.body.first() == Some(&0));
        let runs = |noted: &mut Box<ResettingPortal>| {
            message.is_whole() && message.string(0).is_some_and(|it| *it.0 == *noted.portal)
        };
        let Some(noted) = self.server.resetting.take_if(runs) else { return Rewritten::AsIs };
        self.to_server.make(|buf| {
            write_header(buf, Frontend::Execute, message.body.len());
            buf.extend_from_slice(message.body);
        });
        settle::set_in_batch(self.server, &noted, self.to_server);
        Rewritten::Whole
    }

    /// A Describe: of a portal it goes as it is, of a statement under the shared name.
    pub(super) fn describe(&mut self, message: Message<'_>) -> Rewritten {
        if !message.is_whole() {
            return message.missing();
        }
        let Some((name, end)) = message.string(1) else { return message.missing() };
        let (rewritten, Referred { id, .. }) = match message.body[0] {
            b'S' => self.refer(message.header, name, end, &[b"S"]),
            _ => (Rewritten::AsIs, Referred::NONE),
        };
        if !matches!(rewritten, Rewritten::Stop(_)) {
            self.server.owed.push(Request::Describe(id));
        }
        rewritten
    }

    /// A Close: of a client's statement it is for the pooler, others go as they are.
    pub(super) fn close(&mut self, message: Message<'_>) -> Rewritten {
        if !message.is_whole() {
            return message.missing();
        }
        let Some((name, _)) = message.string(1) else { return message.missing() };
        if message.body[0] != b'S' || name.is_empty() {
            let mut undo = None;
            if message.body[0] == b'S' {
                undo = self.before_unnamed();
                self.client.statements.drop_unnamed();
                self.server.statements.unnamed_is_ours = true;
            }
            self.server.owed.push(Request::Close(undo));
            return Rewritten::AsIs;
        }
        if self.is_doubtful(name, 0) {
            return Rewritten::Stop(Stop::Doubtful);
        }
        let removed = self.client.statements.named.remove_entry(name);
        let undo =
            removed.map(|(name, statement)| Box::new(RollbackAction::Closed(name, statement)));
        self.server.owed.push(Request::CloseHere(undo));
        Rewritten::Whole
    }

    /// Rewrites the reference to the statement `name` in a message that has `before` in front of it
    /// and whose next field is at `rest_at`. Tells of the statement, too.
    #[inline]
    fn refer(
        &mut self,
        header: Header,
        name: &[u8],
        rest_at: usize,
        before: &[&[u8]],
    ) -> (Rewritten, Referred) {
        if name.is_empty() {
            if !self.server.copying_in && self.server.owed.leaves_unnamed_in_doubt() {
                return (Rewritten::Stop(Stop::Doubtful), Referred::NONE);
            }
            if let Err(stop) = self.hold_unnamed() {
                return (Rewritten::Stop(stop), Referred::NONE);
            }
            let is_plain = self.client.statements.unnamed_is_plain;
            return (Rewritten::AsIs, Referred { id: 0, is_plain });
        }
        let statement = self.client.statements.named.get(name).cloned();
        if self.is_doubtful(name, statement.as_ref().map_or(0, |statement| statement.id)) {
            return (Rewritten::Stop(Stop::Doubtful), Referred::NONE);
        }
        if let Some(statement) = statement {
            let statement = match self.usable(name, statement) {
                Ok(statement) => statement,
                Err(stop) => return (Rewritten::Stop(stop), Referred::NONE),
            };
            self.server.again.refers();
            self.hold(&statement);
            self.notes_unless_plain(sql_of(&statement.text), statement.dirt, statement.is_plain);
            self.front_of(header, rest_at, before, &[&statement.name, b"\0"]);
            let Statement { id, is_plain, .. } = *statement;
            return (Rewritten::Front(rest_at), Referred { id, is_plain });
        }
        if name.starts_with(NAME_PREFIX) {
            // Somebody else's, perhaps. The server is to say that there is none of that name.
            self.front_of(header, rest_at, before, &[name, b"?\0"]);
            return (Rewritten::Front(rest_at), Referred::NONE);
        }
        (Rewritten::AsIs, Referred::NONE)
    }

    /// The same for a text of which it is known whether it is plain.
    #[inline]
    fn notes_unless_plain(&mut self, sql: &[u8], dirt: SessionStateFlags, is_plain: bool) {
        match is_plain {
            true => self.server.dirt |= dirt,
            false => self.notes(sql, dirt),
        }
    }

    /// Notes what running a text may leave behind.
    fn notes(&mut self, sql: &[u8], dirt: SessionStateFlags) {
        let server = &mut *self.server;
        server.dirt |= dirt;
        server.forgets |= deallocate::begins(sql);
        server.note_put_back(sql, &self.client.startup);
        let settings = &server.settings;
        let reported = |name: &[u8]| is_settable(name) && settings.value(name).is_some();
        server.set_kind = server.set_kind.max(SetKind::of_text(sql, reported));
    }

    /// Sees to it that the server holds a statement.
    fn hold(&mut self, statement: &Statement) {
        if self.server.statements.touch(statement.id) {
            return;
        }
        self.make_room();
        self.tally.server_parses += 1;
        self.server.statements.insert(statement.id);
        let undo = Box::new(RollbackAction::Held(statement.id));
        self.server.owed.push_for(ReplyTarget::Pooler, Request::Parse(Some(undo)));
        self.to_server.make(|buf| parse(buf, statement));
    }

    /// Finds out which settings are in force when the server parses what is sent now, if that text depends
    /// on them. They may stay unknown where the server parses nothing.
    #[inline]
    fn learn_to_parse(&mut self, sql: &[u8]) -> Result<(), Stop> {
        if self.server.settings.parsing.key != 0 || !is_sensitive(sql) {
            return Ok(());
        }
        self.learn_parse_settings()
    }

    /// Finds out which settings are in force when the server gets to what is sent now: waits for what is
    /// under way, and then, where nothing was reported, asks.
    #[cold]
    fn learn_parse_settings(&mut self) -> Result<(), Stop> {
        if self.refuses_all() {
            return Ok(());
        }
        let server = &mut *self.server;
        if server.status == TransactionStatus::Failed {
            return Err(Stop::Doubtful); // What is under way may end the transaction.
        }
        let doubt = server.settings.parsing.doubt;
        if doubt != Doubt::None {
            if !server.owed.is_empty() || server.inlet.is_inside_forwarded() {
                return Err(Stop::Doubtful);
            }
            if doubt == Doubt::Unreported || server.batch_open {
                // In a transaction, an error of this is one of the batch that begins.
                server.batch_open |= server.status == TransactionStatus::InTransaction;
                settle::query_parse_settings(server, self.to_server);
                self.client.syncing = Syncing::Behind;
                return Err(Stop::Starved);
            }
            server.settings.parsing.doubt = Doubt::None;
        }
        let settings = self.statements.parse_settings(&server.settings.parse_values());
        server.settings.parsing.set_current(settings);
        Ok(())
    }

    /// Whether the server refuses whatever it is sent.
    fn refuses_all(&self) -> bool {
        let has_failed = self.server.status == TransactionStatus::Failed;
        self.server.copying_in || has_failed && !self.server.owed.awaits_status()
    }

    /// The statement that a client's name means at this server: the shared one only while its settings are in
    /// force, else one of the client's own, which is there when this returns.
    #[inline]
    fn usable(&mut self, name: &[u8], statement: Arc<Statement>) -> Result<Arc<Statement>, Stop> {
        if statement.key == 0 {
            return Ok(statement);
        }
        self.server.settings.parsing.rely();
        if statement.key == self.server.settings.parsing.key {
            return Ok(statement);
        }
        self.usable_elsewhere(name, statement)
    }

    #[cold]
    fn usable_elsewhere(
        &mut self,
        name: &[u8],
        statement: Arc<Statement>,
    ) -> Result<Arc<Statement>, Stop> {
        if self.refuses_all() {
            return Ok(statement);
        }
        let is_known = statement.key != UNKNOWN_SETTINGS;
        if is_known && !statement.is_shared && self.server.statements.has(statement.id) {
            return Ok(statement);
        }
        self.learn_parse_settings()?;
        let Some(current) = self.server.settings.parsing.current().cloned() else {
            return Ok(statement);
        };
        let own = match () {
            () if statement.key == current.id => return Ok(statement),
            () if !is_known => self.statements.intern(&statement.text, Some(&current)),
            () if statement.is_shared => self.statements.private(&statement),
            () => statement,
        };
        if self.server.owed.awaits_status() {
            return Err(Stop::Doubtful); // In a failed transaction, another error may be due.
        }
        self.client.statements.named.insert(name.into(), Arc::clone(&own));
        if let Some(settings) = own.settings.as_ref().filter(|its| its.id != current.id)
            && !self.server.statements.has(own.id)
        {
            let (settings, own) = (Arc::clone(settings), Arc::clone(&own));
            self.under(&settings, &current, |rewriter| rewriter.hold(&own));
        }
        Ok(own)
    }

    /// Has the server do something under other settings than those in force.
    fn under(
        &mut self,
        settings: &ParseSettings,
        current: &ParseSettings,
        sends: impl FnOnce(&mut Self),
    ) {
        let (there, back) = settings.difference(current);
        settle::set_to_parse(self.server, &there, self.to_server);
        sends(self);
        settle::set_to_parse(self.server, &back, self.to_server);
    }

    /// Sees to it that the server's unnamed statement is this client's, or that there is none.
    fn hold_unnamed(&mut self) -> Result<(), Stop> {
        if self.server.statements.unnamed_is_ours {
            return Ok(());
        }
        let ClientStatements { unnamed, unnamed_settings, .. } = &self.client.statements;
        let text = unnamed;
        if text.is_empty() {
            self.server.statements.unnamed_is_ours = true;
            self.server.owed.push_for(ReplyTarget::Pooler, Request::Close(None));
            self.to_server.make(|buf| buf.extend_from_slice(b"C\0\0\0\x06S\0"));
            return Ok(());
        }
        let settings = unnamed_settings.clone().filter(|settings| {
            settings.id != self.server.settings.parsing.key && is_sensitive(sql_of(text))
        });
        if settings.is_some() {
            self.learn_parse_settings()?;
        }
        let current = self.server.settings.parsing.current().cloned();
        match settings.zip(current).filter(|(settings, current)| settings.id != current.id) {
            Some((settings, current)) => {
                self.under(&settings, &current, Self::parse_unnamed_again);
            }
            None => self.parse_unnamed_again(),
        }
        Ok(())
    }

    fn parse_unnamed_again(&mut self) {
        self.server.statements.unnamed_is_ours = true;
        self.server.settings.parsing.rely();
        self.server.owed.push_for(ReplyTarget::Pooler, Request::Parse(None));
        let text = std::mem::take(&mut self.client.statements.unnamed);
        self.to_server.make(|buf| {
            write_header(buf, Frontend::Parse, text.len() + 1);
            buf.push(0);
            buf.extend_from_slice(&text);
        });
        self.notes(sql_of(&text), SessionStateFlags::of_text(sql_of(&text)));
        self.client.statements.unnamed = text;
    }

    /// Has the server give up the statement that was not used for longest, if it holds enough. One whose
    /// Parse may yet turn out to have failed is not looked for: then the server holds one more.
    fn make_room(&mut self) {
        let server = &mut *self.server;
        let Some(id) = server.statements.oldest(self.statements_max) else { return };
        if server.owed.leaves_in_doubt(b"", id) {
            return;
        }
        server.statements.remove(id);
        let undo = Some(Box::new(RollbackAction::Evicted(id)));
        server.owed.push_for(ReplyTarget::Pooler, Request::Close(undo));
        let id = id.to_string();
        self.to_server.make(|buf| {
            write_header(buf, Frontend::Close, 1 + NAME_PREFIX.len() + id.len() + 1);
            buf.push(b'S');
            buf.extend_from_slice(NAME_PREFIX);
            buf.extend_from_slice(id.as_bytes());
            buf.push(0);
        });
    }

    fn front(&mut self, header: Header, replaced: usize, by: &[&[u8]]) {
        self.front_of(header, replaced, &[], by);
    }

    /// Sends a header and `before` and `by` in the place of the first `replaced` bytes of a body.
    fn front_of(&mut self, header: Header, replaced: usize, before: &[&[u8]], by: &[&[u8]]) {
        let parts = before.iter().chain(by);
        let made: usize = parts.clone().map(|part| part.len()).sum();
        let bytes = header.body_bytes as usize - replaced + made;
        self.to_server.make(|buf| {
            buf.push(header.tag.0);
            buf.extend_from_slice(&length(bytes));
            parts.for_each(|part| buf.extend_from_slice(part));
        });
    }
}

/// Whether a text stands somewhere in another, without regard to ASCII case.
fn contains_ignoring_case(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|found| found.eq_ignore_ascii_case(part))
}

/// Appends what prepares a statement under its shared name.
pub(super) fn parse(buf: &mut Vec<u8>, statement: &Statement) {
    write_header(buf, Frontend::Parse, statement.name.len() + 1 + statement.text.len());
    buf.extend_from_slice(&statement.name);
    buf.push(0);
    buf.extend_from_slice(&statement.text);
}

pub(super) fn write_header(buf: &mut Vec<u8>, kind: Frontend, body_bytes: usize) {
    buf.push(kind.tag().0);
    buf.extend_from_slice(&length(body_bytes));
}

/// The length field of a body. Bodies are under 1 GiB and grow here by a name at most.
fn length(body_bytes: usize) -> [u8; 4] {
    u32::try_from(body_bytes + 4).unwrap_or(u32::MAX).to_be_bytes()
}
