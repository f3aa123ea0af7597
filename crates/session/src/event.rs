//! What a server tells its client.

use howdah_wire::{
    Cells, Oids,
    backend::{CommandTag, Notification, RowDescription, ServerError, TransactionStatus},
};

/// Something the server sent, borrowing from the connection's buffer.
///
/// Which request it answers is [`crate::Client::answered`]; the last three answer none and may come
/// at any time.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The login is complete: the first ReadyForQuery.
    LoggedIn,
    /// A Parse is done.
    ParseComplete,
    /// A Bind is done.
    BindComplete,
    /// A Close is done.
    CloseComplete,
    /// Types of the parameters of the statement described; its columns or [`Event::NoData`] follow.
    ParameterDescription(Oids<'a>),
    /// Columns of the statement or portal described, or of the rows that a Query returns next.
    RowDescription(RowDescription<'a>),
    /// What was described returns no rows.
    NoData,
    /// One row.
    Row(Row<'a>),
    /// An Execute reached its row limit; the portal has more.
    PortalSuspended,
    /// A statement ended well: an Execute, or one of those in a Query.
    CommandComplete(CommandTag<'a>),
    /// The text of an Execute or Query held nothing.
    EmptyQuery,
    /// The server waits for COPY data. A Sync sent behind an Execute that turns out to be such a
    /// COPY is ignored by the server and no longer owed: send another after
    /// [`crate::Client::copy_done`] or [`crate::Client::copy_fail`].
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
    /// A Sync, Query or function call is answered; the server waits for the next.
    Ready(TransactionStatus),
    /// A request failed, the login was refused, or the server ends the session. In a batch of
    /// extended-protocol requests the server skips all that follow until the next Sync.
    Error(ServerError<'a>),
    /// A warning or remark.
    Notice(ServerError<'a>),
    /// NOTIFY of a channel this session listens to.
    Notification(Notification<'a>),
    /// A setting has this value now.
    ParameterStatus {
        /// Name of the setting.
        name: &'a [u8],
        /// Its value.
        value: &'a [u8],
    },
}

/// One row of a result.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    pub(crate) body_bytes: u32,
    pub(crate) cells: Option<Cells<'a>>,
}

impl<'a> Row<'a> {
    /// Bytes of its message, the five of the header not included.
    pub fn body_bytes(&self) -> u32 {
        self.body_bytes
    }

    /// Its cells, or `None` while rows are discarded.
    pub fn cells(&self) -> Option<Cells<'a>> {
        self.cells.clone()
    }
}

/// A piece of COPY data. Servers send one row in each, but need not.
#[derive(Clone, Copy, Debug)]
pub struct CopyData<'a> {
    pub(crate) body_bytes: u32,
    pub(crate) data: Option<&'a [u8]>,
}

impl<'a> CopyData<'a> {
    /// Bytes of it.
    pub fn body_bytes(&self) -> u32 {
        self.body_bytes
    }

    /// The data, or `None` while rows are discarded.
    pub fn data(&self) -> Option<&'a [u8]> {
        self.data
    }
}
