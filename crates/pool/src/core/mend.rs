//! Mending, behind a client's back, what a server of its own would not have done to it: settings that
//! went back to what the pooler began with, and statements that the server has another idea of.

use howdah_wire::{
    Backend,
    backend::{Severity, TransactionStatus, encode},
    frontend::{self, Target},
};

use super::{
    reply::{Listener, NO_ZERO_BYTE, Reply},
    rewrite, settle,
};
use crate::{
    client::Client,
    owed::{ReplyTarget, Request, RollbackAction},
};

impl Listener<'_> {
    /// The client has put settings back to what it began with, and the server to what it began with:
    /// the difference is set. If nothing was sent after that, the client gets its ReadyForQuery when
    /// that is done, and of all of it hears the last only.
    pub(super) fn put_back(&mut self) -> Reply {
        let server = &mut *self.server;
        let is_inside = |client: &&mut Client| client.inlet.is_inside_forwarded();
        let is_inside = server.batch_open || self.client.as_ref().is_some_and(is_inside);
        if is_inside || !server.put_back_due && !server.owed.is_empty() {
            return Reply::Forward; // More comes, and it may be that which puts back.
        }
        let settings = std::mem::take(&mut server.put_back);
        let is_due = std::mem::take(&mut server.put_back_due);
        let missing = server.settings.missing_of(&settings);
        if !is_due || missing.is_empty() || server.status == TransactionStatus::Failed {
            return Reply::Forward;
        }
        let is_last = server.owed.is_empty();
        settle::set(server, &missing, ReplyTarget::PutBack, self.to_server);
        let ends_for = if is_last { ReplyTarget::Client } else { ReplyTarget::PutBack };
        server.owed.push_for(ends_for, Request::Sync);
        if is_last { Reply::Swallow } else { Reply::Forward }
    }

    /// Keeps what the pooler's own statements in a client's query string are answered from the client.
    pub(super) fn unweave(&mut self, kind: Backend, body: &[u8]) -> Option<Reply> {
        let woven = self.server.woven.as_mut()?;
        match kind {
            Backend::RowDescription | Backend::DataRow if woven.is_ours() => Some(Reply::Swallow),
            Backend::CommandComplete => {
                let is_ours = woven.is_ours();
                woven.statement_done();
                is_ours.then_some(Reply::Swallow)
            }
            Backend::ErrorResponse => {
                let moved = moved(body, |position| woven.position(position));
                match self.error(body, ReplyTarget::Client) {
                    Reply::Forward => Some(moved.map_or(Reply::Forward, Reply::Replace)),
                    other => Some(other),
                }
            }
            Backend::ReadyForQuery => {
                self.server.woven = None;
                None
            }
            _ => None,
        }
    }

    /// What to do about an error that says that the server has another idea of a shared statement than
    /// the pooler has: if nothing has come of it yet, it is prepared anew and the batch sent again.
    pub(super) fn outdated(&mut self, body: &[u8]) -> Option<Reply> {
        let server = &mut *self.server;
        let front = server.owed.front()?;
        let (Request::Bind(id @ 1..) | Request::Describe(id @ 1..)) = front.request else {
            return None;
        };
        let is_lost = memchr::memmem::find(body, b"\0C26000\0").is_some();
        if !is_lost && memchr::memmem::find(body, b"\0C0A000\0").is_none() {
            return None;
        }
        let client = self.client.as_deref()?;
        let mut named = client.statements.named.iter();
        let (name, statement) = named.find(|(_, statement)| statement.id == id)?;
        let behind = server.owed.behind_in_last_batch();
        let is_alone =
            server.status == TransactionStatus::Idle && !client.inlet.is_inside_forwarded();
        // Parsed now, it would not mean what it meant under its own settings.
        let is_same = statement.key == 0 || statement.key == server.settings.parsing.key;
        let sent =
            behind.filter(|_| is_alone && is_same).and_then(|behind| server.again.take(behind));
        let Some(sent) = sent else {
            if is_lost {
                server.statements.remove(id);
                let error = no_such_statement(name);
                self.skip();
                return Some(Reply::Replace(error));
            }
            self.statements.retire(statement);
            return None;
        };
        server.statements.insert(id);
        // The server skips up to the Sync that it has, and then hears this.
        let parse = Request::Parse(Some(Box::new(RollbackAction::Held(id))));
        server.owed.again_behind([Request::Sync, Request::Close(None), parse]);
        self.to_server.make(|buf| {
            frontend::encode::close(buf, Target::Statement(&statement.name)).expect(NO_ZERO_BYTE);
            rewrite::parse(buf, statement);
            buf.extend_from_slice(&sent);
            frontend::encode::sync(buf);
        });
        Some(Reply::Swallow)
    }
}

/// An error whose position in the query string is another; `None` if it has none.
fn moved(body: &[u8], position: impl Fn(usize) -> usize) -> Option<Vec<u8>> {
    let at = memchr::memmem::find(body, b"\0P")? + 2;
    let end = at + memchr::memchr(0, &body[at..])?;
    let old = std::str::from_utf8(&body[at..end]).ok()?.parse().ok()?;
    let new = position(old).to_string();
    let mut buf = vec![Backend::ErrorResponse.tag().0];
    let bytes = u32::try_from(body.len() - (end - at) + new.len() + 4).ok()?;
    buf.extend_from_slice(&bytes.to_be_bytes());
    [&body[..at], new.as_bytes(), &body[end..]].iter().for_each(|it| buf.extend_from_slice(it));
    Some(buf)
}

/// The error that PostgreSQL has for a statement that is not there, with the client's name in it.
fn no_such_statement(name: &[u8]) -> Vec<u8> {
    let message = [b"prepared statement \"", name, b"\" does not exist"].concat();
    let mut buf = Vec::new();
    let fields = encode::essentials(Severity::Error, b"26000", &message);
    encode::error_response(&mut buf, fields).expect(NO_ZERO_BYTE);
    buf
}
