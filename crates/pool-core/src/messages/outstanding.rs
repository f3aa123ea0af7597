//! [`OutstandingRequests`]: the requests that a server has not answered yet, in order.
//!
//! Replies have no ids: only their order shows which request each of them answers. The pooler adds
//! requests of its own, whose replies are discarded. It answers requests that it has not sent to
//! the server as soon as all earlier ones are answered.

use std::{collections::VecDeque, sync::Arc};

use crate::{prepared::statements::PooledStatement, session::state::SetKind};

/// The kind of an outstanding request, with the state needed to handle its reply.
#[derive(Debug)]
pub(crate) enum RequestKind {
    /// Answered by any messages, then ReadyForQuery.
    Query(SetKind),
    /// Answered by FunctionCallResponse or an error, then ReadyForQuery.
    FunctionCall,
    /// Answered by ReadyForQuery.
    Sync,
    /// Answered by ParseComplete. Contains the change to roll back if it fails or is skipped.
    Parse(Option<Box<RollbackAction>>),
    /// A Parse with a name that the client already uses. The server rejects it, so that the error
    /// comes in the right order. Contains the client's name, for the error text.
    DuplicateParse(Box<[u8]>),
    /// Answered by BindComplete. Contains the id of the shared statement, or 0.
    Bind(u64),
    /// Answered by RowDescription or NoData, after ParameterDescription for a statement. Contains
    /// the id of the shared statement, or 0.
    Describe(u64),
    /// Answered by rows, then CommandComplete, EmptyQueryResponse or PortalSuspended.
    Execute,
    /// Answered by CloseComplete. Contains the change to roll back if it is skipped.
    Close(Option<Box<RollbackAction>>),
    /// CopyDone or CopyFail. It has no reply of its own, but ends the COPY, during which a server
    /// ignores Sync.
    CopyEnd,
    /// A Parse of a statement that the server already has: the pooler answers it.
    LocalParse(Box<RollbackAction>),
    /// A Close of one of the client's statement names: the pooler answers it.
    LocalClose(Option<Box<RollbackAction>>),
}

impl RequestKind {
    /// Returns the reply to a request that the pooler answers: ParseComplete or CloseComplete.
    pub(crate) fn local_reply(&self) -> Option<[u8; 5]> {
        match self {
            Self::LocalParse(_) => Some(*b"1\0\0\0\x04"),
            Self::LocalClose(_) => Some(*b"3\0\0\0\x04"),
            _ => None,
        }
    }
}

/// The action that rolls back the change recorded when a request was sent, if the request fails or
/// is skipped. The comments of the variants describe the change.
#[derive(Debug)]
pub(crate) enum RollbackAction {
    /// The name was added for the client.
    RemoveName(Box<[u8]>),
    /// The name was added for the client, and the statement with this id for the server.
    RemoveNameAndStatement(Box<[u8]>, u64),
    /// The statement with this id was added for the server.
    RemoveStatement(u64),
    /// The client's name for this statement was removed.
    RestoreName(Box<[u8]>, Arc<PooledStatement>),
    /// The statement with this id was removed for the server.
    RestoreStatement(u64),
    /// The client's unnamed statement was replaced or closed. A failed Parse has removed the
    /// previous one; a skipped Parse has not.
    RestoreUnnamed(PreviousUnnamed),
}

/// The unnamed statement that a client had before a request.
#[derive(Debug)]
pub(crate) enum PreviousUnnamed {
    /// Not recorded, because the request is the first of its batch and cannot be skipped, or
    /// because statement names are not rewritten.
    Any,
    /// The statement with this text; if the text is empty, the client had none.
    Text(Vec<u8>),
}

impl RollbackAction {
    /// Whether this changes the client's statement `name` or the server's statement `id`.
    fn concerns(&self, name: &[u8], id: u64) -> bool {
        match self {
            Self::RemoveName(its) => **its == *name,
            Self::RemoveNameAndStatement(its, its_id) => **its == *name || *its_id == id,
            Self::RestoreName(its, statement) => **its == *name || statement.id == id,
            Self::RemoveStatement(its_id) | Self::RestoreStatement(its_id) => *its_id == id,
            Self::RestoreUnnamed(_) => false,
        }
    }
}

/// A request in the queue of [`OutstandingRequests`].
#[derive(Debug)]
pub(crate) struct OutstandingRequest {
    pub(crate) kind: RequestKind,
    pub(crate) target: ReplyTarget,
}

impl OutstandingRequest {
    /// Returns the change to roll back if the request failed or was skipped.
    fn into_rollback(self) -> Option<RollbackAction> {
        match self.kind {
            RequestKind::Parse(None) if self.target == ReplyTarget::Client => {
                Some(RollbackAction::RestoreUnnamed(PreviousUnnamed::Any))
            }
            RequestKind::Parse(rollback)
            | RequestKind::Close(rollback)
            | RequestKind::LocalClose(rollback) => rollback.map(|rollback| *rollback),
            RequestKind::LocalParse(rollback) => Some(*rollback),
            _ => None,
        }
    }

    /// Whether the request is answered by ReadyForQuery.
    fn ends_batch(&self) -> bool {
        matches!(self.kind, RequestKind::Query(_) | RequestKind::FunctionCall | RequestKind::Sync)
    }

    /// Returns the change to roll back if the request fails or is skipped; until its reply arrives,
    /// the change is uncertain.
    fn rollback(&self) -> Option<&RollbackAction> {
        match &self.kind {
            RequestKind::Parse(rollback)
            | RequestKind::Close(rollback)
            | RequestKind::LocalClose(rollback) => rollback.as_deref(),
            RequestKind::LocalParse(rollback) => Some(rollback),
            _ => None,
        }
    }
}

/// The recipient of a reply, and with it the purpose of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyTarget {
    /// The client that the server is linked to.
    Client,
    /// The pooler, which prepares the client's next request, or rolls back a batch that the client
    /// left unfinished: an error is treated as an error of that request.
    Pooler,
    /// The pooler, which sets the client's session parameters: an error disconnects client and
    /// server.
    Parameters,
    /// The pooler, which sends a BEGIN that it has already reported to the client as successful: an
    /// error disconnects client and server.
    Begin,
    /// The pooler, which restores the client's startup parameters after a RESET that was already
    /// reported as successful: an error is ignored.
    RestoreParameters,
    /// The pooler, which queries the server's LISTEN channels after a transaction that contained
    /// LISTEN or UNLISTEN: an error disconnects client and server.
    ListeningChannels,
    /// The pooler, which asks the server whether its session has state that cannot follow the
    /// client: after an error it asks again.
    SessionState,
    /// The pooler, which queries or temporarily changes the parse settings: an error is treated as
    /// an error of the client's next request or, in a batch of the pooler's own, disconnects client
    /// and server.
    ParseSettings,
    /// The pooler, which resets or checks a server without a client, or has withdrawn the client's
    /// request from the server: an error closes the server connection.
    Cleaning,
}

/// The unanswered requests of one server connection, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct OutstandingRequests {
    entries: VecDeque<OutstandingRequest>,
    /// Number of requests with a rollback action in batches that have ended. Only these make later
    /// messages ambiguous: within the open batch, a failure also skips all later requests.
    rollbacks_in_ended: usize,
    /// Number of requests with a rollback action in the open batch.
    rollbacks_in_open: usize,
}

impl OutstandingRequests {
    #[inline]
    pub(crate) fn push(&mut self, request: RequestKind) {
        self.push_for(ReplyTarget::Client, request);
    }

    #[inline]
    pub(crate) fn push_for(&mut self, target: ReplyTarget, request: RequestKind) {
        let entry = OutstandingRequest { kind: request, target };
        self.rollbacks_in_open += usize::from(entry.rollback().is_some());
        if matches!(entry.kind, RequestKind::Sync) {
            self.rollbacks_in_ended += std::mem::take(&mut self.rollbacks_in_open);
        }
        self.entries.push_back(entry);
    }

    /// Whether outstanding replies decide if the client has the statement `name`, or if the server
    /// has the statement `id`.
    pub(crate) fn is_ambiguous(&self, name: &[u8], id: u64) -> bool {
        self.pending_rollbacks().any(|rollback| rollback.concerns(name, id))
    }

    /// Whether outstanding replies decide which unnamed statement the client has.
    pub(crate) fn is_unnamed_ambiguous(&self) -> bool {
        self.pending_rollbacks()
            .any(|rollback| matches!(rollback, RollbackAction::RestoreUnnamed(_)))
    }

    fn pending_rollbacks(&self) -> impl Iterator<Item = &RollbackAction> {
        let entries =
            self.entries.iter().take(if self.rollbacks_in_ended == 0 { 0 } else { usize::MAX });
        entries.filter_map(OutstandingRequest::rollback).take(self.rollbacks_in_ended)
    }

    /// Whether an outstanding request may change the transaction status before the server processes
    /// a message sent now, so that the current status is not reliable.
    pub(crate) fn awaits_status(&self) -> bool {
        self.entries
            .iter()
            .any(|entry| entry.ends_batch() && entry.target != ReplyTarget::Parameters)
    }

    /// Whether no request follows the batch or query that is being answered.
    pub(crate) fn is_last_batch(&self) -> bool {
        self.entries.iter().skip_while(|entry| !entry.ends_batch()).count() <= 1
    }

    /// Whether the batch being answered was sent by the pooler for this target.
    pub(crate) fn is_batch_for(&self, target: ReplyTarget) -> bool {
        self.entries.iter().find(|entry| entry.ends_batch()).is_some_and(|end| end.target == target)
    }

    /// Whether exactly one request is outstanding.
    pub(crate) fn is_single(&self) -> bool {
        self.entries.len() == 1
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<&OutstandingRequest> {
        self.entries.front()
    }

    /// Removes the oldest request, and any [`RequestKind::CopyEnd`] right after it, which has no
    /// reply.
    #[inline]
    pub(crate) fn pop(&mut self) {
        let Some(entry) = self.entries.pop_front() else { return };
        if self.rollbacks_in_ended + self.rollbacks_in_open > 0 && entry.rollback().is_some() {
            let count = if self.rollbacks_in_ended > 0 {
                &mut self.rollbacks_in_ended
            } else {
                &mut self.rollbacks_in_open
            };
            *count -= 1;
        }
        while self.front().is_some_and(|entry| matches!(entry.kind, RequestKind::CopyEnd)) {
            self.entries.pop_front();
        }
    }

    /// Removes the oldest request if the pooler answers it, and returns the reply.
    #[inline]
    pub(crate) fn pop_local_reply(&mut self) -> Option<[u8; 5]> {
        let reply = self.front()?.kind.local_reply()?;
        self.pop();
        Some(reply)
    }

    /// Removes the oldest request, which has failed, and those that the server skips after it, up
    /// to the next Sync. Passes their rollback actions to `rollback`, the latest first; the flag is
    /// `true` for the failed request. Returns whether there is a Sync.
    pub(crate) fn skip_to_sync(&mut self, mut rollback: impl FnMut(RollbackAction, bool)) -> bool {
        let is_sync = |entry: &OutstandingRequest| matches!(entry.kind, RequestKind::Sync);
        let sync = self.entries.iter().position(is_sync);
        let skipped = self.entries.drain(..sync.unwrap_or(self.entries.len())).enumerate().rev();
        for (at, entry) in skipped {
            if let Some(action) = entry.into_rollback() {
                rollback(action, at == 0);
            }
        }
        self.recount_rollbacks();
        sync.is_some()
    }

    /// Stores the text of the previous unnamed statement in the next outstanding request that
    /// replaces that statement, unless this request cannot be rolled back. If no outstanding
    /// request replaces the statement, returns the text, to be restored for the client.
    pub(crate) fn set_previous_unnamed(&mut self, text: Vec<u8>) -> Option<Vec<u8>> {
        for entry in self.entries.iter_mut().filter(|entry| entry.target == ReplyTarget::Client) {
            match &mut entry.kind {
                RequestKind::Parse(None) | RequestKind::Query(_) => return None,
                RequestKind::Parse(Some(rollback)) | RequestKind::Close(Some(rollback)) => {
                    if let RollbackAction::RestoreUnnamed(before) = &mut **rollback {
                        *before = PreviousUnnamed::Text(text);
                        return None;
                    }
                }
                _ => {}
            }
        }
        Some(text)
    }

    /// Whether any outstanding request was sent by the client, or by the pooler to prepare the
    /// client's request. Requests that set its parameters or send its BEGIN do not count.
    pub(crate) fn is_for_client(&self) -> bool {
        let is = |target| {
            matches!(target, ReplyTarget::Client | ReplyTarget::Pooler | ReplyTarget::ParseSettings)
        };
        self.entries.iter().any(|entry| is(entry.target))
    }

    /// Returns how many messages of the batch being answered follow the current one, up to but not
    /// including Sync; messages that the pooler answers do not count. Returns `None` if the batch
    /// has no Sync or is not the last.
    pub(crate) fn remaining_in_last_batch(&self) -> Option<usize> {
        let end = self.entries.iter().position(OutstandingRequest::ends_batch)?;
        let is_sent = |entry: &&OutstandingRequest| entry.kind.local_reply().is_none();
        let is_last =
            end + 1 == self.entries.len() && matches!(self.entries[end].kind, RequestKind::Sync);
        is_last.then(|| self.entries.iter().take(end).skip(1).filter(is_sent).count())
    }

    /// Adds requests of the pooler at the front of the queue, before the batch being answered,
    /// which is sent again after them.
    pub(crate) fn prepend_retry<const N: usize>(&mut self, requests: [RequestKind; N]) {
        for request in requests.into_iter().rev() {
            self.entries
                .push_front(OutstandingRequest { kind: request, target: ReplyTarget::Pooler });
        }
        self.recount_rollbacks();
    }

    /// Whether exactly one batch or query of the client is outstanding, preceded only by requests
    /// of the pooler that prepare it.
    pub(crate) fn is_single_client_request(&self) -> bool {
        let is_of_client =
            |entry: &&OutstandingRequest| entry.ends_batch() && entry.target == ReplyTarget::Client;
        let fits = |entry: &OutstandingRequest| {
            matches!(
                entry.target,
                ReplyTarget::Client | ReplyTarget::Pooler | ReplyTarget::Parameters
            )
        };
        self.entries.iter().filter(is_of_client).count() == 1
            && self.entries.back().as_ref().is_some_and(is_of_client)
            && self.entries.iter().all(fits)
    }

    /// Whether only requests that set the client's parameters are outstanding.
    pub(crate) fn is_parameters_only(&self) -> bool {
        let is_setting = |entry: &OutstandingRequest| entry.target == ReplyTarget::Parameters;
        !self.entries.is_empty() && self.entries.iter().all(is_setting)
    }

    /// Whether only requests that set the client's parameters or query the parse settings are
    /// outstanding.
    pub(crate) fn is_preparation_only(&self) -> bool {
        let is_preparation = |entry: &OutstandingRequest| {
            matches!(entry.target, ReplyTarget::Parameters | ReplyTarget::ParseSettings)
        };
        !self.entries.is_empty() && self.entries.iter().all(is_preparation)
    }

    /// Abandons all requests: their replies will be discarded. Returns their rollback actions, the
    /// latest first.
    pub(crate) fn abandon(&mut self) -> Vec<RollbackAction> {
        let ends = self.entries.iter().filter(|entry| entry.ends_batch()).count();
        let rollbacks =
            self.entries.drain(..).rev().filter_map(OutstandingRequest::into_rollback).collect();
        let discarded = |_| OutstandingRequest {
            kind: RequestKind::Query(SetKind::NeedsReset),
            target: ReplyTarget::Cleaning,
        };
        self.entries.extend((0..ends).map(discarded));
        self.recount_rollbacks();
        rollbacks
    }

    fn recount_rollbacks(&mut self) {
        let sync = self.entries.iter().rposition(|entry| matches!(entry.kind, RequestKind::Sync));
        let count = |entries: &mut dyn Iterator<Item = &OutstandingRequest>| {
            entries.filter(|entry| entry.rollback().is_some()).count()
        };
        let ended = sync.map_or(0, |at| at + 1);
        self.rollbacks_in_ended = count(&mut self.entries.iter().take(ended));
        self.rollbacks_in_open = count(&mut self.entries.iter().skip(ended));
    }

    /// Removes the Syncs that a server ignores because it waits for COPY data: those after the
    /// oldest request, up to the end of the COPY. Returns whether that end was already sent.
    pub(crate) fn drop_syncs_in_copy(&mut self) -> bool {
        let mut has_ended = false;
        while let Some(entry) = self.entries.get(1) {
            match entry.kind {
                RequestKind::Sync => drop(self.entries.remove(1)),
                RequestKind::CopyEnd => {
                    has_ended = true;
                    break;
                }
                _ => break,
            }
        }
        self.recount_rollbacks();
        has_ended
    }
}
