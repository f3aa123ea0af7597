//! [`Owed`]: what a server has been asked and has not answered, in order.
//!
//! Replies carry no numbers; which request one belongs to follows from its place alone. Entries whose
//! reply is for nobody were added by the pooler, and their replies are swallowed. Entries that no
//! server was asked are answered by the pooler, when their turn comes.

use std::{collections::VecDeque, sync::Arc};

use crate::{dirt::SetKind, statements::Statement};

/// A request that has yet to be answered.
#[derive(Debug)]
pub(crate) enum Request {
    /// Answered by anything, then ReadyForQuery.
    Query(SetKind),
    /// Answered by FunctionCallResponse or an error, then ReadyForQuery.
    Function,
    /// Answered by ReadyForQuery.
    Sync,
    /// Answered by ParseComplete.
    Parse(Option<Box<Undo>>),
    /// A Parse by a name that the client has used already: the server is made to find that out, so
    /// that the error has its place; the name is for the words.
    ParseAgain(Box<[u8]>),
    /// Answered by BindComplete.
    Bind,
    /// Answered by RowDescription or NoData, after ParameterDescription for a statement.
    Describe,
    /// Answered by rows, then CommandComplete, EmptyQueryResponse or PortalSuspended.
    Execute,
    /// Answered by CloseComplete.
    Close(Option<Box<Undo>>),
    /// CopyDone or CopyFail: not answered, but it ends the time in which Sync is not answered either.
    CopyEnd,
    /// A Parse of what the server holds already: the pooler answers.
    ParseHere(Box<Undo>),
    /// A Close of a client's name: the pooler answers.
    CloseHere(Option<Box<Undo>>),
}

impl Request {
    /// The reply of a request that the pooler answers.
    pub(crate) fn reply_here(&self) -> Option<[u8; 5]> {
        match self {
            Self::ParseHere(_) => Some(*b"1\0\0\0\x04"),
            Self::CloseHere(_) => Some(*b"3\0\0\0\x04"),
            _ => None,
        }
    }
}

/// What was assumed when a request was sent, and turns out wrong if it failed or was skipped.
#[derive(Debug)]
pub(crate) enum Undo {
    /// The client has the name.
    Named(Box<[u8]>),
    /// The client has the name, and the server holds the statement of this id.
    NamedAndHeld(Box<[u8]>, u64),
    /// The server holds it.
    Held(u64),
    /// The client has the name no more.
    Unnamed(Box<[u8]>, Arc<Statement>),
    /// The server holds it no more.
    Evicted(u64),
    /// The client has an unnamed statement. A Parse that failed has ended the one before it; of one
    /// that was skipped that is not true, but the text of the one before it is gone.
    NoUnnamed,
}

/// An entry of the queue.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) request: Request,
    pub(crate) audience: Audience,
}

impl Entry {
    /// What has to be taken back if the request failed or the server never looked at it.
    fn into_undo(self) -> Option<Undo> {
        match self.request {
            Request::Parse(None) if self.audience == Audience::Client => Some(Undo::NoUnnamed),
            Request::Parse(undo) | Request::Close(undo) | Request::CloseHere(undo) => {
                undo.map(|undo| *undo)
            }
            Request::ParseHere(undo) => Some(*undo),
            _ => None,
        }
    }
}

/// Whom a reply is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audience {
    /// The client that the server is linked to.
    Client,
    /// The pooler, which asked on behalf of a request of the client behind it: an error is as good as
    /// that request's.
    Pooler,
    /// The pooler, which sets what the client is to find: an error is the end of the link.
    Settings,
    /// The pooler, which cleans up: an error is the end of the server.
    Cleaning,
}

/// Requests in order, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Owed {
    entries: VecDeque<Entry>,
}

impl Owed {
    #[inline]
    pub(crate) fn push(&mut self, request: Request) {
        self.push_for(Audience::Client, request);
    }

    #[inline]
    pub(crate) fn push_for(&mut self, audience: Audience, request: Request) {
        self.entries.push_back(Entry { request, audience });
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<&Entry> {
        self.entries.front()
    }

    /// Takes the oldest, and the ends of COPY behind it, which nothing answers.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front();
        while self.front().is_some_and(|entry| matches!(entry.request, Request::CopyEnd)) {
            self.entries.pop_front();
        }
        entry
    }

    /// The reply to the oldest, if that is for the pooler to give; it counts as answered.
    #[inline]
    pub(crate) fn answer_here(&mut self) -> Option<[u8; 5]> {
        let reply = self.front()?.request.reply_here()?;
        self.pop();
        Some(reply)
    }

    /// Takes back what a server in a failed batch does not look at, all before the next Sync, and
    /// gives what to undo, the latest first, to `undo`. Gives whether there is a Sync.
    pub(crate) fn skip_to_sync(&mut self, undo: impl FnMut(Undo)) -> bool {
        let is_sync = |entry: &Entry| matches!(entry.request, Request::Sync);
        let sync = self.entries.iter().position(is_sync);
        let skipped = self.entries.drain(..sync.unwrap_or(self.entries.len()));
        skipped.rev().filter_map(Entry::into_undo).for_each(undo);
        sync.is_some()
    }

    /// Takes back the Syncs that a server swallows because it waits for COPY data: those behind the
    /// oldest request, up to the end of the COPY. Gives whether that end was sent already.
    pub(crate) fn drop_syncs_in_copy(&mut self) -> bool {
        while let Some(entry) = self.entries.get(1) {
            match entry.request {
                Request::CopyEnd => return true,
                Request::Sync => {
                    self.entries.remove(1);
                }
                _ => return false,
            }
        }
        false
    }
}
