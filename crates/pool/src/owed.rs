//! [`OutstandingRequests`]: what a server has been asked and has not answered, in order.
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
    Parse(Option<Box<RollbackAction>>),
    /// A Parse by a name that the client has used already: the server is made to find that out, so
    /// that the error has its place; the name is for the words.
    ParseAgain(Box<[u8]>),
    /// Answered by BindComplete. With the id of the shared statement, or 0.
    Bind(u64),
    /// Answered by RowDescription or NoData, after ParameterDescription for a statement. With the id of
    /// the shared statement, or 0.
    Describe(u64),
    /// Answered by rows, then CommandComplete, EmptyQueryResponse or PortalSuspended.
    Execute,
    /// Answered by CloseComplete.
    Close(Option<Box<RollbackAction>>),
    /// CopyDone or CopyFail: not answered, but it ends the time in which Sync is not answered either.
    CopyEnd,
    /// A Parse of what the server holds already: the pooler answers.
    ParseHere(Box<RollbackAction>),
    /// A Close of a client's name: the pooler answers.
    CloseHere(Option<Box<RollbackAction>>),
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
pub(crate) enum RollbackAction {
    /// The client has the name.
    Named(Box<[u8]>),
    /// The client has the name, and the server holds the statement of this id.
    NamedAndHeld(Box<[u8]>, u64),
    /// The server holds it.
    Held(u64),
    /// The client has the name no more.
    Closed(Box<[u8]>, Arc<Statement>),
    /// The server holds it no more.
    Evicted(u64),
    /// The client has another unnamed statement, or none. A Parse that failed has ended the one before
    /// it, one that was skipped has not.
    Unnamed(UnnamedBefore),
}

/// The unnamed statement that a client had before a request.
#[derive(Debug)]
pub(crate) enum UnnamedBefore {
    /// Does not matter, because the request is the first of its batch and cannot be skipped.
    Any,
    /// The one of this text; none if it is empty.
    Text(Vec<u8>),
}

impl RollbackAction {
    /// Whether it is not known yet if a client has a statement of this name, or the server the one of
    /// this id.
    fn concerns(&self, name: &[u8], id: u64) -> bool {
        match self {
            Self::Named(its) => **its == *name,
            Self::NamedAndHeld(its, its_id) => **its == *name || *its_id == id,
            Self::Closed(its, statement) => **its == *name || statement.id == id,
            Self::Held(its_id) | Self::Evicted(its_id) => *its_id == id,
            Self::Unnamed(_) => false,
        }
    }
}

/// An entry of the queue.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) request: Request,
    pub(crate) audience: ReplyTarget,
}

impl Entry {
    /// What has to be taken back if the request failed or the server never looked at it.
    fn into_undo(self) -> Option<RollbackAction> {
        match self.request {
            Request::Parse(None) if self.audience == ReplyTarget::Client => {
                Some(RollbackAction::Unnamed(UnnamedBefore::Any))
            }
            Request::Parse(undo) | Request::Close(undo) | Request::CloseHere(undo) => {
                undo.map(|undo| *undo)
            }
            Request::ParseHere(undo) => Some(*undo),
            _ => None,
        }
    }

    /// Whether ReadyForQuery answers it.
    fn ends(&self) -> bool {
        matches!(self.request, Request::Query(_) | Request::Function | Request::Sync)
    }

    /// What it leaves in doubt until it is answered.
    fn doubt(&self) -> Option<&RollbackAction> {
        match &self.request {
            Request::Parse(undo) | Request::Close(undo) | Request::CloseHere(undo) => {
                undo.as_deref()
            }
            Request::ParseHere(undo) => Some(undo),
            _ => None,
        }
    }
}

/// Whom a reply is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyTarget {
    /// The client that the server is linked to.
    Client,
    /// The pooler, which asked on behalf of a request of the client behind it: an error is as good as
    /// that request's.
    Pooler,
    /// The pooler, which sets what the client is to find: an error is the end of the link.
    Settings,
    /// The pooler, which begins a transaction that its client was told has begun: an error is the end of
    /// the link.
    Begin,
    /// The pooler, which gives back what the client began with, after a RESET: the client has been
    /// told that all is well.
    PutBack,
    /// The pooler, which asks what the server listens to, when a transaction has ended that did something
    /// about that: an error is the end of the link.
    Listens,
    /// The pooler, which finds out or changes for a moment what statements are parsed under: an error is as
    /// good as that of the request behind it, or in a batch of its own the end of the link.
    ParseSettings,
    /// The pooler, which cleans up: an error is the end of the server.
    Cleaning,
}

/// Requests in order, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct OutstandingRequests {
    entries: VecDeque<Entry>,
    /// How many entries leave something in doubt that matters to what is sent now: those of batches
    /// that have ended. In its own batch, what comes behind a request that fails is skipped anyway.
    doubts: usize,
    /// The same of the batch that is open.
    doubts_here: usize,
}

impl OutstandingRequests {
    #[inline]
    pub(crate) fn push(&mut self, request: Request) {
        self.push_for(ReplyTarget::Client, request);
    }

    #[inline]
    pub(crate) fn push_for(&mut self, audience: ReplyTarget, request: Request) {
        let entry = Entry { request, audience };
        self.doubts_here += usize::from(entry.doubt().is_some());
        if matches!(entry.request, Request::Sync) {
            self.doubts += std::mem::take(&mut self.doubts_here);
        }
        self.entries.push_back(entry);
    }

    /// Whether it depends on answers to come if the client has a statement of this name, or the server
    /// the one of this id.
    pub(crate) fn leaves_in_doubt(&self, name: &[u8], id: u64) -> bool {
        self.doubts().any(|undo| undo.concerns(name, id))
    }

    /// Whether it depends on answers to come which unnamed statement the client has.
    pub(crate) fn leaves_unnamed_in_doubt(&self) -> bool {
        self.doubts().any(|undo| matches!(undo, RollbackAction::Unnamed(_)))
    }

    fn doubts(&self) -> impl Iterator<Item = &RollbackAction> {
        let entries = self.entries.iter().take(if self.doubts == 0 { 0 } else { usize::MAX });
        entries.filter_map(Entry::doubt).take(self.doubts)
    }

    /// Whether the status of the transaction will be told, or has failed, before what is sent now is
    /// looked at.
    pub(crate) fn awaits_status(&self) -> bool {
        self.entries.iter().any(|entry| entry.ends() && entry.audience != ReplyTarget::Settings)
    }

    /// Whether the batch or query that is being answered is the last.
    pub(crate) fn is_at_last(&self) -> bool {
        self.entries.iter().filter(|entry| entry.ends()).count() <= 1
    }

    /// Whether the batch that is being answered is one of the pooler's own, with this audience.
    pub(crate) fn is_batch_for(&self, audience: ReplyTarget) -> bool {
        self.entries.iter().find(|entry| entry.ends()).is_some_and(|end| end.audience == audience)
    }

    /// Whether there is one request only.
    pub(crate) fn is_single(&self) -> bool {
        self.entries.len() == 1
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
    pub(crate) fn pop(&mut self) {
        let Some(entry) = self.entries.pop_front() else { return };
        if self.doubts + self.doubts_here > 0 && entry.doubt().is_some() {
            let doubts = if self.doubts > 0 { &mut self.doubts } else { &mut self.doubts_here };
            *doubts -= 1;
        }
        while self.front().is_some_and(|entry| matches!(entry.request, Request::CopyEnd)) {
            self.entries.pop_front();
        }
    }

    /// The reply to the oldest, if that is for the pooler to give; it counts as answered.
    #[inline]
    pub(crate) fn answer_here(&mut self) -> Option<[u8; 5]> {
        let reply = self.front()?.request.reply_here()?;
        self.pop();
        Some(reply)
    }

    /// Takes back the oldest, which has failed, and what a server does not look at after that, all
    /// before the next Sync; gives what to undo to `undo`, the latest first, and whether it is of the
    /// one that failed. Gives whether there is a Sync.
    pub(crate) fn skip_to_sync(&mut self, mut undo: impl FnMut(RollbackAction, bool)) -> bool {
        let is_sync = |entry: &Entry| matches!(entry.request, Request::Sync);
        let sync = self.entries.iter().position(is_sync);
        let skipped = self.entries.drain(..sync.unwrap_or(self.entries.len())).enumerate().rev();
        for (at, entry) in skipped {
            if let Some(found) = entry.into_undo() {
                undo(found, at == 0);
            }
        }
        self.count_doubts();
        sync.is_some()
    }

    /// Tells the next request that changes the unnamed statement what that was before it, if there is
    /// one still to be answered; else gives the text back, for the client to have it.
    pub(crate) fn unnamed_is(&mut self, text: Vec<u8>) -> Option<Vec<u8>> {
        for entry in self.entries.iter_mut().filter(|entry| entry.audience == ReplyTarget::Client) {
            match &mut entry.request {
                Request::Parse(None) | Request::Query(_) => return None,
                Request::Parse(Some(undo)) | Request::Close(Some(undo)) => {
                    if let RollbackAction::Unnamed(before) = &mut **undo {
                        *before = UnnamedBefore::Text(text);
                        return None;
                    }
                }
                _ => {}
            }
        }
        Some(text)
    }

    /// Whether anything of it is asked for by the client.
    pub(crate) fn is_for_client(&self) -> bool {
        let is = |audience| {
            matches!(
                audience,
                ReplyTarget::Client | ReplyTarget::Pooler | ReplyTarget::ParseSettings
            )
        };
        self.entries.iter().any(|entry| is(entry.audience))
    }

    /// How many messages of the batch that is being answered the server has yet to look at behind the
    /// one it looks at now, up to Sync; `None` if the batch has none or is not the last.
    pub(crate) fn behind_in_last_batch(&self) -> Option<usize> {
        let end = self.entries.iter().position(Entry::ends)?;
        let is_asked = |entry: &&Entry| entry.request.reply_here().is_none();
        let is_last =
            end + 1 == self.entries.len() && matches!(self.entries[end].request, Request::Sync);
        is_last.then(|| self.entries.iter().take(end).skip(1).filter(is_asked).count())
    }

    /// The batch that is being answered is sent again, behind these requests of the pooler's.
    pub(crate) fn again_behind<const N: usize>(&mut self, requests: [Request; N]) {
        for request in requests.into_iter().rev() {
            self.entries.push_front(Entry { request, audience: ReplyTarget::Pooler });
        }
        self.count_doubts();
    }

    /// Whether all that is owed is one request of the client's, with what the pooler asked on its behalf before.
    pub(crate) fn is_one_request(&self) -> bool {
        let is_of_client = |entry: &&Entry| entry.ends() && entry.audience == ReplyTarget::Client;
        let fits = |entry: &Entry| {
            matches!(
                entry.audience,
                ReplyTarget::Client | ReplyTarget::Pooler | ReplyTarget::Settings
            )
        };
        self.entries.iter().filter(is_of_client).count() == 1
            && self.entries.back().as_ref().is_some_and(is_of_client)
            && self.entries.iter().all(fits)
    }

    /// Whether nothing of the client's is owed, but what sets its settings.
    pub(crate) fn is_settings_only(&self) -> bool {
        let is_setting = |entry: &Entry| entry.audience == ReplyTarget::Settings;
        !self.entries.is_empty() && self.entries.iter().all(is_setting)
    }

    /// Whether nothing of the client's is owed, but what sets its settings or finds out what is in force.
    pub(crate) fn is_preparation_only(&self) -> bool {
        let prepares = |entry: &Entry| {
            matches!(entry.audience, ReplyTarget::Settings | ReplyTarget::ParseSettings)
        };
        !self.entries.is_empty() && self.entries.iter().all(prepares)
    }

    /// Nobody waits for what is owed any more: whatever comes is swallowed, up to its end. Gives what was assumed of
    /// it, the latest first.
    pub(crate) fn give_up(&mut self) -> Vec<RollbackAction> {
        let ends = self.entries.iter().filter(|entry| entry.ends()).count();
        let undone = self.entries.drain(..).rev().filter_map(Entry::into_undo).collect();
        let swallowed = |_| Entry {
            request: Request::Query(SetKind::Lasting),
            audience: ReplyTarget::Cleaning,
        };
        self.entries.extend((0..ends).map(swallowed));
        self.count_doubts();
        undone
    }

    fn count_doubts(&mut self) {
        let sync = self.entries.iter().rposition(|entry| matches!(entry.request, Request::Sync));
        let count = |entries: &mut dyn Iterator<Item = &Entry>| {
            entries.filter(|entry| entry.doubt().is_some()).count()
        };
        let ended = sync.map_or(0, |at| at + 1);
        self.doubts = count(&mut self.entries.iter().take(ended));
        self.doubts_here = count(&mut self.entries.iter().skip(ended));
    }

    /// Takes back the Syncs that a server swallows because it waits for COPY data: those behind the
    /// oldest request, up to the end of the COPY. Gives whether that end was sent already.
    pub(crate) fn drop_syncs_in_copy(&mut self) -> bool {
        let mut has_ended = false;
        while let Some(entry) = self.entries.get(1) {
            match entry.request {
                Request::Sync => drop(self.entries.remove(1)),
                Request::CopyEnd => {
                    has_ended = true;
                    break;
                }
                _ => break,
            }
        }
        self.count_doubts();
        has_ended
    }
}
