//! What a server's message means for what it is owed.

use howdah_record::CaptureBuffer;
use howdah_wire::{
    Backend, Frame,
    backend::{Message, Severity, TransactionStatus, encode},
};

use crate::{
    client::{Client, Syncing},
    cluster::ServerRole,
    connect_query::ConnectQuery,
    dirt::{SessionStateFlags, SetKind},
    gather::Gather,
    owed::{ReplyTarget, Request, RollbackAction, UnnamedBefore},
    prepared::{ClientStatements, ServerStatements},
    refusal::Refusal,
    server::{Server, ServerState},
    settings::{ParameterSets, Setting, is_settable, same_name},
    statements::Statements,
    tally::Tally,
    time::Time,
    writes::Writes,
};

/// What becomes of a message.
#[derive(Debug)]
pub(super) enum Reply {
    /// It is for the client.
    Forward,
    /// It is for nobody.
    Swallow,
    /// The client gets this instead.
    Replace(Vec<u8>),
    /// The client is refused, and the server lives on without it.
    Refuse(Refusal),
    /// The link cannot go on.
    Break(Refusal),
    /// It answers nothing that was asked.
    Unexpected,
}

/// Whether a message is looked at beyond its header, so that it has to be held until it is whole.
/// These are short; all others may stream, errors of unusual length too.
fn needs_body(kind: Backend, body_bytes: u32) -> bool {
    match kind {
        Backend::ReadyForQuery | Backend::ParameterStatus | Backend::CommandComplete => true,
        Backend::ErrorResponse => body_bytes <= ERROR_BYTES_MAX,
        _ => false,
    }
}

/// Longest error that is looked at.
const ERROR_BYTES_MAX: u32 = 8192;

/// A server that says something, and whom it works for.
pub(super) struct Listener<'a> {
    pub(super) server: &'a mut Server,
    pub(super) client: Option<&'a mut Client>,
    /// Whether the pooler follows what clients listen to.
    pub(super) listens: bool,
    /// Whether transaction blocks are refused.
    pub(super) refuses_blocks: bool,
    /// What was run after the server's login.
    pub(super) connect_query: Option<&'a ConnectQuery>,
    pub(super) wishes: &'a mut ParameterSets,
    pub(super) statements: &'a Statements,
    pub(super) to_server: &'a mut Gather,
    pub(super) tally: &'a mut Tally,
    pub(super) now: Time,
    /// Where it is written what the client hears, if it is.
    pub(super) tape: Option<&'a mut CaptureBuffer>,
}

impl Listener<'_> {
    /// See [`needs_body`]; names of channels are short, too.
    pub(super) fn needs_body(&self, kind: Backend, body_bytes: u32) -> bool {
        let lists = kind == Backend::DataRow
            && self.server.owed.front().is_some_and(|it| {
                matches!(it.audience, ReplyTarget::Listens | ReplyTarget::ParseSettings)
            });
        lists || needs_body(kind, body_bytes)
    }

    /// Counts a message off. Of kinds that need no body, `body` is empty if it is not all there.
    #[inline]
    pub(super) fn hear(&mut self, kind: Backend, body: &[u8]) -> Reply {
        let Some(front) = self.server.owed.front() else { return self.unasked(kind, body) };
        let audience = front.audience;
        // Most of what is said: rows of what the client asked for.
        if kind == Backend::DataRow
            && audience == ReplyTarget::Client
            && self.server.woven.is_none()
        {
            return Reply::Forward;
        }
        if self.server.woven.is_some()
            && let Some(reply) = self.unweave(kind, body)
        {
            return reply;
        }
        if audience == ReplyTarget::Listens && kind == Backend::DataRow {
            self.hear_channel(body);
        }
        if audience == ReplyTarget::ParseSettings
            && kind == Backend::DataRow
            && self.server.settings.parsing.awaits_answer
        {
            self.parse_settings(body);
        }
        let Some(front) = self.server.owed.front() else { return Reply::Unexpected };
        let answered = match (kind, &front.request) {
            (Backend::DataRow | Backend::CopyData | Backend::CopyDone, _) => false,
            (Backend::ReadyForQuery, Request::Query(_) | Request::Function | Request::Sync) => {
                let status = body.first().and_then(|byte| TransactionStatus::from_byte(*byte));
                let Some(status) = status else { return Reply::Unexpected };
                self.server.status = status;
                self.server.copying_in = false;
                if self.server.owed.is_single() {
                    self.server.settings.parsing.all_answered();
                }
                if audience == ReplyTarget::Client {
                    self.count_request();
                }
                if self.refuses_blocks && status != TransactionStatus::Idle && self.client.is_some()
                {
                    self.server.owed.pop();
                    return Reply::Refuse(Refusal::TransactionInStatementMode);
                }
                let begun = self.client.as_ref().and_then(|client| client.routing.as_ref());
                if audience == ReplyTarget::Client
                    && begun.is_some_and(|routing| routing.begun.is_some())
                {
                    // What it was told has begun waits on; the server has just told what a statement is.
                    self.server.owed.pop();
                    let mut ready = Vec::new();
                    encode::ready_for_query(&mut ready, TransactionStatus::InTransaction);
                    return Reply::Replace(ready);
                }
                if audience == ReplyTarget::Settings {
                    self.settings_done();
                } else if !self.server.put_back.is_empty() && audience == ReplyTarget::Client {
                    self.server.owed.pop();
                    return match self.put_back() {
                        Reply::Forward => self.ask_what_is_heard(),
                        reply => reply,
                    };
                } else if self.server.listening.is_some() {
                    self.server.owed.pop();
                    return match audience {
                        ReplyTarget::Listens => self.know_what_is_heard(),
                        ReplyTarget::Client => self.ask_what_is_heard(),
                        _ => Reply::Swallow,
                    };
                }
                true
            }
            (Backend::CommandComplete, Request::Query(_) | Request::Execute) => {
                self.completed(body);
                matches!(self.server.owed.front().map(|e| &e.request), Some(Request::Execute))
            }
            (Backend::NoticeResponse, _) => return self.for_client(),
            (Backend::NotificationResponse, _) => return self.notification(),
            (Backend::ParameterStatus, _) => return self.parameter(body, audience),
            (Backend::ErrorResponse, _) => {
                let reply = self.error(body, audience);
                self.note_error(body, &reply);
                return reply;
            }
            (Backend::CopyInResponse, Request::Query(_) | Request::Execute) => {
                let of_batch = matches!(front.request, Request::Execute);
                self.server.copying_in = !self.server.owed.drop_syncs_in_copy();
                // The Sync that seemed to end the batch was swallowed; another has to come.
                self.server.batch_open |= of_batch && self.server.copying_in;
                false
            }
            (_, Request::Query(_)) => false,
            (Backend::FunctionCallResponse, Request::Function) => {
                self.in_doubt();
                false
            }
            (Backend::ParseComplete, Request::Parse(_) | Request::ParseAgain(_)) => {
                self.server.settings.setter_prepared |=
                    matches!(audience, ReplyTarget::Settings | ReplyTarget::PutBack);
                true
            }
            (Backend::PortalSuspended, Request::Execute) => {
                let role = self.client.as_ref().map_or(ServerRole::Primary, |client| client.role);
                if self.server.writes.is_watched() {
                    self.server.writes.note_suspended(role);
                }
                true
            }
            (Backend::BindComplete, Request::Bind(_))
            | (Backend::CloseComplete, Request::Close(_))
            | (Backend::RowDescription | Backend::NoData, Request::Describe(_))
            | (Backend::EmptyQueryResponse, Request::Execute) => true,
            (Backend::ParameterDescription, Request::Describe(_)) => false,
            (Backend::CopyOutResponse | Backend::CopyBothResponse, Request::Execute) => false,
            _ => return Reply::Unexpected,
        };
        if answered {
            self.server.owed.pop();
        }
        if audience == ReplyTarget::Client { Reply::Forward } else { Reply::Swallow }
    }

    /// What was done says nothing of writes.
    fn in_doubt(&mut self) {
        if self.server.writes.is_watched() {
            self.server.writes = Writes::Seen;
        }
    }

    /// A request of the client's is answered.
    #[inline]
    fn count_request(&mut self) {
        self.tally.queries += 1;
        self.tally.query_time.add(self.server.since, self.now);
        if self.server.status == TransactionStatus::Idle {
            self.tally.transactions += 1;
            self.tally.transaction_time.add(self.server.began, self.now);
        }
    }

    /// What a server may say without being asked.
    fn unasked(&mut self, kind: Backend, body: &[u8]) -> Reply {
        match kind {
            Backend::NoticeResponse => self.for_client(),
            Backend::NotificationResponse => self.notification(),
            Backend::ParameterStatus => self.parameter(body, ReplyTarget::Client),
            Backend::ErrorResponse if matches!(self.server.state, ServerState::Linked(_)) => {
                Reply::Forward
            }
            // The server is about to end the session.
            Backend::ErrorResponse => Reply::Break(Refusal::ServerLost),
            _ => Reply::Unexpected,
        }
    }

    fn for_client(&self) -> Reply {
        if self.client.is_some() { Reply::Forward } else { Reply::Swallow }
    }

    /// What a server tells of its own channels is told by the dedicated connection.
    fn notification(&self) -> Reply {
        if self.listens { Reply::Swallow } else { self.for_client() }
    }

    /// A statement has ended well: what it left behind is noted.
    fn completed(&mut self, body: &[u8]) {
        let tag = body.strip_suffix(b"\0").unwrap_or(body);
        let server = &mut *self.server;
        // A tag with a number of rows changes nothing but data.
        if tag.last().is_some_and(u8::is_ascii_digit) && !server.writes.is_watched() {
            return;
        }
        let Some(front) = server.owed.front() else { return };
        if !matches!(front.audience, ReplyTarget::Client | ReplyTarget::Cleaning) {
            return;
        }
        if server.writes.is_watched() {
            let role = self.client.as_ref().map_or(ServerRole::Primary, |client| client.role);
            server.writes.note(tag, role);
        }
        if front.audience == ReplyTarget::Client
            && self.connect_query.is_some_and(|query| !query.is_repeatable)
        {
            server.dirt |= SessionStateFlags::undone_by_tag(tag);
        }
        match tag {
            b"SET" => {
                let kind = match front.request {
                    Request::Query(kind) => kind,
                    _ => server.set_kind,
                };
                if kind != SetKind::Harmless && front.audience == ReplyTarget::Client {
                    server.dirt |= SessionStateFlags::SETTINGS;
                }
                server.has_put_back();
            }
            b"RESET" => {
                if front.audience == ReplyTarget::Cleaning {
                    server.settings.was_reset();
                } else if self.connect_query.is_some() {
                    server.dirt |= SessionStateFlags::SETTINGS;
                }
                server.has_put_back();
            }
            b"DISCARD ALL" | b"DEALLOCATE ALL" => {
                server.statements.clear();
                server.settings.setter_prepared = false;
                if tag == b"DISCARD ALL" {
                    let is_reset = front.audience == ReplyTarget::Cleaning;
                    if is_reset || server.owed.is_single() {
                        server.dirt = SessionStateFlags::NONE; // Else it is known of what comes behind already.
                    }
                    if !is_reset && self.connect_query.is_some() {
                        server.dirt |= SessionStateFlags::SETTINGS;
                    }
                    server.settings.was_reset();
                    server.has_put_back();
                }
                if let Some(client) = self.client.as_deref_mut() {
                    client.statements.named.clear();
                    if tag == b"DISCARD ALL"
                        && let Some(listens) = &mut client.listens
                    {
                        listens.settle_for_none();
                        server.listening = None;
                    }
                }
            }
            b"DEALLOCATE" if matches!(front.request, Request::Execute) => self.deallocated(),
            b"LISTEN" | b"UNLISTEN" => self.channels_changed(tag),
            _ => server.dirt |= SessionStateFlags::of_tag(tag),
        }
    }

    /// A prepared DEALLOCATE has run: if it was about a statement that the client prepared by
    /// protocol, neither client nor server has that now.
    fn deallocated(&mut self) {
        let Some(name) = self.server.deallocates.take() else { return };
        let Some(client) = self.client.as_deref_mut() else { return };
        if let Some(statement) = client.statements.named.remove(&name) {
            self.server.statements.remove(statement.id);
        }
    }

    fn parameter(&mut self, body: &[u8], audience: ReplyTarget) -> Reply {
        let frame = Frame { tag: Backend::ParameterStatus.tag(), body };
        let Ok(Message::ParameterStatus { name, value }) = Message::parse(frame) else {
            return Reply::Unexpected;
        };
        let settings = &mut self.server.settings;
        if audience == ReplyTarget::ParseSettings && self.client.is_some() {
            settings.report_passing(name, value);
            return Reply::Swallow;
        }
        let fulfilled = settings.fulfils.take();
        settings.report(name, value);
        let Some(client) = self.client.as_deref_mut() else { return Reply::Swallow };
        if audience == ReplyTarget::Settings {
            return Reply::Swallow;
        }
        let goes_back = |setting: &Setting| same_name(&setting.name, name);
        if self.server.put_back_due
            && audience == ReplyTarget::Client
            && let Some(setting) = self.server.put_back.iter().find(|it| goes_back(it))
            && *setting.value != *value
        {
            return Reply::Swallow; // It will be what the client began with before this is told.
        }
        let settings = &mut self.server.settings;
        if let Some(routing) = &mut client.routing {
            routing.parameter(name, value);
        }
        if is_settable(name) {
            let changed = self.wishes.with(&client.wishes, name, value);
            if fulfilled.is_some_and(|fulfilled| std::sync::Arc::ptr_eq(&fulfilled, &client.wishes))
            {
                settings.fulfils = Some(std::sync::Arc::clone(&changed));
            }
            client.wishes = changed;
        }
        Reply::Forward
    }

    /// The settings in force that matter to parsing.
    fn parse_settings(&mut self, body: &[u8]) {
        let frame = Frame { tag: Backend::DataRow.tag(), body };
        let Ok(Message::DataRow(mut cells)) = Message::parse(frame) else { return };
        let mut value = || cells.next().flatten().map(Into::into);
        self.server.settings.parse_values_are(std::array::from_fn(|_| value()));
    }

    /// The client finds what it wished for, in the server's spelling: or the same would be missing
    /// for ever.
    fn settings_done(&mut self) {
        let Some(client) = self.client.as_deref_mut() else { return };
        let settings = &mut self.server.settings;
        client.wishes = self.wishes.intern(settings.spelled(&client.wishes));
        client.wishes.prove();
        settings.fulfil(std::sync::Arc::clone(&client.wishes));
        if client.syncing == Syncing::Waiting {
            client.syncing = Syncing::Done;
        }
    }

    pub(super) fn error(&mut self, body: &[u8], audience: ReplyTarget) -> Reply {
        match audience {
            ReplyTarget::Settings | ReplyTarget::Begin => {
                return Reply::Break(setting_refused(body));
            }
            ReplyTarget::Cleaning | ReplyTarget::Listens => {
                return Reply::Break(Refusal::ServerLost);
            }
            ReplyTarget::ParseSettings if self.server.owed.is_batch_for(audience) => {
                return Reply::Break(setting_refused(body));
            }
            ReplyTarget::Client
            | ReplyTarget::Pooler
            | ReplyTarget::PutBack
            | ReplyTarget::ParseSettings => {}
        }
        // A procedure may have committed something before it failed.
        self.in_doubt();
        if self.server.status == TransactionStatus::InTransaction {
            // ReadyForQuery will say so too; what a client sends before that is judged by it already.
            self.server.status = TransactionStatus::Failed;
        }
        self.server.put_back_due = false;
        self.server.deallocates = None;
        if let Some(reply) = self.outdated(body) {
            return reply;
        }
        let refusal = self.server.listening.as_mut().and_then(|it| it.refusal.take());
        let instead = match self.server.owed.front().map(|entry| &entry.request) {
            Some(Request::Query(_) | Request::Function | Request::Sync) | None => {
                return refusal.map_or(Reply::Forward, Reply::Replace);
            }
            _ if refusal.is_some() => refusal,
            Some(Request::ParseAgain(name))
                if memchr::memmem::find(body, b"C42P05\0").is_some() =>
            {
                Some(already_exists(name))
            }
            Some(_) => None,
        };
        self.skip();
        match instead {
            _ if audience == ReplyTarget::PutBack => Reply::Swallow,
            Some(error) => Reply::Replace(error),
            None => Reply::Forward,
        }
    }

    /// Takes back what the server skips after an error.
    pub(super) fn skip(&mut self) {
        let Server { owed, statements, .. } = &mut *self.server;
        let (client, shared) = (&mut self.client, self.statements);
        let mut unnamed = None;
        let has_sync = owed.skip_to_sync(|undo, is_failed| match undo {
            // A Parse that fails has ended the statement before it all the same.
            RollbackAction::Unnamed(_) if is_failed => unnamed = Some(Vec::new()),
            RollbackAction::Unnamed(UnnamedBefore::Text(text)) => unnamed = Some(text),
            RollbackAction::Unnamed(UnnamedBefore::Any) => {}
            undo => {
                let client = client.as_deref_mut().map(|client| &mut client.statements);
                take_back(undo, client, statements, shared);
            }
        });
        if let Some(text) = unnamed.and_then(|text| owed.unnamed_is(text))
            && let Some(client) = client
        {
            client.statements.unnamed = text;
            client.statements.unnamed_is_plain = false;
            client.statements.unnamed_settings = None;
        }
        self.server.statements.unnamed_is_ours = false;
        self.server.copying_in = false;
        self.server.skipping = !has_sync;
    }
}

/// Takes back what was assumed of a request that has failed, or that the server skips because of one
/// that has.
fn take_back(
    undo: RollbackAction,
    client: Option<&mut ClientStatements>,
    server: &mut ServerStatements,
    shared: &Statements,
) {
    match &undo {
        RollbackAction::NamedAndHeld(_, id) | RollbackAction::Held(id) => server.remove(*id),
        RollbackAction::Evicted(id) => server.insert(*id),
        _ => {}
    }
    let Some(client) = client else { return };
    match undo {
        RollbackAction::Named(name) => drop(client.named.remove(&name)),
        RollbackAction::NamedAndHeld(name, _) => {
            if let Some(statement) = client.named.remove(&name) {
                shared.failed(&statement);
            }
        }
        RollbackAction::Closed(name, statement) => drop(client.named.insert(name, statement)),
        RollbackAction::Unnamed(_) | RollbackAction::Held(_) | RollbackAction::Evicted(_) => {}
    }
}

/// The error that PostgreSQL has for a Parse by a name in use, with the client's name in it.
fn already_exists(name: &[u8]) -> Vec<u8> {
    let message = [b"prepared statement \"", name, b"\" already exists"].concat();
    let mut buf = Vec::new();
    let fields = encode::essentials(Severity::Error, b"42P05", &message);
    encode::error_response(&mut buf, fields).expect(NO_ZERO_BYTE);
    buf
}

pub(super) const NO_ZERO_BYTE: &str = "a name on the wire holds no zero byte";

/// Why a setting could not be set, in the server's words if they are there.
fn setting_refused(body: &[u8]) -> Refusal {
    let frame = Frame { tag: Backend::ErrorResponse.tag(), body };
    match Message::parse(frame) {
        Ok(Message::ErrorResponse(error)) => Refusal::ServerLogin {
            sqlstate: error.sqlstate().try_into().unwrap_or(*b"22023"),
            message: String::from_utf8_lossy(error.message()).into_owned(),
        },
        _ => Refusal::ServerLogin {
            sqlstate: *b"22023",
            message: "the server refused a setting of this session".to_owned(),
        },
    }
}
