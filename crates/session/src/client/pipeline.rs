//! Tracks outstanding requests, and the request that each message answers.

use std::collections::VecDeque;

use howdah_wire::Backend;

use crate::SessionError;

/// Identifies a request within its connection. Later requests have greater ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(u64);

/// A kind of request that the server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Request {
    /// Prepares a statement.
    Parse,
    /// Creates a portal.
    Bind,
    /// Requests the description of a prepared statement.
    DescribeStatement,
    /// Requests the description of a portal.
    DescribePortal,
    /// Runs a portal.
    Execute,
    /// Closes a prepared statement or a portal.
    Close,
    /// Ends a batch.
    Sync,
    /// Runs statements with the simple query protocol.
    Query,
    /// Calls a function by its OID.
    FunctionCall,
    /// Ends the client's COPY data. The server answers it by ending the COPY statement.
    CopyEnd,
}

impl Request {
    /// Whether the request is completed by ReadyForQuery.
    fn is_completed_by_ready(self) -> bool {
        matches!(self, Self::Sync | Self::Query | Self::FunctionCall)
    }
}

/// Maximum capacity that an empty queue retains, in requests.
const RETAINED_REQUESTS: usize = 32;

/// The state of a COPY from the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CopyInState {
    #[default]
    None,
    /// The server waits for data whose end has not been sent.
    Open,
    /// The end of the data has been sent.
    Ended,
}

/// A queue of requests, answered in order.
///
/// After an error in a batch the server discards everything up to the next Sync (including
/// Queries). Those requests leave the queue immediately, and until a Sync is sent, later ones do
/// not enter it.
#[derive(Debug, Default)]
pub(super) struct Pipeline {
    outstanding: VecDeque<(RequestId, Request)>,
    pending_ready: usize,
    next: u64,
    /// Whether the server discards messages until a Sync that has not been sent yet.
    skipping: bool,
    /// Whether a Sync must still be sent to end the current batch.
    batch_open: bool,
    copy_in: CopyInState,
}

impl Pipeline {
    /// Assigns an id to a sent request, and queues it unless the server will skip or ignore it.
    pub(super) fn sent(&mut self, request: Request) -> RequestId {
        let id = RequestId(self.next);
        self.next += 1;
        if request == Request::CopyEnd && self.copy_in == CopyInState::Open {
            self.copy_in = CopyInState::Ended;
        }
        if request == Request::Sync {
            self.skipping = false;
        }
        // The server ignores an end of COPY data if no statement can be waiting for it.
        if !(self.skipping || request == Request::CopyEnd && self.outstanding.is_empty()) {
            self.outstanding.push_back((id, request));
            self.pending_ready += usize::from(request.is_completed_by_ready());
        }
        if request != Request::CopyEnd {
            self.batch_open = !request.is_completed_by_ready();
        }
        id
    }

    /// Whether the server is in a COPY from the client whose end has not been sent: it then ignores
    /// a Sync.
    pub(super) fn ignores_sync(&self) -> bool {
        self.copy_in == CopyInState::Open
    }

    /// Assigns an id to a request that is not sent at all.
    pub(super) fn unsent(&mut self) -> RequestId {
        let id = RequestId(self.next);
        self.next += 1;
        id
    }

    pub(super) fn is_idle(&self) -> bool {
        self.outstanding.is_empty() && !self.batch_open && !self.skipping
    }

    pub(super) fn has_open_batch(&self) -> bool {
        self.batch_open
    }

    pub(super) fn pending_ready_count(&self) -> usize {
        self.pending_ready
    }

    pub(super) fn outstanding(&self) -> impl Iterator<Item = (RequestId, Request)> + '_ {
        self.outstanding.iter().copied()
    }

    /// Handles a message as part of the reply to the oldest request, which it may complete. Returns
    /// that request; `None` for an error that arrives while no request is outstanding.
    ///
    /// # Errors
    ///
    /// The message is not a valid reply to the oldest request, or no request is outstanding.
    pub(super) fn handle_reply(
        &mut self,
        message: Backend,
    ) -> Result<Option<RequestId>, SessionError> {
        use Request::{
            Bind, Close, DescribePortal, DescribeStatement, Execute, FunctionCall, Parse,
        };
        let Some(&(id, request)) = self.outstanding.front() else {
            return match message {
                // The server may send an error and end the session at any time; see
                // `SessionEvent::Error`.
                Backend::ErrorResponse => Ok(None),
                _ => Err(SessionError::Unexpected {
                    message,
                    state: "while no reply is outstanding",
                }),
            };
        };
        match (message, request) {
            (Backend::ParseComplete, Parse)
            | (Backend::BindComplete, Bind)
            | (Backend::CloseComplete, Close)
            | (Backend::RowDescription | Backend::NoData, DescribeStatement | DescribePortal)
            | (Backend::EmptyQueryResponse | Backend::PortalSuspended, Execute) => self.pop(),
            (Backend::CommandComplete, Execute) => {
                self.copy_in = CopyInState::None;
                self.pop();
            }
            // A Query may hold several statements, so only ReadyForQuery completes it.
            (Backend::CommandComplete, Request::Query) => self.copy_ended(),
            (Backend::CopyInResponse, Execute | Request::Query) => self.copy_began(request),
            // First or middle messages of a reply: the request stays at the front of the queue.
            (Backend::ParameterDescription, DescribeStatement)
            | (Backend::FunctionCallResponse, FunctionCall)
            | (Backend::RowDescription | Backend::EmptyQueryResponse, Request::Query)
            | (
                Backend::DataRow
                | Backend::CopyOutResponse
                | Backend::CopyBothResponse
                | Backend::CopyData
                | Backend::CopyDone,
                Execute | Request::Query,
            ) => {}
            // After an error the server skips to the next Sync and answers none of the requests
            // before it.
            (Backend::ErrorResponse, _) => self.failed(request),
            (Backend::ReadyForQuery, request) if request.is_completed_by_ready() => self.ready(),
            (message, request) => {
                return Err(SessionError::Unexpected { message, state: waiting_for(request) });
            }
        }
        Ok(Some(id))
    }

    /// Called when a statement of a Query has finished. If it was a COPY, its data has ended; the
    /// next statement may start another.
    fn copy_ended(&mut self) {
        let ended = std::mem::take(&mut self.copy_in) != CopyInState::None;
        if ended && let Some((_, Request::CopyEnd)) = self.outstanding.get(1) {
            self.outstanding.remove(1);
        }
    }

    /// Called when the server waits for COPY data. The server ignores Syncs that it reads before
    /// the end of the data: `CopyGetData` in `copyfromparse.c`.
    fn copy_began(&mut self, request: Request) {
        while let Some((_, Request::Sync)) = self.outstanding.get(1) {
            self.outstanding.remove(1);
            self.pending_ready -= 1;
            self.batch_open |= request == Request::Execute;
        }
        self.copy_in = match self.outstanding.get(1) {
            Some((_, Request::CopyEnd)) => CopyInState::Ended,
            _ => CopyInState::Open,
        };
    }

    fn failed(&mut self, request: Request) {
        self.copy_in = CopyInState::None;
        if request.is_completed_by_ready() {
            return;
        }
        while !matches!(self.outstanding.front(), None | Some((_, Request::Sync))) {
            self.pop();
        }
        self.skipping = self.outstanding.is_empty();
    }

    fn ready(&mut self) {
        self.copy_in = CopyInState::None;
        self.pop();
    }

    /// Completes the oldest request, and with it the end of COPY data after it, which the server
    /// ignores if it arrives too late.
    fn pop(&mut self) {
        if let Some((_, request)) = self.outstanding.pop_front() {
            self.pending_ready -= usize::from(request.is_completed_by_ready());
        }
        while let Some((_, Request::CopyEnd)) = self.outstanding.front() {
            self.outstanding.pop_front();
        }
        if self.outstanding.is_empty() && self.outstanding.capacity() > RETAINED_REQUESTS {
            self.outstanding = VecDeque::new();
        }
    }
}

fn waiting_for(request: Request) -> &'static str {
    match request {
        Request::Parse => "while waiting for the reply to Parse",
        Request::Bind => "while waiting for the reply to Bind",
        Request::DescribeStatement | Request::DescribePortal => {
            "while waiting for the reply to Describe"
        }
        Request::Execute => "while waiting for the reply to Execute",
        Request::Close => "while waiting for the reply to Close",
        Request::Sync => "while waiting for the reply to Sync",
        Request::Query => "while waiting for the reply to Query",
        Request::FunctionCall => "while waiting for the reply to FunctionCall",
        Request::CopyEnd => "while waiting for the end of COPY",
    }
}
