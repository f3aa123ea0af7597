//! What a server's message means for what it is owed.

use howdah_wire::{
    Backend, Frame,
    backend::{Message, Severity, TransactionStatus, encode},
};

use crate::{
    client::{Client, Syncing},
    dirt::{Dirt, SetKind},
    owed::{Audience, Request, Undo},
    refusal::Refusal,
    server::{Server, ServerState},
    settings::{WishTable, is_settable},
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
    /// The link cannot go on.
    Break(Refusal),
    /// It answers nothing that was asked.
    Unexpected,
}

/// Whether a message is looked at beyond its header, so that it has to be held until it is whole.
/// These are short; all others may stream, errors of unusual length too.
pub(super) fn needs_body(kind: Backend, body_bytes: u32) -> bool {
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
    pub(super) wishes: &'a mut WishTable,
}

impl Listener<'_> {
    /// Counts a message off. Of kinds that need no body, `body` is empty if it is not all there.
    #[inline]
    pub(super) fn hear(&mut self, kind: Backend, body: &[u8]) -> Reply {
        let Some(front) = self.server.owed.front() else { return self.unasked(kind, body) };
        let audience = front.audience;
        let answered = match (kind, &front.request) {
            (Backend::DataRow | Backend::CopyData | Backend::CopyDone, _) => false,
            (Backend::ReadyForQuery, Request::Query(_) | Request::Function | Request::Sync) => {
                let status = body.first().and_then(|byte| TransactionStatus::from_byte(*byte));
                let Some(status) = status else { return Reply::Unexpected };
                self.server.status = status;
                self.server.copying_in = false;
                if audience == Audience::Settings {
                    self.settings_done();
                }
                true
            }
            (Backend::CommandComplete, Request::Query(_) | Request::Execute) => {
                self.completed(body);
                matches!(self.server.owed.front().map(|e| &e.request), Some(Request::Execute))
            }
            (Backend::NoticeResponse | Backend::NotificationResponse, _) => {
                return self.for_client();
            }
            (Backend::ParameterStatus, _) => return self.parameter(body, audience),
            (Backend::ErrorResponse, _) => return self.error(body, audience),
            (Backend::CopyInResponse, Request::Query(_) | Request::Execute) => {
                let of_batch = matches!(front.request, Request::Execute);
                self.server.copying_in = !self.server.owed.drop_syncs_in_copy();
                // The Sync that seemed to end the batch was swallowed; another has to come.
                self.server.batch_open |= of_batch && self.server.copying_in;
                false
            }
            (_, Request::Query(_)) => false,
            (Backend::FunctionCallResponse, Request::Function) => false,
            (Backend::ParseComplete, Request::Parse(_) | Request::ParseAgain(_)) => {
                self.server.settings.setter_prepared |= audience == Audience::Settings;
                true
            }
            (Backend::BindComplete, Request::Bind)
            | (Backend::CloseComplete, Request::Close(_))
            | (Backend::RowDescription | Backend::NoData, Request::Describe)
            | (Backend::EmptyQueryResponse | Backend::PortalSuspended, Request::Execute) => true,
            (Backend::ParameterDescription, Request::Describe) => false,
            (Backend::CopyOutResponse | Backend::CopyBothResponse, Request::Execute) => false,
            _ => return Reply::Unexpected,
        };
        if answered {
            self.server.owed.pop();
        }
        if audience == Audience::Client { Reply::Forward } else { Reply::Swallow }
    }

    /// What a server may say without being asked.
    fn unasked(&mut self, kind: Backend, body: &[u8]) -> Reply {
        match kind {
            Backend::NoticeResponse | Backend::NotificationResponse => self.for_client(),
            Backend::ParameterStatus => self.parameter(body, Audience::Client),
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

    /// A statement has ended well: what it left behind is noted.
    fn completed(&mut self, body: &[u8]) {
        let tag = body.strip_suffix(b"\0").unwrap_or(body);
        let Some(front) = self.server.owed.front() else { return };
        if front.audience != Audience::Client {
            return;
        }
        match tag {
            b"SET" => {
                let kind = match front.request {
                    Request::Query(kind) => kind,
                    _ => self.server.set_kind,
                };
                if kind != SetKind::Harmless {
                    self.server.dirt |= Dirt::SETTINGS;
                }
            }
            b"DISCARD ALL" | b"DEALLOCATE ALL" => {
                self.server.statements.clear();
                self.server.settings.setter_prepared = false;
                if let Some(client) = self.client.as_deref_mut() {
                    client.statements.named.clear();
                    client.statements.drop_unnamed();
                }
                if tag == b"DISCARD ALL" {
                    self.server.dirt = Dirt::NONE;
                    self.server.settings.was_reset();
                }
            }
            _ => self.server.dirt |= Dirt::of_tag(tag),
        }
    }

    fn parameter(&mut self, body: &[u8], audience: Audience) -> Reply {
        let frame = Frame { tag: Backend::ParameterStatus.tag(), body };
        let Ok(Message::ParameterStatus { name, value }) = Message::parse(frame) else {
            return Reply::Unexpected;
        };
        let settings = &mut self.server.settings;
        let fulfilled = settings.fulfils.take();
        settings.report(name, value);
        let Some(client) = self.client.as_deref_mut() else { return Reply::Swallow };
        if audience == Audience::Settings {
            return Reply::Swallow;
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

    fn error(&mut self, body: &[u8], audience: Audience) -> Reply {
        match audience {
            Audience::Settings => return Reply::Break(setting_refused(body)),
            Audience::Cleaning => return Reply::Break(Refusal::ServerLost),
            Audience::Client | Audience::Pooler => {}
        }
        if self.server.status == TransactionStatus::InTransaction {
            // ReadyForQuery will say so too; what a client sends before that is judged by it already.
            self.server.status = TransactionStatus::Failed;
        }
        let Server { owed, statements, .. } = &mut *self.server;
        let again = match owed.front().map(|entry| &entry.request) {
            Some(Request::Query(_) | Request::Function | Request::Sync) | None => {
                return Reply::Forward;
            }
            Some(Request::ParseAgain(name))
                if memchr::memmem::find(body, b"C42P05\0").is_some() =>
            {
                Some(already_exists(name))
            }
            Some(_) => None,
        };
        let client = &mut self.client;
        let mut unnamed_lost = false;
        let has_sync = owed.skip_to_sync(|undo| {
            let named = client.as_deref_mut().map(|client| &mut client.statements.named);
            match undo {
                Undo::Named(name) => drop(named.and_then(|named| named.remove(&name))),
                Undo::NamedAndHeld(name, id) => {
                    named.and_then(|named| named.remove(&name));
                    statements.remove(id);
                }
                Undo::Held(id) => statements.remove(id),
                Undo::Unnamed(name, statement) => {
                    drop(named.and_then(|named| named.insert(name, statement)));
                }
                Undo::Evicted(id) => statements.insert(id),
                Undo::NoUnnamed => unnamed_lost = true,
            }
        });
        if unnamed_lost && let Some(client) = self.client.as_deref_mut() {
            client.statements.drop_unnamed();
        }
        self.server.statements.unnamed_is_ours = false;
        self.server.copying_in = false;
        self.server.skipping = !has_sync;
        again.map_or(Reply::Forward, Reply::Replace)
    }
}

/// The error that PostgreSQL has for a Parse by a name in use, with the client's name in it.
fn already_exists(name: &[u8]) -> Vec<u8> {
    let message = [b"prepared statement \"", name, b"\" already exists"].concat();
    let mut buf = Vec::new();
    let fields = encode::essentials(Severity::Error, b"42P05", &message);
    encode::error_response(&mut buf, fields).expect("a name on the wire holds no zero byte");
    buf
}

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
