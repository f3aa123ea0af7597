//! Which requests the server still has to answer, and which one a message answers.

use std::collections::VecDeque;

use howdah_wire::Backend;

use crate::Error;

/// Names a request within its connection. Later requests are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(u64);

/// Kinds of requests that get an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Request {
    /// Prepare a statement.
    Parse,
    /// Make a portal.
    Bind,
    /// Describe a prepared statement.
    DescribeStatement,
    /// Describe a portal.
    DescribePortal,
    /// Run a portal.
    Execute,
    /// Close a prepared statement or a portal.
    Close,
    /// End a batch.
    Sync,
    /// Run statements of the simple protocol.
    Query,
    /// Call a function.
    FunctionCall,
    /// End of the client's COPY data. Answered by the end of the statement it belongs to.
    CopyEnd,
}

impl Request {
    /// Whether ReadyForQuery is the end of its answer.
    fn ends_with_ready(self) -> bool {
        matches!(self, Self::Sync | Self::Query | Self::FunctionCall)
    }
}

/// How much room an empty queue keeps.
const RETAINED_REQUESTS: usize = 32;

/// What the server does with COPY data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CopyIn {
    #[default]
    None,
    /// It waits for data that we have not ended.
    Open,
    /// Its end has been sent.
    Ended,
}

/// A queue of requests, answered in order.
///
/// After an error in a batch the server discards everything up to the next Sync (Queries too): those
/// requests leave the queue at once, and while there is no Sync yet, later ones do not enter it.
#[derive(Debug, Default)]
pub(super) struct Pipeline {
    owed: VecDeque<(RequestId, Request)>,
    ready_owed: usize,
    next: u64,
    /// The server discards until a Sync that has not been sent yet.
    skipping: bool,
    /// Something was sent that a Sync has to end.
    batch_open: bool,
    copy_in: CopyIn,
}

impl Pipeline {
    /// Counts a request as sent.
    pub(super) fn sent(&mut self, request: Request) -> RequestId {
        let id = RequestId(self.next);
        self.next += 1;
        if request == Request::CopyEnd && self.copy_in == CopyIn::Open {
            self.copy_in = CopyIn::Ended;
        }
        if request == Request::Sync {
            self.skipping = false;
        }
        // An end of COPY data that no statement can be waiting for is ignored by the server.
        if !(self.skipping || request == Request::CopyEnd && self.owed.is_empty()) {
            self.owed.push_back((id, request));
            self.ready_owed += usize::from(request.ends_with_ready());
        }
        if request != Request::CopyEnd {
            self.batch_open = !request.ends_with_ready();
        }
        id
    }

    /// Whether the server is in a COPY from us whose end we have not sent: it ignores a Sync then.
    pub(super) fn ignores_sync(&self) -> bool {
        self.copy_in == CopyIn::Open
    }

    /// Names a request that is not sent at all.
    pub(super) fn unsent(&mut self) -> RequestId {
        let id = RequestId(self.next);
        self.next += 1;
        id
    }

    pub(super) fn is_settled(&self) -> bool {
        self.owed.is_empty() && !self.batch_open && !self.skipping
    }

    pub(super) fn has_open_batch(&self) -> bool {
        self.batch_open
    }

    pub(super) fn ready_owed(&self) -> usize {
        self.ready_owed
    }

    pub(super) fn owed(&self) -> impl Iterator<Item = (RequestId, Request)> + '_ {
        self.owed.iter().copied()
    }

    /// Takes a message as part of the answer to the oldest request, which it may complete.
    ///
    /// # Errors
    ///
    /// The message answers nothing.
    pub(super) fn answer(&mut self, message: Backend) -> Result<Option<RequestId>, Error> {
        use Request::{
            Bind, Close, DescribePortal, DescribeStatement, Execute, FunctionCall, Parse,
        };
        let Some(&(id, request)) = self.owed.front() else {
            return match message {
                // The server may end the session at any time; see `Event::Error`.
                Backend::ErrorResponse => Ok(None),
                _ => Err(Error::Unexpected { message, state: "nothing is owed" }),
            };
        };
        match (message, request) {
            (Backend::ParseComplete, Parse)
            | (Backend::BindComplete, Bind)
            | (Backend::CloseComplete, Close)
            | (Backend::RowDescription | Backend::NoData, DescribeStatement | DescribePortal)
            | (Backend::EmptyQueryResponse | Backend::PortalSuspended, Execute) => self.pop(),
            (Backend::CommandComplete, Execute) => {
                self.copy_in = CopyIn::None;
                self.pop();
            }
            (Backend::CommandComplete, Request::Query) => self.copy_ended(),
            (Backend::CopyInResponse, Execute | Request::Query) => self.copy_began(request),
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
            (Backend::ErrorResponse, _) => self.failed(request),
            (Backend::ReadyForQuery, request) if request.ends_with_ready() => self.ready(),
            (message, request) => {
                return Err(Error::Unexpected { message, state: waiting_for(request) });
            }
        }
        Ok(Some(id))
    }

    /// A statement of a Query ended. If it was a COPY, the end of its data is past; the next
    /// statement may begin another.
    fn copy_ended(&mut self) {
        let ended = std::mem::take(&mut self.copy_in) != CopyIn::None;
        if ended && let Some((_, Request::CopyEnd)) = self.owed.get(1) {
            self.owed.remove(1);
        }
    }

    /// The server waits for COPY data. Syncs that it reads before the end of the data are lost:
    /// `CopyGetData` in `copyfromparse.c`.
    fn copy_began(&mut self, request: Request) {
        while let Some((_, Request::Sync)) = self.owed.get(1) {
            self.owed.remove(1);
            self.ready_owed -= 1;
            self.batch_open |= request == Request::Execute;
        }
        self.copy_in = match self.owed.get(1) {
            Some((_, Request::CopyEnd)) => CopyIn::Ended,
            _ => CopyIn::Open,
        };
    }

    fn failed(&mut self, request: Request) {
        self.copy_in = CopyIn::None;
        if request.ends_with_ready() {
            return;
        }
        while !matches!(self.owed.front(), None | Some((_, Request::Sync))) {
            self.pop();
        }
        self.skipping = self.owed.is_empty();
    }

    fn ready(&mut self) {
        self.copy_in = CopyIn::None;
        self.pop();
    }

    /// The oldest request is done, and with it the end of COPY data behind it, which the server
    /// ignores if it comes too late.
    fn pop(&mut self) {
        if let Some((_, request)) = self.owed.pop_front() {
            self.ready_owed -= usize::from(request.ends_with_ready());
        }
        while let Some((_, Request::CopyEnd)) = self.owed.front() {
            self.owed.pop_front();
        }
        if self.owed.is_empty() && self.owed.capacity() > RETAINED_REQUESTS {
            self.owed = VecDeque::new();
        }
    }
}

fn waiting_for(request: Request) -> &'static str {
    match request {
        Request::Parse => "waiting for the answer to Parse",
        Request::Bind => "waiting for the answer to Bind",
        Request::DescribeStatement | Request::DescribePortal => {
            "waiting for the answer to Describe"
        }
        Request::Execute => "waiting for the answer to Execute",
        Request::Close => "waiting for the answer to Close",
        Request::Sync => "waiting for the answer to Sync",
        Request::Query => "waiting for the answer to Query",
        Request::FunctionCall => "waiting for the answer to FunctionCall",
        Request::CopyEnd => "waiting for the end of COPY",
    }
}
