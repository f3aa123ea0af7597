//! Prepared statements outside session mode: the names that clients give become names that all share
//! on a server, and what the server at hand lacks is prepared on it in passing.
//!
//! Only names and lengths are rewritten. The rest of a Parse or Bind is sent from where it was
//! received, and a Bind's values need not even be there yet.

use std::sync::Arc;

use howdah_wire::{Frontend, Header, backend::TransactionStatus};

use crate::{
    client::Client,
    dirt::{Dirt, SetKind},
    gather::Gather,
    owed::{Audience, Request, Undo},
    refusal::Refusal,
    server::Server,
    settings::is_settable,
    statements::{NAME_PREFIX, Statement, Statements, sql_of},
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
    /// More of it is needed.
    Starved,
    /// It cannot be followed.
    Fault(Refusal),
}

/// A client and its server, and what goes to the latter.
pub(super) struct Rewriter<'a> {
    pub(super) client: &'a mut Client,
    pub(super) server: &'a mut Server,
    pub(super) statements: &'a Statements,
    pub(super) statements_max: usize,
    pub(super) to_server: &'a mut Gather,
}

/// What is there of a message.
#[derive(Clone, Copy)]
pub(super) struct Message<'a> {
    pub(super) header: Header,
    /// As much of its body as was received.
    pub(super) body: &'a [u8],
}

impl<'a> Message<'a> {
    pub(super) fn is_whole(&self) -> bool {
        self.body.len() == self.header.body_bytes as usize
    }

    /// A string at `start`, and where the next field begins.
    fn string(&self, start: usize) -> Option<(&'a [u8], usize)> {
        let rest = self.body.get(start..)?;
        let end = memchr::memchr(0, rest)?;
        Some((&rest[..end], start + end + 1))
    }

    /// What to say if a field was not found: wait, or that it will never come.
    fn missing(&self) -> Rewritten {
        if self.is_whole() {
            let kind = Frontend::from_tag(self.header.tag).map_or("message", Frontend::name);
            Rewritten::Fault(Refusal::Protocol(format!("{kind} ends inside its names")))
        } else if self.body.len() > HELD_BYTES_MAX {
            Rewritten::Fault(Refusal::TooLong { bytes: self.header.body_bytes as usize })
        } else {
            Rewritten::Starved
        }
    }
}

impl Rewriter<'_> {
    /// A Parse: under a client's name it is shared, without one it goes as it is.
    pub(super) fn parse(&mut self, message: Message<'_>) -> Rewritten {
        let Some((name, text_at)) = message.string(0) else { return message.missing() };
        if !message.is_whole() {
            if message.header.body_bytes as usize <= HELD_BYTES_MAX {
                return Rewritten::Starved;
            }
            if name.is_empty() {
                self.client.statements.drop_unnamed();
                self.server.statements.unnamed_is_ours = true;
                self.server.dirt = Dirt::UNKNOWN;
                self.server.owed.push(Request::Parse(None));
                return Rewritten::AsIs;
            }
            return Rewritten::Fault(Refusal::TooLong {
                bytes: message.header.body_bytes as usize,
            });
        }
        let text = &message.body[text_at..];
        if name.is_empty() {
            self.client.statements.set_unnamed(text);
            self.server.statements.unnamed_is_ours = true;
            self.notes(sql_of(text), Dirt::of_text(sql_of(text)));
            self.server.owed.push(Request::Parse(None));
            return Rewritten::AsIs;
        }
        if let Some(existing) = self.client.statements.named.get(name) {
            let existing = Arc::clone(existing);
            // In a failed transaction the server has another error for it, whether or not it is there.
            if self.server.status != TransactionStatus::Failed {
                self.hold(&existing);
            }
            self.server.owed.push(Request::ParseAgain(name.into()));
            self.front(message.header, text_at, &[&existing.name, b"\0"]);
            return Rewritten::Front(text_at);
        }
        let statement = self.statements.intern(text);
        self.client.statements.named.insert(name.into(), Arc::clone(&statement));
        if self.server.statements.touch(statement.id) {
            if self.server.status == TransactionStatus::Failed {
                // The server is to judge whether it takes this now; under no name, for it has it.
                let undo = Box::new(Undo::Named(name.into()));
                self.server.owed.push(Request::Parse(Some(undo)));
                self.server.statements.unnamed_is_ours = false;
                self.front(message.header, text_at, &[b"\0"]);
                return Rewritten::Front(text_at);
            }
            self.server.owed.push(Request::ParseHere(Box::new(Undo::Named(name.into()))));
            return Rewritten::Whole;
        }
        self.make_room();
        self.server.statements.insert(statement.id);
        let undo = Undo::NamedAndHeld(name.into(), statement.id);
        self.server.owed.push(Request::Parse(Some(Box::new(undo))));
        self.front(message.header, text_at, &[&statement.name, b"\0"]);
        Rewritten::Front(text_at)
    }

    /// A Bind: the portal's name stays, the statement's is rewritten.
    pub(super) fn bind(&mut self, message: Message<'_>) -> Rewritten {
        let Some((portal, statement_at)) = message.string(0) else { return message.missing() };
        let Some((name, rest_at)) = message.string(statement_at) else { return message.missing() };
        let rewritten = self.refer(message.header, name, rest_at, &[portal, b"\0"]);
        self.server.owed.push(Request::Bind);
        rewritten
    }

    /// A Describe: of a portal it goes as it is, of a statement under the shared name.
    pub(super) fn describe(&mut self, message: Message<'_>) -> Rewritten {
        if !message.is_whole() {
            return message.missing();
        }
        let Some((name, end)) = message.string(1) else { return message.missing() };
        let rewritten = match message.body[0] {
            b'S' => self.refer(message.header, name, end, &[b"S"]),
            _ => Rewritten::AsIs,
        };
        self.server.owed.push(Request::Describe);
        rewritten
    }

    /// A Close: of a client's statement it is for the pooler, others go as they are.
    pub(super) fn close(&mut self, message: Message<'_>) -> Rewritten {
        if !message.is_whole() {
            return message.missing();
        }
        let Some((name, _)) = message.string(1) else { return message.missing() };
        if message.body[0] != b'S' || name.is_empty() {
            if message.body[0] == b'S' {
                self.client.statements.drop_unnamed();
            }
            self.server.owed.push(Request::Close(None));
            return Rewritten::AsIs;
        }
        let removed = self.client.statements.named.remove_entry(name);
        let undo = removed.map(|(name, statement)| Box::new(Undo::Unnamed(name, statement)));
        self.server.owed.push(Request::CloseHere(undo));
        Rewritten::Whole
    }

    /// Rewrites the reference to the statement `name` in a message that has `before` in front of it
    /// and whose next field is at `rest_at`.
    fn refer(
        &mut self,
        header: Header,
        name: &[u8],
        rest_at: usize,
        before: &[&[u8]],
    ) -> Rewritten {
        if name.is_empty() {
            self.hold_unnamed();
            return Rewritten::AsIs;
        }
        if let Some(statement) = self.client.statements.named.get(name) {
            let statement = Arc::clone(statement);
            self.hold(&statement);
            self.notes(sql_of(&statement.text), statement.dirt);
            self.front_of(header, rest_at, before, &[&statement.name, b"\0"]);
            return Rewritten::Front(rest_at);
        }
        if name.starts_with(NAME_PREFIX) {
            // Somebody else's, perhaps. The server is to say that there is none of that name.
            self.front_of(header, rest_at, before, &[name, b"?\0"]);
            return Rewritten::Front(rest_at);
        }
        Rewritten::AsIs
    }

    /// Notes what running a text may leave behind.
    fn notes(&mut self, sql: &[u8], dirt: Dirt) {
        let server = &mut *self.server;
        server.dirt |= dirt;
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
        self.server.statements.insert(statement.id);
        let undo = Box::new(Undo::Held(statement.id));
        self.server.owed.push_for(Audience::Pooler, Request::Parse(Some(undo)));
        let bytes = statement.name.len() + 1 + statement.text.len();
        self.to_server.make(|buf| {
            write_header(buf, Frontend::Parse, bytes);
            buf.extend_from_slice(&statement.name);
            buf.push(0);
            buf.extend_from_slice(&statement.text);
        });
    }

    /// Sees to it that the server's unnamed statement is this client's, or that there is none.
    fn hold_unnamed(&mut self) {
        if self.server.statements.unnamed_is_ours {
            return;
        }
        self.server.statements.unnamed_is_ours = true;
        let text = &self.client.statements.unnamed;
        if text.is_empty() {
            self.server.owed.push_for(Audience::Pooler, Request::Close(None));
            self.to_server.make(|buf| buf.extend_from_slice(b"C\0\0\0\x06S\0"));
            return;
        }
        self.server.owed.push_for(Audience::Pooler, Request::Parse(None));
        self.to_server.make(|buf| {
            write_header(buf, Frontend::Parse, text.len() + 1);
            buf.push(0);
            buf.extend_from_slice(text);
        });
        let text = std::mem::take(&mut self.client.statements.unnamed);
        self.notes(sql_of(&text), Dirt::of_text(sql_of(&text)));
        self.client.statements.unnamed = text;
    }

    /// Has the server give up the statement that was not used for longest, if it holds enough.
    fn make_room(&mut self) {
        let Some(id) = self.server.statements.evict(self.statements_max) else { return };
        self.server
            .owed
            .push_for(Audience::Pooler, Request::Close(Some(Box::new(Undo::Evicted(id)))));
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

fn write_header(buf: &mut Vec<u8>, kind: Frontend, body_bytes: usize) {
    buf.push(kind.tag().0);
    buf.extend_from_slice(&length(body_bytes));
}

/// The length field of a body. Bodies are under 1 GiB and grow here by a name at most.
fn length(body_bytes: usize) -> [u8; 4] {
    u32::try_from(body_bytes + 4).unwrap_or(u32::MAX).to_be_bytes()
}
