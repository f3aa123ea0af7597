//! Events of a server connection.

use howdah_wire::{
    Cells, Oids,
    backend::{CommandTag, Notification, RowDescription, ServerError, TransactionStatus},
};

/// An event from the server, borrowing from the connection's buffer.
///
/// [`crate::ClientSession::answered`] returns the request that an event answers.
/// [`SessionEvent::Notice`], [`SessionEvent::Notification`] and [`SessionEvent::ParameterStatus`]
/// answer no request and may occur at any time.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SessionEvent<'a> {
    /// The login is complete: the first ReadyForQuery.
    LoggedIn,
    /// A Parse is done.
    ParseComplete,
    /// A Bind is done.
    BindComplete,
    /// A Close is done.
    CloseComplete,
    /// Types of the parameters of the described statement; its columns or [`SessionEvent::NoData`]
    /// follow.
    ParameterDescription(Oids<'a>),
    /// Columns of the statement or portal described, or of the rows that a Query returns next.
    RowDescription(RowDescription<'a>),
    /// The described statement or portal returns no rows.
    NoData,
    /// One row of a result, or its length if rows are discarded.
    Row(ReceivedRow<'a>),
    /// An Execute reached its row limit; the portal may have more rows.
    PortalSuspended,
    /// A statement run by an Execute or a Query succeeded.
    CommandComplete(CommandTag<'a>),
    /// The text of a Query, or of the statement that an Execute ran, contained no statement.
    EmptyQuery,
    /// The server waits for COPY data. If an Execute starts the COPY, the server ignores Syncs sent
    /// after it, and they are no longer outstanding: send another one after
    /// [`crate::ClientSession::copy_done`] or [`crate::ClientSession::copy_fail`].
    CopyIn,
    /// COPY data follows.
    CopyOut,
    /// Both sides may send COPY data: streaming replication.
    CopyBoth,
    /// A piece of COPY data.
    CopyData(CopyData<'a>),
    /// The COPY data from the server is complete.
    CopyDone,
    /// The value of a function call; `None` is SQL NULL.
    FunctionResult(Option<&'a [u8]>),
    /// A Sync, Query or function call is complete, and leaves the session in this transaction
    /// status.
    Ready(TransactionStatus),
    /// A request failed, the login was refused, or the server ends the session. In a batch of
    /// extended-protocol requests the server skips all later ones until the next Sync.
    Error(ServerError<'a>),
    /// A warning or other notice.
    Notice(ServerError<'a>),
    /// A notification on a channel that the session listens to.
    Notification(Notification<'a>),
    /// The server reports a session parameter: at login, and whenever its value changes.
    ParameterStatus {
        /// Name of the parameter.
        name: &'a [u8],
        /// Current value of the parameter.
        value: &'a [u8],
    },
}

/// One row of a result.
#[derive(Clone, Debug)]
pub struct ReceivedRow<'a> {
    pub(crate) body_bytes: u32,
    pub(crate) cells: Option<Cells<'a>>,
    pub(crate) body: &'a [u8],
}

impl<'a> ReceivedRow<'a> {
    /// Returns the length of the message, without the five bytes of its header.
    pub fn body_bytes(&self) -> u32 {
        self.body_bytes
    }

    /// Returns the message without its header; empty while rows are discarded.
    pub fn body(&self) -> &'a [u8] {
        self.body
    }

    /// Returns the cells, or `None` while rows are discarded.
    pub fn cells(&self) -> Option<Cells<'a>> {
        self.cells.clone()
    }
}

/// A piece of COPY data. Servers send one row per piece, but are not required to.
#[derive(Clone, Copy, Debug)]
pub struct CopyData<'a> {
    pub(crate) body_bytes: u32,
    pub(crate) data: Option<&'a [u8]>,
}

impl<'a> CopyData<'a> {
    /// Returns the length of the data in bytes.
    pub fn body_bytes(&self) -> u32 {
        self.body_bytes
    }

    /// Returns the data, or `None` while rows are discarded.
    pub fn data(&self) -> Option<&'a [u8]> {
        self.data
    }
}
